"""The command `fetchproxy`. It loads a subcommand's module only when the subcommand is used."""

from __future__ import annotations

import atexit
import os
import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fetchproxy import __version__

COMMANDS = (
    *("serve", "archive", "segments", "verify", "restore", "reindex", "merge", "mirror"),
    *("report", "backfill", "resolve", "index", "user", "groups", "cluster", "keys", "config"),
    *("doctor", "completion", "drill", "sizing"),
    *("top", "topics", "lag", "bundle"),
)
# The commands whose module has another name.
_MODULES = {
    **{"merge": "verify", "reindex": "verify", "report": "segments", "restore": "verify"},
    **{"top": "ask", "topics": "ask", "lag": "ask"},
}


class _Commands(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return loaded(cmd_name) if cmd_name in COMMANDS else None


@cache
def loaded(name: str) -> Any:
    """The command by this name. Its module has `app`, a group, or a function of that name."""
    module = import_module(f"fetchproxy.cli.{_MODULES.get(name, name)}")
    group = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        group.command(name)(getattr(module, name))
    command = typer.main.get_command(group)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        one.help = flowing(one.help or "")
    return command


def flowing(text: str) -> str:
    """The paragraphs of a help text, without the line breaks of its source: a narrow terminal would
    show these as half lines.
    """
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


app = typer.Typer(
    cls=_Commands,
    name="fetchproxy",
    help="Tiered storage (KIP-405) for any Kafka cluster, from outside the broker.",
    no_args_is_help=True,
    add_completion=False,  # `fetchproxy completion` writes it, without a process for each TAB
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # they print local variables, which may be secrets
)


def _show_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"fetchproxy {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command, and end the process without taking the interpreter apart.

    A thread of the stores' native client (obstore) may still be at work after its store was closed.
    If it calls Python while the interpreter is taken apart, the process aborts (SIGABRT), although
    all of its work is done.
    """
    try:
        app(prog_name="fetchproxy")
    except SystemExit as end:
        end_process(end)
    end_process(SystemExit())


def end_process(end: SystemExit) -> NoReturn:
    """End the process as Python does, but free no object. `end` has the exit code or a text."""
    atexit._run_exitfuncs()
    try:
        if isinstance(end.code, str):
            typer.echo(end.code, err=True)
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads it any more
        os._exit(1)
    os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
