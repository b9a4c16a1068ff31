"""`fetchproxy top`, `topics` and `lag`: what a process does, or what the archive has."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from fetchproxy.archive import stored_archive, wall_clock_ms
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cli import options
from fetchproxy.cli.console_client import (
    AsJson,
    ConsoleClient,
    ConsoleUrl,
    JsonRow,
    TokenFile,
    json_text,
    print_rows,
    table,
    terminal,
)
from fetchproxy.cli.running import run, run_to_end, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.config.values import harmless
from fetchproxy.console.collect import StatusCollector, StatusSources
from fetchproxy.console.process import ProcessFacts
from fetchproxy.console.rows import LIMIT_MAX, NotThere, PageQuery, Rows
from fetchproxy.errors import ConfigError
from fetchproxy.metadata.archiver_positions import RecoveryPoint
from fetchproxy.observability.health import Health
from fetchproxy.tls.reloading import upstream_context

# Moves the cursor to the corner and clears the screen.
_REDRAW = "\x1b[H\x1b[2J"
_HEADLINES_MAX = 5
_READERS = (
    *(("address", "address"), ("client id", "client_id"), ("user", "user"), ("group", "group")),
    *(("served/s", "served_bytes_per_s"), ("from store/s", "store_bytes_per_s")),
    *(("served", "served_bytes"), ("from store", "store_bytes"), ("GET", "gets")),
    *(("LIST", "lists"), ("PUT", "puts"), ("throttled s", "throttle_seconds"), ("USD", "usd")),
)
_TOPICS = (
    *(("topic", "topic"), ("partitions", "partitions"), ("faulty", "faulty")),
    *(("lag", "lag_offsets"), ("size", "size_bytes"), ("seconds left", "deleted_in_seconds")),
    ("USD/month", "storage_usd_per_month"),
)
_LAG = (
    *(("topic", "topic"), ("partition", "partition"), ("archive end", "archive_end")),
    *(("log start", "log_start_offset"), ("log end", "log_end_offset"), ("lag", "lag_offsets")),
    *(("margin", "margin_offsets"), ("seconds left", "deleted_in_seconds"), ("role", "role")),
)

LookInterval = Annotated[
    float,
    typer.Option(
        "--interval",
        envvar="FETCHPROXY_TOP_INTERVAL",
        min=0.5,
        max=3600,
        metavar="SECONDS",
        help="Time between two refreshes.",
    ),
]
OneLook = Annotated[
    bool, typer.Option("--once", envvar="FETCHPROXY_ONCE", help="Print the list once and exit.")
]
RowsMax = Annotated[
    int,
    typer.Option(
        "--rows", envvar="FETCHPROXY_TOP_ROWS", min=1, max=LIMIT_MAX, help="Maximum number of rows."
    ),
]


def top(
    console_url: ConsoleUrl = None,
    token_file: TokenFile = None,
    interval_s: LookInterval = 2.0,
    once: OneLook = False,
    rows_max: RowsMax = 20,
    json: AsJson = False,
) -> None:
    """Show who reads history from a running process and what it costs, refreshed until Ctrl-C.

    The clients with most bytes come first. Rates are averages since the previous refresh. --json
    prints the list once.

    Exit codes: 0 done; 2 the console does not respond.
    """
    with users_errors():
        if console_url is None:
            raise ConfigError("use --console URL: `top` reads from a running process")
        client = ConsoleClient(console_url, token_file)
    run(_top(client, interval_s, rows_max, once=once or json, json=json))


async def _top(
    client: ConsoleClient, interval_s: float, rows_max: int, *, once: bool, json: bool
) -> None:
    console, clock = terminal(), asyncio.get_running_loop().time
    before: Mapping[tuple[str, ...], JsonRow] = {}
    looked_at = clock()
    while True:
        status = await asyncio.to_thread(client.json, "/api/status", rows_max="0")
        rows = await asyncio.to_thread(client.rows, "/api/readers", rows_max)
        now = clock()
        with_rate = with_rates(rows, before, now - looked_at)
        if json:
            typer.echo(json_text(with_rate))
        else:
            if console.is_terminal and not once:
                sys.stdout.write(_REDRAW)
            console.print(_screen(status, with_rate))
        if once:
            return
        before, looked_at = {_partition_key(row): row for row in rows}, now
        await asyncio.sleep(interval_s)


def _partition_key(row: JsonRow) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in ("address", "client_id", "user", "group"))


def with_rates(
    rows: Sequence[JsonRow], before: Mapping[tuple[str, ...], JsonRow], seconds: float
) -> list[dict[str, Any]]:
    """Bytes per second since `before`; None at the first look, and for clients that came since."""
    rows_with_rates = []
    for row in rows:
        old = before.get(_partition_key(row))
        rates = {
            f"{name}_per_s": None
            if old is None
            else round(max(row[name] - old[name], 0) / max(seconds, 1e-3))
            for name in ("served_bytes", "store_bytes")
        }
        rows_with_rates.append({**row, **rates})
    return rows_with_rates


def _screen(status: Any, rows: Sequence[JsonRow]) -> Group:
    try:
        relay, reads = status["relay"], status["remote_reads"]
        first = (
            f"fetchproxy {status['version']} ({status['mode']}): "
            f"{relay['connections']} connections, {reads['in_flight']} reads of the store in "
            f"flight, {reads['waiting']} fetches wait; up {status['uptime_seconds']:.0f} s"
        )
        headlines = [*status["missing"], *status["headlines"]][:_HEADLINES_MAX]
        lost_now = _lost_now(status["recovery_point"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"/api/status: {error} is missing; is this a console?") from error
    lines = [Text(harmless(str(line))) for line in (first, *lost_now, *headlines)]
    return Group(*lines, Text(""), table(rows, _READERS))


def _lost_now(point: Any) -> list[str]:
    """`point`: `recovery_point` of /api/status. No line without a journal."""
    if point is None:
        return []
    return [RecoveryPoint(point["age_ms"], point["records"]).in_words()]


@options.shares("bootstrap", "store")
def topics(
    context: typer.Context,
    console_url: ConsoleUrl = None,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """List topics with partitions, lag and size: of a running process, or of store and brokers.

    Without --console, it reads from the archive and the brokers. A dash means that a value is
    unknown.

    Exit codes: 0 done; 2 the console, or the archive, could not be read.
    """
    rows = _rows(context, console_url, token_file, topic=None)
    print_rows(rows, _TOPICS, json=json)


@options.shares("bootstrap", "store")
def lag(
    context: typer.Context,
    topic: options.Topic = None,
    console_url: ConsoleUrl = None,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Show for each partition how far the archive is behind the brokers, and how much time is left.

    `lag` counts the offsets that only the brokers have. `margin` counts those that both have; below
    0, records are lost. Without --console, it reads from the archive and the brokers.

    Exit codes: 0 done; 2 the console, or the archive, could not be read.
    """
    rows = _rows(context, console_url, token_file, topic=topic, partitions=True)
    for row in rows:
        row["archive_end"] = row["archived"][-1]["last"] + 1 if row["archived"] else None
    print_rows(rows, _LAG, json=json)


