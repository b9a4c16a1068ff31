"""Completion, by the shells themselves; `-h`; and the time that `--version` takes."""

from __future__ import annotations

import os
import pty
import resource
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fetchproxy.cli import main
from fetchproxy.cli.completion import Shell, script
from fetchproxy.config.load import all_keys

COMMANDS = {name: main.loaded(name) for name in main.COMMANDS}
# What of the program `--version` loads: the command, and nothing that it starts.
LOADED_MAX = 5


def bash_offers(line: str, folder: Path) -> list[str]:
    """What bash offers behind `line`, which ends in the word to be completed."""
    words = line.split(" ")
    ask = (
        'source "$0"; shift 0; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fetchproxy; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    file = folder / "fetchproxy.bash"
    file.write_text(script(Shell.BASH))
    bash = ["bash", "--norc", "-c", ask, str(file), *words]
    result = subprocess.run(bash, cwd=folder, capture_output=True, text=True, check=True)
    assert not result.stderr
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fetchproxy ser", ["serve"]),
        ("fetchproxy doctor --wa", ["--wait"]),
        ("fetchproxy keys ", ["generate", "rotate", "list", "rewrap", "--help"]),
        ("fetchproxy keys rewrap --dry", ["--dry-run"]),
        ("fetchproxy --config my.toml ver", ["verify"]),
        ("fetchproxy serve --set gateway.advertise", ["gateway.advertise_host="]),
        ("fetchproxy serve --config my", ["my.toml"]),
        ("fetchproxy serve --listen ", []),
        ("fetchproxy serve --nothing", []),
    ],
)
def test_bash_completes(line: str, offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "my.toml").touch()
    assert sorted(bash_offers(line, tmp_path)) == sorted(offered)


@pytest.mark.parametrize("name", main.COMMANDS)
def test_bash_offers_each_option_of_a_command(name: str, tmp_path: Path) -> None:
    below: dict[str, Any] = getattr(COMMANDS[name], "commands", {"": COMMANDS[name]})
    for sub, command in below.items():
        options = {o for p in command.params if p.param_type_name == "option" for o in p.opts}
        line = " ".join(part for part in ("fetchproxy", name, sub, "-") if part)
        assert set(bash_offers(line, tmp_path)) == options | {"--help"}


def test_bash_completes_as_a_person_types(tmp_path: Path) -> None:
    """In an interactive bash on a terminal, by the TAB key."""
    (tmp_path / "fetchproxy.bash").write_text(script(Shell.BASH))
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["PS1"] = "> "
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, b"fetchproxy() { echo got $*.; }; source ./fetchproxy.bash\n")
        os.write(terminal, b"fetchproxy doc\t--jso\t\n")
        read_until(terminal, b"got doctor --json.")
    finally:
        os.write(terminal, b"exit\n")
        os.waitpid(pid, 0)
        os.close(terminal)


def read_until(terminal: int, expected: bytes) -> None:
    heard = b""
    while expected not in heard:
        assert select.select([terminal], [], [], 120)[0], heard
        heard += os.read(terminal, 65536)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh on PATH")
def test_zsh_completes(tmp_path: Path) -> None:
    (tmp_path / "_fetchproxy").write_text(script(Shell.ZSH))
    # `_describe` shows its array: what it would offer.
    ask = (
        "compdef() { : }; _describe() { print -l -- ${(P)2} }; _files() { print files }; "
        "compadd() { print -l -- $@ }; source ./_fetchproxy; words=(fetchproxy doctor --w); "
        "CURRENT=3; _fetchproxy; words=(fetchproxy serve --config x); CURRENT=4; _fetchproxy"
    )
    result = subprocess.run(
        ["zsh", "-f", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "--wait:Retry until nothing is fatal" in result.stdout
    assert result.stdout.splitlines()[-1] == "files"


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish on PATH")
def test_fish_completes(tmp_path: Path) -> None:
    (tmp_path / "fetchproxy.fish").write_text(script(Shell.FISH))
    asks = ("fetchproxy doc", "fetchproxy doctor --w", "fetchproxy keys ro")
    ask = "; ".join(["source ./fetchproxy.fish", *(f"complete -C '{line}'" for line in asks)])
    result = subprocess.run(
        ["fish", "--no-config", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    offered = [line.split("\t")[0] for line in result.stdout.splitlines()]
    assert offered == ["doctor", "--wait", "rotate"]


@pytest.mark.parametrize("shell", Shell)
def test_each_script_has_each_command_and_setting(shell: Shell) -> None:
    text = script(shell)
    for name in (*main.COMMANDS, *(f"{key}=" for key in all_keys())):
        assert name in text


@pytest.mark.parametrize("name", ["", *main.COMMANDS])
def test_h_is_help_everywhere(name: str) -> None:
    cli = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    short, long = (cli.invoke(main.app, [*name.split(), flag]) for flag in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert short.output == long.output
    assert "Usage: " in short.output


def test_h_is_help_below_a_group() -> None:
    assert "Usage: " in CliRunner().invoke(main.app, ["keys", "rotate", "-h"]).output


def test_version_loads_no_part_of_the_program() -> None:
    """So it takes a tenth of a second; a client of a store alone would take three times as much."""
    code = (
        "import sys; sys.argv = ['fetchproxy', '--version']\n"
        "from fetchproxy.cli.main import app\n"
        "try: app(prog_name='fetchproxy')\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, sep='\\n')"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, *modules = result.stdout.split("\n")
    own_modules = [name for name in modules if name.startswith("fetchproxy")]
    assert len(own_modules) <= LOADED_MAX, own_modules
    for large in ("aiohttp", "botocore", "pydantic", "structlog", "kafka", "asyncio", "obstore"):
        assert large not in modules
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert cpu_s < 0.3 * 5, "0.1 s on a quiet machine; five times the bound leaves a busy one room"
