"""The command `fetchproxy`: puts the commands together. Each is a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from fetchproxy import __version__
from fetchproxy.cli import index
from fetchproxy.cli.archive import archive
from fetchproxy.cli.config import config
from fetchproxy.cli.pipeline import app as pipeline
from fetchproxy.cli.resolve import resolve
from fetchproxy.cli.restore import restore
from fetchproxy.cli.segments import segments
from fetchproxy.cli.serve import serve
from fetchproxy.cli.user import user
from fetchproxy.cli.verify import verify

app = typer.Typer(
    name="fetchproxy",
    help="Tiered storage (KIP-405) for any Kafka cluster, from outside the broker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print locals, and locals may hold secrets
)
for command in (serve, archive, segments, verify, restore, resolve, user, config):
    app.command()(command)
app.add_typer(index.app, name="index")
app.add_typer(pipeline.app, name="pipeline")


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
