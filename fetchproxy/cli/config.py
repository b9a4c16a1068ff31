"""`fetchproxy config`: writes, checks and shows the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fetchproxy.cli import options
from fetchproxy.cli.running import EXIT_FAULTS, users_errors
from fetchproxy.config.document import commented_toml, values_as_toml
from fetchproxy.config.rules import relation_notes
from fetchproxy.config.values import mask_text
from fetchproxy.errors import ConfigError

Check = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Check this file, the environment and --set, and print only their errors.",
    ),
]
Show = Annotated[
    bool,
    typer.Option("--show", help="Print each key with its effective value and that value's source."),
]


@options.shares()
def config(
    context: typer.Context,
    check: Check = None,
    show: Show = False,
) -> None:
    """Print a complete, commented configuration file, check one, or show the effective values.

    `fetchproxy config > fetchproxy.toml` writes a file for `--config`. It has every key with its
    meaning; keys with their default value are commented out. Secrets are never printed.

    Exit codes: 0 success; 1 --check found errors; 2 the configuration cannot be used.
    """
    with users_errors():
        if check is not None and (show or options.is_given(context, "config_file")):
            raise ConfigError(
                "--check FILE cannot be combined with --show or --config: it checks FILE"
            )
    if check is not None:
        _check(context, check)
        return
    with users_errors():
        loaded = options.read_settings(context, context.params["config_file"])
    typer.echo(values_as_toml(loaded) if show else commented_toml(loaded), nl=False)


def _check(context: typer.Context, file: Path) -> None:
    try:
        loaded = options.read_settings(context, file)
    except ConfigError as error:
        for fault in error.faults:
            typer.echo(mask_text(fault), err=True)
        raise typer.Exit(EXIT_FAULTS) from error
    for note in relation_notes(loaded.config):
        typer.echo(f"{file}: {note}")
    typer.echo(f"{file}: no faults")
