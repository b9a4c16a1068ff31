"""Puts the jobs' commands together."""

from __future__ import annotations

import typer

from fetchproxy.cli.pipeline.archive import archive
from fetchproxy.cli.pipeline.backfill import backfill
from fetchproxy.cli.pipeline.merge import merge
from fetchproxy.cli.pipeline.reindex import reindex
from fetchproxy.cli.pipeline.report import report
from fetchproxy.cli.pipeline.restore import restore
from fetchproxy.cli.pipeline.verify import verify

app = typer.Typer(
    help="Jobs over a whole archive on Spark; need the extra: pip install fetchproxy[spark].",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (archive, backfill, verify, report, merge, reindex, restore):
    app.command()(command)


@app.callback()
def _pipeline() -> None:
    """A group, also while it has one command."""
