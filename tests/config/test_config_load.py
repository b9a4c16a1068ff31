"""Precedence, places and messages of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from fetchproxy.config.load import (
    OPTION_VARIABLES,
    Setting,
    all_keys,
    load_config,
    parse_assignment,
)
from fetchproxy.config.memory_plan import CHUNK_BYTES
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "fetchproxy.toml"
    file.write_text(text, encoding="utf-8")
    return file


def error_of(file: Path | None = None, environ: dict[str, str] | None = None, *sets: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(file, environ or {}, [parse_assignment(text) for text in sets])
    return str(error.value)


def test_without_anything_the_defaults_hold() -> None:
    assert load_config(None, {}) == Config()


def test_file_yields_to_environment_and_that_to_the_command_line(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[gateway]\nlisten = "127.0.0.1:1"\nconnections_max = 10\nidle_max_ms = 1000\n'
        "[remote_fetch]\nindex_cache_bytes_max = 2097152\n",
    )
    environ = {"FETCHPROXY_GATEWAY_LISTEN": "127.0.0.1:2", "FETCHPROXY_GATEWAY_IDLE_MAX_MS": "2000"}
    config = load_config(file, environ, [Setting("gateway.idle_max_ms", "3000", "--set")])
    assert config.gateway.connections_max == 10
    assert config.gateway.listen == "127.0.0.1:2"
    assert config.gateway.idle_max_ms == 3000
    assert config.remote_fetch.index_cache_bytes_max == 2097152


def test_every_key_can_be_set_by_its_variable(tmp_path: Path) -> None:
    samples = {
        "a regular expression": "t.*",
        "a path": str(tmp_path),
        "one of debug, info, warning, error": "error",
        "one of auto, console, json": "json",
        "text": "x",
    }
    forms_of_their_own = {
        "console.listen": "127.0.0.1:1",
        "gateway.node_map": "1=9301",
        "gateway.proxy_protocol_from": "10.0.0.0/24,2001:db8::1",
        "archive.log_dirs": "/a,/b",
        "gateway.advertise_host": "proxy.example",
        "archive.retention_overrides": '{"t": {"local_retention_ms": 5}}',
    }
    for key in all_keys().values():
        in_groups = ("sasl_", "tls_", "sni_", "group_instance_", "compacted_", "archives", "users_")
        if key.name.startswith(in_groups):
            # These come in groups: test_config_sasl.py, test_config_archive.py, tests/tls,
            # test_config_attach.py, test_archive_only_users.py.
            continue
        text = samples.get(key.expected, "file:///a" if key.default is None else str(key.default))
        text = forms_of_their_own.get(key.dotted, text)
        config = load_config(None, {key.variable: text})
        assert str(getattr(getattr(config, key.section), key.name)) == text, key.dotted


def test_an_empty_variable_counts_as_absent(tmp_path: Path) -> None:
    file = write(tmp_path, '[console]\nlisten = "127.0.0.1:9"\n')
    environ = {"FETCHPROXY_CONSOLE_LISTEN": "", "FETCHPROXY_GATEWAY_CONNECTIONS_MAX": ""}
    assert load_config(file, environ).console.listen == "127.0.0.1:9"


def test_an_empty_set_unsets_an_optional_key_only() -> None:
    environ = {"FETCHPROXY_CONSOLE_LISTEN": "127.0.0.1:9"}
    assert load_config(None, environ, [parse_assignment("console.listen=")]).console.listen is None
    assert "gateway.connections_max = ''" in error_of(None, {}, "gateway.connections_max=")


def test_unknown_key_in_the_file_names_nearest_key_and_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[archive]\nsegment_byte_max = 5\n")
    message = error_of(file)
    assert "unknown key archive.segment_byte_max" in message
    assert f"({file}:2)" in message
    assert "archive.segment_bytes_max" in message


def test_a_key_in_the_wrong_section_is_found_by_its_last_part(tmp_path: Path) -> None:
    assert "log.level" in error_of(write(tmp_path, '[zzzzzzzzzz]\nlevel = "info"\n'), {})
    assert "is archive.topics" in error_of(None, {}, "topics.topics=x")


@pytest.mark.parametrize("text", ["[gatway]\n", 'gatway = "x"\n', "[[gatway]]\nx = 1\n"])
def test_unknown_section(tmp_path: Path, text: str) -> None:
    message = error_of(write(tmp_path, text))
    assert "gatway" in message
    assert "nearest known one is gateway" in message


def test_a_section_is_no_key(tmp_path: Path) -> None:
    expected = "is a section: expected gateway.KEY"
    assert expected in error_of(write(tmp_path, "gateway = 1\n"))
    assert expected in error_of(None, {}, "gateway=1")


def test_a_table_below_a_key_is_no_value(tmp_path: Path) -> None:
    message = error_of(write(tmp_path, "[gateway.listen]\nhost = 1\n"))
    assert "gateway.listen = {'host': 1}" in message
    assert "expected host:port" in message


def test_unknown_variable_names_the_nearest_one() -> None:
    message = error_of(None, {"FETCHPROXY_GATEWAY_LISTN": "x"})
    assert "unknown variable FETCHPROXY_GATEWAY_LISTN in the environment" in message
    assert "the nearest known one is FETCHPROXY_GATEWAY_LISTEN" in message


def test_variables_that_kubernetes_puts_beside_a_service_are_no_keys() -> None:
    load_config(
        None,
        {
            "FETCHPROXY_SERVICE_HOST": "10.0.0.1",
            "FETCHPROXY_SERVICE_PORT_KAFKA": "9192",
            "FETCHPROXY_PORT": "tcp://10.0.0.1:9192",
            "FETCHPROXY_PORT_9192_TCP_ADDR": "10.0.0.1",
            "FETCHPROXY_CONSOLE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
            "FETCHPROXY_CONFIG": "x.toml",
            "FETCHPROXY_LAB_CACHE": "/tmp/lab",
            "PATH": "/bin",
        },
    )


def test_no_key_looks_like_a_variable_that_is_skipped() -> None:
    for key in all_keys().values():
        assert key.variable not in OPTION_VARIABLES
        assert not key.variable.endswith(("_PORT", "_SERVICE_HOST"))


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("gateway.connections_max=many", "an integer, at least 1"),
        ("gateway.connections_max=0", "an integer, at least 1"),
        ("gateway.node_port_base=70000", "at least 0, at most 65000"),
        ("gateway.listen=9192", "host:port or [IPv6]:port"),
        ("cluster.bootstrap=a:1,b", "host:port[,host:port…], ports from 1 to 65535"),
        ("archive.topics=(", "a regular expression"),
        ("log.level=loud", "one of debug, info, warning, error"),
        ("store.url=/var/lib", "a URL such as"),
    ],
)
def test_wrong_values_name_key_value_place_and_what_was_expected(
    assignment: str, expected: str
) -> None:
    key, _, value = assignment.partition("=")
    message = error_of(None, {}, assignment)
    assert message.startswith(f"{key} = '{value}' (--set {key}): expected")
    assert expected in message


def test_true_is_no_number(tmp_path: Path) -> None:
    message = error_of(write(tmp_path, "[gateway]\nconnections_max = true\n"))
    assert "gateway.connections_max = True" in message


def test_two_wrong_values_are_both_named(tmp_path: Path) -> None:
    file = write(tmp_path, "[gateway]\nconnections_max = 0\n[store]\nconnections_max = 0\n")
    message = error_of(file)
    assert "gateway.connections_max" in message
    assert "store.connections_max" in message


def test_faults_of_all_places_are_named_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "[gateway]\nconnections_max = 0\nlistn = 5\n[archives]\nx = 1\n")
    environ = {"FETCHPROXY_STORE_ULR": "file:///a", "FETCHPROXY_LOG_LEVEL": "loud"}
    with pytest.raises(ConfigError) as error:
        load_config(file, environ, [parse_assignment("console.listen=nowhere")])
    faults = error.value.faults
    assert len(faults) == 6
    for message in (f"connections_max = 0 ({file}:2)", f"gateway.listn ({file}:3)", f"({file}:5)",
                 "FETCHPROXY_STORE_ULR", "'loud' (FETCHPROXY_LOG_LEVEL)",
                 "(--set console.listen)"):  # fmt: skip
        assert sum(message in fault for fault in faults) == 1, message


def test_keys_that_contradict_each_other_are_all_named() -> None:
    sets = ["archive.group_instance_id=a", "gateway.tls_client_auth=required"]
    with pytest.raises(ConfigError) as error:
        load_config(None, {}, [parse_assignment(text) for text in sets])
    assert len(error.value.faults) == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('# a comment\n\n[ console ] # another\nlisten = "x"\n', ":4"),
        ('console.listen = "x"\n', ":1"),
        ('[console]\n"listen" = "x"\n', ""),
        ('console = { listen = "x" }\n', ""),
    ],
)
def test_a_line_of_the_file_is_named_where_it_can_be_told(
    tmp_path: Path, text: str, line: str
) -> None:
    file = write(tmp_path, text)
    assert f"({file}{line}): expected" in error_of(file)


def test_a_chunk_has_to_fit_into_the_bytes_in_flight() -> None:
    smallest = parse_assignment(f"remote_fetch.inflight_bytes_max={CHUNK_BYTES}")
    assert load_config(None, {}, [smallest]).remote_fetch.inflight_bytes_max == CHUNK_BYTES
    message = error_of(None, {}, f"remote_fetch.inflight_bytes_max={CHUNK_BYTES - 1}")
    assert message.endswith(
        f"(--set remote_fetch.inflight_bytes_max): expected at least {CHUNK_BYTES}, a chunk"
    )


def test_secrets_do_not_show_in_messages() -> None:
    message = error_of(None, {}, "store.ulr=s3://me:hunter2@bucket/x")
    assert "hunter2" not in message
    message = error_of(None, {}, "gateway.connections_max=s3://me:hunter2@bucket")
    assert "hunter2" not in message
    with pytest.raises(ConfigError) as error:
        parse_assignment("secret:hunter2")
    assert "hunter2" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read" in error_of(tmp_path / "absent.toml")
    assert "cannot be read" in error_of(tmp_path)
    assert "is not TOML: " in error_of(write(tmp_path, "[gateway\n"))
    (tmp_path / "latin.toml").write_bytes(b'x = "\xff"')
    assert "is not TOML" in error_of(tmp_path / "latin.toml")
    for odd in ("[" * 50_000, "9" * 5_000):
        assert "is not TOML" in error_of(write(tmp_path, f"x = {odd}"))


@pytest.mark.parametrize("text", ["gateway.listen", "", "=x"])
def test_set_needs_an_assignment(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        parse_assignment(text)


def test_a_value_may_contain_equals_signs() -> None:
    setting = parse_assignment("store.url=s3://b/p?endpoint_url=http://h:1&region=r")
    config = load_config(None, {}, [setting])
    assert config.store.url == "s3://b/p?endpoint_url=http://h:1&region=r"
