"""Options, variables and messages of every command, by the command line as a user types it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fetchproxy import __version__
from fetchproxy.cli import main
from fetchproxy.cli.main import app
from fetchproxy.cli.options import NAMED_KEYS, read_config
from fetchproxy.config.load import OPTION_VARIABLES, all_keys
from fetchproxy.config.schema import Config

ROOT = Path(__file__).parents[2]
COMMANDS = {name: main.loaded(name) for name in main.COMMANDS}
OPTIONS = [
    pytest.param(option, id=f"{name} {option.opts[0]}")
    for name, command in COMMANDS.items()
    for option in command.params
]


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})


def read(args: list[str]) -> Config:
    """The configuration that `serve` would start with; variables are those of the process."""
    return read_config(COMMANDS["serve"].make_context("serve", args))


def test_the_commands() -> None:
    names = ["archive", "backfill", "bundle", "cluster", "completion", "config", "doctor", "drill"]
    names += ["groups", "index", "keys", "lag", "merge", "mirror", "reindex", "report", "resolve"]
    names += ["restore", "segments", "serve", "sizing", "top", "topics", "user", "verify"]
    assert sorted(COMMANDS) == names


def test_version_is_the_packages(cli: CliRunner) -> None:
    result = cli.invoke(app, ["--version"])
    assert result.output == f"fetchproxy {__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_has_help_and_a_variable(option: Any) -> None:
    if option.name == "help":
        return
    assert option.help
    if option.name in (
        "partition",
        "keep",
        "truncate",
        "new_history",
        "create",
        "cut_over",
        "move",
        "encrypt_plain",
        *("fault", "time", "broker"),  # of a drill
    ):
        # A person's word, said once: none is left in the environment for the next start.
        assert option.envvar is None
        return
    if option.name in (
        *("user_name", "topic_patterns", "group_patterns", "check", "show"),
        *("before", "wait", "present", "skip", "plain", "shell"),
        *("mb_per_s", "partitions", "days", "readers", "replay_mb_per_s", "ratio"),
    ):
        assert option.envvar is None  # for what is printed: no process is started with it
        return
    variables = {key.variable for key in all_keys().values()} | OPTION_VARIABLES
    assert option.envvar in variables


def test_named_options_carry_the_variable_of_their_key() -> None:
    keys = all_keys()
    for option in COMMANDS["serve"].params:
        if option.name in NAMED_KEYS:
            assert option.envvar == keys[NAMED_KEYS[option.name]].variable


def test_help_shows_options_and_variables(cli: CliRunner) -> None:
    output = cli.invoke(app, ["serve", "--help"]).output
    for text in ("--bootstrap", "--store", "--listen", "--advertise", "--archive", "--console",
                 "--config", "--set", "FETCHPROXY_GATEWAY_LISTEN"):  # fmt: skip
        assert text in output


def test_options_win_over_variables_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f.toml"
    file.write_text(
        '[cluster]\nbootstrap = "file:1"\n[gateway]\nlisten = "file:1"\nidle_max_ms=500'
    )
    monkeypatch.setenv("FETCHPROXY_CLUSTER_BOOTSTRAP", "variable:2")
    monkeypatch.setenv("FETCHPROXY_GATEWAY_LISTEN", "variable:2")
    monkeypatch.setenv("FETCHPROXY_CONFIG", str(file))
    config = read(["--listen", "option:3", "--archive", "t.*", "--console", "127.0.0.1:0"])
    assert config.gateway.listen == "option:3"
    assert config.cluster.bootstrap == "variable:2"
    assert config.gateway.idle_max_ms == 500
    assert (config.archive.topics, config.console.listen) == ("t.*", "127.0.0.1:0")


def test_set_wins_over_a_variable_of_a_named_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FETCHPROXY_STORE_URL", "file:///variable")
    assert read([]).store.url == "file:///variable"
    assert read(["--set", "store.url=file:///set"]).store.url == "file:///set"
    assert read(["--set", "store.url=file:///a", "--store", "file:///b"]).store.url == "file:///b"


def test_set_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FETCHPROXY_SET", "gateway.idle_max_ms=700 log.level=error")
    config = read([])
    assert (config.gateway.idle_max_ms, config.log.level) == (700, "error")


USERS_ERRORS = [
    (["serve"], "store.url is not set; use --store URL"),
    (["segments"], "store.url is not set"),
    (["verify"], "store.url is not set"),
    (["archive", "--store", "file:///nowhere"], "archive.topics is not set; use --archive REGEX"),
    (["serve", "--set", "gateway.listn=x:1"], "nearest known one is gateway.listen"),
    (["serve", "--set", "gateway.listen"], "expected section.key=value"),
    (["serve", "--listen", "nonsense"], "gateway.listen = 'nonsense' (--listen): expected"),
    (["serve", "--config", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
    (["segments", "--store", "file:///nowhere/at/all"], "/nowhere/at/all"),
    (["segments", "--store", "ftp://host/x"], "unknown scheme 'ftp'"),
    (["verify", "--store", "file:///nowhere/at/all"], "/nowhere/at/all"),
    (["segments", "--store", "s3://bucket?endpoint_url=http://127.0.0.1:1&region=x",
      "--set", "store.timeout_ms=8000"],
     "127.0.0.1:1"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "message"), USERS_ERRORS, ids=lambda value: str(value)[:60])
def test_users_errors_are_one_line_and_exit_code_2(
    cli: CliRunner, args: list[str], message: str
) -> None:
    env = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "FETCHPROXY_LOG_LEVEL": "error"}
    result = cli.invoke(app, args, env=env)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("fetchproxy: ")
    assert result.stderr.count("\n") == 1
    assert message.lower() in result.stderr.lower()


def test_an_unknown_variable_stops_the_start(cli: CliRunner) -> None:
    result = cli.invoke(app, ["serve"], env={"FETCHPROXY_GATEWAY_LISTN": "x"})
    assert result.exit_code == 2
    assert "nearest known one is FETCHPROXY_GATEWAY_LISTEN" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["orders-0"], "use one of --keep, --truncate and --new-history"),
        (["orders-0", "--keep", "--truncate"], "use one of --keep, --truncate and --new-history"),
        (["orders", "--keep"], "'orders' is not a partition; expected a form such as orders-0"),
    ],
)
def test_resolve_asks_for_one_answer_about_one_partition(
    cli: CliRunner, tmp_path: Path, arguments: list[str], message: str
) -> None:
    store = ["--store", tmp_path.as_uri(), "--bootstrap", "127.0.0.1:1"]
    result = cli.invoke(app, ["resolve", *arguments, *store])
    assert result.exit_code == 2
    assert message in result.output
