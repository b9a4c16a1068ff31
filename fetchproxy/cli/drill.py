"""`fetchproxy drill`: makes the store or brokers of a running process fail, and tells what its
readers felt.

The process injects the fault and ends it by itself. This command asks once a second how it goes, by
which the process also knows that somebody is still there. What readers felt are differences of the
process's own metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import typer

from fetchproxy.cli import options
from fetchproxy.cli.console_client import ConsoleClient, TokenFile
from fetchproxy.cli.running import run_to_end, users_errors
from fetchproxy.config.values import DURATION
from fetchproxy.errors import ConfigError
from fetchproxy.runtime.drills import Fault

_ASK_INTERVAL_S = 1.0
_PATH = "/api/drill"
# A process that does not answer so often has more than a drill.
_FAILURES_MAX = 10
MetricSums = Mapping[str, float]  # sums over all series, and by `name{value of a label}`


@dataclass(frozen=True, slots=True)
class DrillEffects:
    """What readers felt. `longest_wait_s`: how long readers waited and none got archived records,
    as seen once a second."""

    longest_wait_s: float
    empty_responses: int
    errors: int
    damaged_chunks: int
    store_errors: int
    cache_bytes: int
    store_bytes: int
    tail_bytes: int

    def lines(self) -> Sequence[str]:
        figures = {
            "longest time in which readers waited and none got records, in s": self.longest_wait_s,
            "fetches that got no records by their deadline": self.empty_responses,
            "errors that readers of the archive got": self.errors,
            "damaged chunks that were found and not served": self.damaged_chunks,
            "operations of the store that failed": self.store_errors,
            "bytes served from the cache": self.cache_bytes,
            "bytes read from the store": self.store_bytes,
            "bytes relayed from the brokers": self.tail_bytes,
        }
        width = max(map(len, figures))
        return [f"{text:{width}}  {figure:.0f}" for text, figure in figures.items()]


def drill_effects(readings: Sequence[tuple[float, MetricSums]]) -> DrillEffects:
    """From at least two readings of the metrics, each with its time (s). Pure."""
    (_, first), (_, last) = readings[0], readings[-1]

    def rise(name: str) -> int:
        return round(last.get(name, 0.0) - first.get(name, 0.0))

    longest_s, since = 0.0, readings[0][0]
    for (_, before), (count, now) in pairwise(readings):
        data = "fetchproxy_purgatory_completed_total{data}"
        expired = "fetchproxy_purgatory_completed_total{deadline}"
        has_data = now.get(data, 0) > before.get(data, 0)
        waited = now.get(expired, 0) > before.get(expired, 0)
        if has_data or not (waited or now.get("fetchproxy_purgatory_entries", 0)):
            since = count
        longest_s = max(longest_s, count - since)
    return DrillEffects(
        longest_wait_s=longest_s,
        empty_responses=rise("fetchproxy_purgatory_completed_total{deadline}"),
        errors=rise("fetchproxy_purgatory_completed_total{error}")
        + rise("fetchproxy_catch_outcomes_total{passed_on}"),
        damaged_chunks=rise("fetchproxy_corrupt_chunks_total"),
        store_errors=rise("fetchproxy_store_request_errors_total"),
        cache_bytes=rise("fetchproxy_chunk_cache_hit_bytes_total"),
        store_bytes=rise("kafka_server_brokertopicmetrics_remotefetchbytes_total"),
        tail_bytes=rise("fetchproxy_relayed_bytes_total{to_client}"),
    )


def figures_in(text: str) -> MetricSums:
    """The metrics of a scrape, summed up over all workers; those with one more label also by its
    value.
    """
    from prometheus_client.parser import text_string_to_metric_families

    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
            values = [value for label, value in sample.labels.items() if label != "worker"]
            if len(values) == 1:
                by_value = f"{sample.name}{{{values[0]}}}"
                figures[by_value] = figures.get(by_value, 0.0) + sample.value
    return figures


@options.shares("console")
def drill(
    context: typer.Context,
    fault: Annotated[Fault, typer.Argument(help="What fails.")],
    time: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long it fails, such as 30s or 5m.")
    ] = "5m",
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="With broker-down: only this broker. Default: all brokers."
        ),
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Make the store or the brokers fail for a running process, and report what its readers
    noticed.

    The process must have been started with drills.enabled = true and a --console, on this machine.
    The fault ends after --for, shortly after this command exits for any reason, or after an hour,
    whichever comes first. The archive is safe: while the store is down or its reads are damaged,
    the process does not write to it.

    Exit codes: 0 the drill is over; 2 it was refused, or the process does not respond; 130 the
    command was interrupted, and the fault is over.
    """
    with users_errors():
        config = options.read_config(context)
        if config.console.listen is None:
            raise ConfigError("which process? use --console HOST:PORT")
        try:
            for_s = int(str(DURATION.read(time))) / 1000
        except ValueError as error:
            raise ConfigError(f"--for {time}: {error}") from None
        if broker is not None and fault is not Fault.BROKER_DOWN:
            raise ConfigError("--broker can be used only with broker-down")
        client = ConsoleClient(config.console.listen, token_file or config.console.token_file)
        readings = run_to_end(_Drill(client).run(fault, for_s, broker))
    typer.echo(f"{fault} is over. What readers of this process noticed:")
    for line in drill_effects(readings).lines():
        typer.echo(f"  {line}")


@dataclass(frozen=True, slots=True)
class _Drill:
    console: ConsoleClient

    async def run(
        self, fault: Fault, for_s: float, broker: str | None
    ) -> Sequence[tuple[float, MetricSums]]:
        clock = asyncio.get_running_loop().time
        readings = [(clock(), await self._read_sums())]
        parameters = {"fault": fault, "for_s": f"{for_s}", **({"broker": broker} if broker else {})}
        await asyncio.to_thread(self.console.send, "POST", _PATH, **parameters)
        typer.echo(f"{fault} for {for_s:.0f} s; press Ctrl-C to end it at once")
        failures = 0
        try:
            while True:
                await asyncio.sleep(_ASK_INTERVAL_S)
                try:
                    state = await asyncio.to_thread(self.console.json, _PATH)
                    readings.append((clock(), await self._read_sums()))
                except ConfigError:
                    failures += 1
                    if failures == _FAILURES_MAX:
                        raise
                    continue
                failures = 0
                if state["fault"] is None:
                    return readings
        finally:
            await asyncio.shield(asyncio.to_thread(self.console.send, "DELETE", _PATH))

    async def _read_sums(self) -> MetricSums:
        text = await asyncio.to_thread(self.console.get, "/metrics")
        return await asyncio.to_thread(figures_in, text.decode())