def _rows(
    context: typer.Context,
    console_url: str | None,
    token_file: Any,
    *,
    topic: str | None,
    partitions: bool = False,
) -> list[dict[str, Any]]:
    if console_url is None:
        with users_errors():
            config = options.read_logged(context)
        return run_to_end(_rows_from_store(config, topic, partitions=partitions))
    with users_errors():
        client = ConsoleClient(console_url, token_file)
        if not partitions:
            return [dict(row) for row in client.rows("/api/topics")]
        names = [topic] if topic else [str(row["topic"]) for row in client.rows("/api/topics")]
        return [dict(row) for name in names for row in client.partitions(name)]


async def _rows_from_store(
    config: Config, topic: str | None, *, partitions: bool
) -> list[dict[str, Any]]:
    """The rows that the API of a process would give, from one look. Raises ConfigError."""
    async with _opened_rows(config) as rows:
        try:
            names = (
                [topic]
                if topic
                else [topic_row.topic for topic_row in await _all_pages(rows.topics)]
            )
            if not partitions:
                return [asdict(topic_row) for topic_row in await _all_pages(rows.topics)]
            return [
                asdict(partition)
                for name in names
                for partition in await _all_pages(
                    lambda query, name=name: rows.partitions(name, query)
                )
            ]
        except NotThere as error:
            raise ConfigError(f"neither archive nor brokers have {error}") from error


@asynccontextmanager
async def _opened_rows(config: Config) -> AsyncIterator[Rows]:
    """Raises ConfigError if the archive cannot be read."""
    async with AsyncExitStack() as stack:
        storage, rlmm = await stack.enter_async_context(stored_archive(config))
        cluster = None
        if not config.archive_only.enabled:
            tls = upstream_context(config.cluster, config.tls)
            cluster = await stack.enter_async_context(Cluster(config.cluster, tls=tls))
        sources = StatusSources(mode="command", health=Health())
        collector = StatusCollector(config, storage, rlmm, cluster, sources)
        await collector.update()
        store = (await collector()).store
        if store.up is False:
            raise ConfigError(f"the archive cannot be read: {store.last_error}")
        yield Rows(
            collector, storage.accounts, ProcessFacts(config, storage.objects, wall_clock_ms)
        )


async def _all_pages(read_page: Any) -> list[Any]:
    pages: list[Any] = []
    after: str | None = ""
    while after is not None:
        page = await read_page(PageQuery(after, LIMIT_MAX))
        pages += page.items
        after = page.next
    return pages
