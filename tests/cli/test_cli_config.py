"""`fetchproxy config`: the file it prints, the faults it names, the places it shows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fetchproxy.cli.main import app
from fetchproxy.config.document import meaning_of
from fetchproxy.config.load import all_keys, load_config
from fetchproxy.config.schema import Config

COMMENTED_OUT = re.compile(r'^#(?=[a-z0-9_]+ = ("|-?[0-9]|true$|false$))', re.MULTILINE)


def config(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["config", *arguments], env=env)


def printed(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = config(*arguments, env=env)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def read(text: str, tmp_path: Path) -> Config:
    file = tmp_path / "fetchproxy.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, {})


def test_what_is_printed_sets_nothing(tmp_path: Path) -> None:
    text = printed()
    assert all(table == {} for table in tomllib.loads(text).values())
    assert read(text, tmp_path) == Config()


def test_each_key_is_printed_with_its_default_and_its_meaning(tmp_path: Path) -> None:
    text, count = COMMENTED_OUT.subn("", printed())
    assert count == len(all_keys())
    tables = tomllib.loads(text)
    assert {f"{s}.{name}" for s, table in tables.items() for name in table} == set(all_keys())
    assert read(text, tmp_path) == Config()
    flat_text = " ".join(text.replace("\n# ", " ").split())
    for key in all_keys().values():
        assert meaning_of(key) in flat_text, key.dotted
    assert max(len(line) for line in text.splitlines()) < 200


def test_what_is_set_stands_without_a_comment(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[archive]\ntopics = "a|\\"b\\"\\u007f\\\\d"\nsegment_bytes_max = 33554432\n'
        "follow_topic_retention = true\n"
        '[archive.retention_overrides]\n"t.*" = { local_retention_ms = "7d" }\n'
        "[store]\nconnections_max = 25\n"
    )
    text = printed("--config", str(file), "--set", "gateway.idle_max_ms=90s")
    for line in ('segment_bytes_max = "32MiB"', 'idle_max_ms = "90s"',
                 "connections_max = 25", "follow_topic_retention = true"):  # fmt: skip
        assert f"\n{line}\n" in text
    before = load_config(file, {})
    after = read(text, tmp_path)
    assert after.archive == before.archive
    assert after.gateway.idle_max_ms == 90_000


@pytest.mark.parametrize("option", [(), ("--show",)])
def test_secrets_are_not_printed(option: tuple[str, ...], tmp_path: Path) -> None:
    env = {
        "FETCHPROXY_CLUSTER_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "FETCHPROXY_CLUSTER_SASL_MECHANISM": "PLAIN",
        "FETCHPROXY_CLUSTER_SASL_USERNAME": "me",
        "FETCHPROXY_CLUSTER_SASL_PASSWORD": "hunter2",
        "FETCHPROXY_STORE_URL": "s3://me:hunter3@bucket/x",
    }
    text = printed(*option, env=env)
    assert "hunter" not in text
    assert "FETCHPROXY_CLUSTER_SASL_PASSWORD" in text
    if not option:
        tomllib.loads(text)


def test_each_value_is_shown_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[archive]\n\ntopics = "t.*"\n')
    output = printed(
        "--show", "--set", "gateway.connections_max=5", "--set", "process.memory_bytes_max=800MiB",
        env={"FETCHPROXY_LOG_LEVEL": "debug", "FETCHPROXY_CONFIG": str(file)},
    )  # fmt: skip
    lines = {line.split(" = ")[0]: line.split(" = ")[1].split() for line in output.splitlines()}
    assert set(lines) == set(all_keys())
    assert lines["archive.topics"] == ['"t.*"', f"{file}:3"]
    assert lines["gateway.connections_max"] == ["5", "--set", "gateway.connections_max"]
    assert lines["log.level"] == ['"debug"', "FETCHPROXY_LOG_LEVEL"]
    assert lines["archive.segment_bytes_max"] == ['"64MiB"', "default"]
    assert lines["console.listen"] == ["not", "set", "default"]
    assert lines["remote_fetch.chunk_cache_bytes_max"][-1] == "process.memory_bytes_max"


def test_a_sound_file(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text(printed())
    result = config("--check", str(file))
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{file}: no faults\n", "")


def test_internal_topics_are_named_that_a_pattern_matches_in_vain(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text('[archive]\ntopics = "orders"\ncompacted_topics = ".*"\n')
    result = config("--check", str(file))
    assert result.exit_code == 0
    note, verdict = result.stdout.splitlines()
    assert "__consumer_offsets, __transaction_state" in note
    assert "never archived" in note
    assert verdict == f"{file}: no faults"


def test_each_fault_has_a_line(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text('[gateway]\nlistn = "x"\nidle_max_ms = "5 weeks"\n')
    env = {"FETCHPROXY_STORE_ULR": "file:///a"}
    result = config("--check", str(file), "--set", "log.level=loud", env=env)
    assert (result.exit_code, result.stdout) == (1, "")
    faults = result.stderr.splitlines()
    assert len(faults) == 4
    assert any(f"gateway.listn ({file}:2)" in fault for fault in faults)
    assert any(f"idle_max_ms = '5 weeks' ({file}:3)" in fault for fault in faults)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    result = config("--check", str(tmp_path / "absent.toml"))
    assert result.exit_code == 1
    assert "absent.toml: cannot be read" in result.stderr


@pytest.mark.parametrize("more", [["--show"], ["--config", "other.toml"]])
def test_what_does_not_go_together(more: list[str]) -> None:
    result = config("--check", "x.toml", *more)
    assert result.exit_code == 2
    assert "cannot be combined with" in result.stderr


def test_check_reads_its_own_file_instead_of_the_variables(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    file.write_text("")
    assert config("--check", str(file), env={"FETCHPROXY_CONFIG": "/nowhere"}).exit_code == 0


def test_what_cannot_be_used_is_said_as_for_each_command() -> None:
    result = config("--set", "gateway.listen=nonsense")
    assert result.exit_code == 2
    assert result.stderr.startswith("fetchproxy: gateway.listen = 'nonsense'")
