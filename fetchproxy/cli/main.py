"""The command `fetchproxy`. A command's module is loaded when the command is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fetchproxy import __version__

COMMANDS = (
    *("serve", "archive", "segments", "verify", "restore", "reindex", "merge", "mirror"),
    *("report", "backfill", "resolve", "index", "user", "keys", "config"),
)
# The module of a command has the same name, but for these.
_MODULES = {"reindex": "verify", "restore": "verify"}


class _Loading(Mapping[str, Any]):
    """`COMMANDS`, each loaded when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _loaded(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _Loading()})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`pipeline NAME …` is the old name of `NAME --spark …`."""
        if args[:1] == ["pipeline"]:
            args = args[1:]
            if args and args[0] in COMMANDS:
                args.insert(1, "--spark")
        return super().parse_args(ctx, args)


@cache
def _loaded(name: str) -> Any:
    """A module has the command itself, or `app`: a group of commands."""
    module = import_module(f"fetchproxy.cli.{_MODULES.get(name, name)}")
    group = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        group.command(name)(getattr(module, name))
    command = typer.main.get_command(group)
    command.name = name
    return command


app = typer.Typer(
    cls=_Commands,
    name="fetchproxy",
    help="Tiered storage (KIP-405) for any Kafka cluster, from outside the broker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print locals, and locals may hold secrets
)


def _show_version(wanted: bool) -> None:
    if wanted:
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


def main() -> None:
    app(prog_name="fetchproxy")
