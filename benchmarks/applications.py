"""Measures whether pacing by appetite slows clients down.

The clients are applications that nap, rebalance or are killed, and many stock librdkafka clients at
once. Each reads a topic whose first part is in the archive and whose rest is on the broker, through
a proxy that paces and through one that does not. If nothing of the topic is archived, the many
clients also read from the broker directly.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median

from rich.console import Console

from benchmarks.contestants import DIRECT, FETCHPROXY, FetchproxyServer
from benchmarks.frame import Outcome, Part, Size, in_turn
from benchmarks.group_reads import APPLICATIONS, fill_numbered, read_as
from benchmarks.replayed_topics import move_to_archive
from benchmarks.report import Row, ratios, row
from benchmarks.stock_reader import CONSUME, READY, WHEN_TOLD
from lab.kafka import KafkaServer

UNPACED = "fetchproxy, not paced"
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    UNPACED: {"gateway.pace_by_appetite": "false"},
    FETCHPROXY: {},
}
_TOPIC, _PARTITIONS, _RECORD_BYTES = "applications", 4, 100
_PROJECT = Path(__file__).parents[1]
_END_S = 60.0
_NOT_SLOWER = 1 / 0.97
_UNFAIR_MAX = 0.10
SecondsByWay = dict[tuple[str, str], list[float]]  # (what is measured, the way)


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    seconds_by_way: SecondsByWay = {}
    with (
        tempfile.TemporaryDirectory(prefix="applications-") as folder,
        KafkaServer(data_dir=Path(folder) / "kafka") as kafka,
    ):
        store = (Path(folder) / "archive").as_uri()
        (Path(folder) / "archive").mkdir()
        kafka.create_topic(_TOPIC, _PARTITIONS, {"segment.bytes": str(4 * 1024 * 1024)})
        ends = fill_numbered(kafka.bootstrap, _TOPIC, _PARTITIONS, options.records, _RECORD_BYTES)
        move_to_archive(
            kafka, _TOPIC, [end * options.archived // 100 for end in ends.values()], store
        )
        for number in range(options.rounds):
            if options.what != "crowd":
                _read_as_applications(kafka, store, ends, number, console, seconds_by_way)
            if options.what != "groups":
                _read_as_crowd(kafka, store, options, number, console, seconds_by_way)
    return Outcome(rows_of(seconds_by_way))


def _read_as_applications(
    kafka: KafkaServer,
    store: str,
    ends: Mapping[int, int],
    number: int,
    console: Console,
    seconds_by_way: SecondsByWay,
) -> None:
    for name in APPLICATIONS:
        for way in in_turn((UNPACED, FETCHPROXY), number):
            with FetchproxyServer(kafka.bootstrap, _SETTINGS[way], store) as proxy:
                outcome = read_as(name, proxy.bootstrap, _TOPIC, ends)
                paced = proxy.metric("fetchproxy_paced_answers_total")
            console.print(f"{name}, {way}: {outcome}, {paced:.0f} paced", markup=False)
            seconds_by_way.setdefault((name, way), []).append(outcome.seconds)


def _read_as_crowd(
    kafka: KafkaServer,
    store: str,
    options: argparse.Namespace,
    number: int,
    console: Console,
    seconds_by_way: SecondsByWay,
) -> None:
    ways = (UNPACED, FETCHPROXY) if options.archived else (UNPACED, FETCHPROXY, DIRECT)
    for way in in_turn(ways, number):
        if way == DIRECT:
            note(seconds_by_way, way, crowd(kafka.bootstrap, options.readers, options.records))
            continue
        with FetchproxyServer(kafka.bootstrap, _SETTINGS[way], store) as proxy:
            seconds = crowd(proxy.bootstrap, options.readers, options.records)
            pauses = proxy.metric("fetchproxy_client_pauses_total")
            paced = proxy.metric("fetchproxy_paced_answers_total")
        text = f"{len(seconds)} readers, {way}: {pauses:.0f} pauses, {paced:.0f} paced"
        console.print(text, markup=False)
        note(seconds_by_way, way, seconds)


def crowd(bootstrap: str, readers: int, records: int) -> list[float]:
    """The seconds each reader took after the common start. Raises CalledProcessError, OSError."""
    command = [sys.executable, "-m", "benchmarks.stock_reader", CONSUME, bootstrap, _TOPIC]
    command += [str(records), str(records // 2), str(_PARTITIONS), WHEN_TOLD]
    with ExitStack() as running:
        children = []
        for _ in range(readers):
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_PROJECT
            )
            running.enter_context(child)
            running.callback(child.kill)
            children.append(child)
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline().strip() != READY:
                raise subprocess.CalledProcessError(child.wait(_END_S), command)
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        return [_seconds(child, records) for child in children]


def _seconds(child: subprocess.Popen[str], records: int) -> float:
    assert child.stdout is not None
    line = child.stdout.readline()
    if child.wait(_END_S):
        raise subprocess.CalledProcessError(child.returncode, child.args)
    rates = json.loads(line)
    first = records // 2
    return float(first / rates["first"] + (records - first) / rates["later"])


def note(seconds_by_way: SecondsByWay, way: str, seconds: Sequence[float]) -> None:
    what = f"{len(seconds)} at once"
    seconds_by_way.setdefault((f"{what}: median", way), []).append(median(seconds))
    seconds_by_way.setdefault((f"{what}: the last", way), []).append(max(seconds))
    spread = max(abs(each - mean(seconds)) for each in seconds) / mean(seconds)
    seconds_by_way.setdefault((f"{what}: furthest from the mean", way), []).append(spread)


def rows_of(seconds_by_way: SecondsByWay) -> list[Row]:
    rows = []
    for (name, way), values in seconds_by_way.items():
        spread = name.endswith("from the mean")
        unit, at_most = ("x", _UNFAIR_MAX) if spread else ("s", None)
        rows.append(row(f"{name}: {way}", unit, values, at_most=at_most))
        if way == FETCHPROXY and not spread:
            times = ratios(values, seconds_by_way[name, UNPACED])
            rows.append(row(f"{name}: paced / not paced", "x", times, at_most=_NOT_SLOWER))
    return rows


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--what", choices=("all", "groups", "crowd"), default="all")


PART = Part(
    "applications",
    "Stock librdkafka clients that do more than read, and many of them",
    __doc__ or "",
    [
        Size("rounds", 5, 1, "of both ways in turn"),
        Size("records", 1_000_000, 200_000, "of 100 bytes"),
        Size("readers", 100, 4, "at once"),
        Size("archived", 50, 50, "% of the topic, which the broker has no longer"),
    ],
    measure,
    _add_options,
)

if __name__ == "__main__":
    sys.exit(PART.main())
