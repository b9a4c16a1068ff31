"""`fetchproxy archive`: the archiver alone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fetchproxy.app import run_archiver
from fetchproxy.cli import options
from fetchproxy.cli.running import EXIT_INTERRUPTED, run, users_errors
from fetchproxy.errors import ConfigError
from fetchproxy.observability.logs import configure_logging

Once = Annotated[
    bool,
    typer.Option(
        "--once",
        envvar="FETCHPROXY_ONCE",
        help="Copy all that is there up to the last stable offset, with a last short segment; "
        "then exit.",
    ),
]


def archive(
    context: typer.Context,
    bootstrap: options.Bootstrap = None,
    store: options.Store = None,
    archive: options.Archive = None,
    once: Once = False,
    console: options.Console = None,
    create: options.Create = False,
    config_file: options.ConfigFile = None,
    assignments: options.Assignments = None,
) -> None:
    """Copy topics to the store, without serving clients. Ends on SIGINT or SIGTERM."""
    with users_errors():
        config = options.read_config(context)
        options.store_url(config)
        if config.archive.topics is None:
            raise ConfigError(
                "archive.topics is not set; give --archive REGEX (or FETCHPROXY_ARCHIVE_TOPICS)"
            )
        configure_logging(config.log, sys.stderr)
    finished = run(run_archiver(config, once=once, create=create, limits=options.limits(context)))
    if once and finished is None:
        raise typer.Exit(EXIT_INTERRUPTED)
