"""`fetchproxy sizing`: what a load needs and costs. It asks no broker and no store."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from typing import Annotated

import typer
from rich.table import Table

from fetchproxy.cli import options
from fetchproxy.cli.console_client import terminal
from fetchproxy.cli.running import users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.sizing.coefficients import Prices, prices_of
from fetchproxy.sizing.estimate import DAY_S, Estimate, Workload, estimate
from fetchproxy.sizing.table import rows

_KEEP_ALL_DAYS = 365.0

MegabytesPerSecond = Annotated[
    float,
    typer.Option(min=0, help="What producers write into the archived topics, in MB/s (10⁶ bytes)."),
]
Partitions = Annotated[int, typer.Option(min=1, help="Archived partitions.")]
Days = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="How long the archive keeps records. Default: archive.remote_log_retention_ms, or a "
        "year if that is unlimited.",
    ),
]
Readers = Annotated[
    float,
    typer.Option(
        min=0,
        help="How many times new records are read through proxies. If producers use the "
        "proxies too, add one.",
    ),
]
ReplayMegabytes = Annotated[
    float, typer.Option(min=0, help="What clients read from the archive, in MB/s on average.")
]
Ratio = Annotated[
    float,
    typer.Option(min=0.01, help="Bytes in the store per byte of the log; with zstd about 0.4."),
]
AsJson = Annotated[
    bool, typer.Option("--json", envvar="FETCHPROXY_JSON", help="Print JSON, for programs.")
]


@options.shares()
def sizing(
    context: typer.Context,
    mb_per_s: MegabytesPerSecond,
    partitions: Partitions,
    days: Days = None,
    readers: Readers = 1,
    replay_mb_per_s: ReplayMegabytes = 0,
    ratio: Ratio = 1,
    as_json: AsJson = False,
) -> None:
    """Estimate machines, memory, disk, network, requests and money for a load.

    The size and age of segments, the metadata manager and the prices come from the configuration:
    try others with --set. Without prices, example prices are used. The archive is assumed to be as
    old as its retention. docs/deploy/sizing.md explains each figure.

    Exit codes: 0 success; 2 the configuration cannot be used.
    """
    with users_errors():
        config = options.read_config(context)
    load = Workload(
        mb_per_s=mb_per_s,
        partitions=partitions,
        retention_days=_days(config) if days is None else days,
        readers=readers,
        replay_mb_per_s=replay_mb_per_s,
        segment_bytes=config.archive.segment_bytes_max,
        segment_age_s=config.archive.segment_age_max_ms / 1000,
        ratio=ratio,
        manager=config.metadata.manager,
        recovery_point_s=config.archive.recovery_point_ms / 1000,
        state_interval_s=config.archive.cluster_state_interval_ms / 1000,
    )
    with users_errors():
        _check_finite(load)
    price_list = prices_of(config.prices)
    estimated = estimate(load, price_list)
    if as_json:
        typer.echo(
            json.dumps({"load": asdict(load), "prices": asdict(price_list), **asdict(estimated)})
        )
    else:
        _print(estimated, price_list)


def _days(config: Config) -> float:
    kept_ms = config.archive.remote_log_retention_ms
    return kept_ms / 1000 / DAY_S if kept_ms >= 0 else _KEEP_ALL_DAYS


def _check_finite(load: Workload) -> None:
    """Raises ConfigError for `nan` and `inf`, which are numbers to the options' parser."""
    for name, value in asdict(load).items():
        if isinstance(value, float) and not isfinite(value):
            raise ConfigError(f"{name} = {value}: expected a number")


def _print(estimated: Estimate, prices: Prices) -> None:
    table = Table(show_header=False, box=None)
    for row in rows(estimated):
        table.add_row(*row)
    terminal().print(table)
    typer.echo(f"Prices: {prices.name}.")
