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
    # Without the backslash rich takes the brackets for markup, and shows nothing of them.
    help="Jobs over a whole archive on Spark; they need, in a clone: pip install -e '.\\[spark]'.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (archive, backfill, verify, report, merge, reindex, restore):
    app.command()(command)


@app.callback()
def _pipeline() -> None:
    """A group, also while it has one command."""
