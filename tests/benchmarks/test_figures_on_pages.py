"""Figures in the prose of README and docs are those of benchmarks/results, rounded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import goals

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Figure:
    page: str
    words: str  # as they stand on the page; `value` is the number in them
    value: float
    part: str
    row: str
    digits: int  # the result is rounded to so many


FIGURES = (
    Figure("README.md", "arrives 0.2 ms later than directly", 0.2,
           "tail", goals.TAIL_LATENCY.words, 1),
    Figure("docs/compare.md", "0.2 ms on two shared cores", 0.2,
           "tail", goals.TAIL_LATENCY.words, 1),
    Figure("docs/compare.md", "0.19 and 0.20 ms", 0.19,
           "tail", "latency p50 added, in turn, fetchproxy", 2),
    Figure("docs/compare.md", "0.19 and 0.20 ms", 0.2,
           "tail", "latency p50 added, in turn, kroxylicious", 2),
    Figure("docs/compare.md", "0.40 times the CPU", 0.4, "tail", goals.TAIL_CPU.words, 2),
    Figure("docs/compare.md", "and 0.32 times with a consumer", 0.32,
           "tail", "CPU of the proxy, unpaused consumer, fetchproxy / kroxylicious", 2),
    Figure("docs/compare.md", "2.6 times the speed", 2.6,
           "replay", goals.REPLAY_LIBRDKAFKA.words, 1),
    Figure("docs/performance.md", "reads 0.55 times as fast", 0.55,
           "tail", "throughput, unpaused consumer, fetchproxy / direct", 2),
    Figure("docs/performance.md", "0.49 s of CPU for a GB", 0.49,
           "tail", "CPU of the proxy, unpaused consumer, fetchproxy", 2),
    Figure("docs/performance.md", "about 17,000 per second", 17000,
           "connections", "small fetches over 1000 connections, fetchproxy", -3),
    Figure("docs/deploy/sizing.md", "| tail reads | 0.49 s a GB |", 0.49,
           "tail", "CPU of the proxy, unpaused consumer, fetchproxy", 2),
    Figure("docs/deploy/sizing.md", "| archived reads from a folder | 0.9 to 1.0 s a GB |", 0.9,
           "replay", "1 KiB, librdkafka, stock, fetchproxy: CPU of the proxy", 1),
    Figure("docs/deploy/sizing.md", "| archived reads from a folder | 0.9 to 1.0 s a GB |", 1.0,
           "replay", "1 KiB, raw client, 8 connections, fetchproxy: CPU of the proxy", 1),
    Figure("docs/deploy/sizing.md", "| archived reads from S3 | 1.1 s a GB |", 1.1,
           "replay", "S3 with 50 ms: CPU of the proxy", 1),
    Figure("docs/deploy/sizing.md", "records of 1 KiB | 2.9 s a GB", 2.9,
           "archive", "CPU, S3 server, 1 KiB records", 1),
    Figure("docs/deploy/sizing.md", "4.8 to 5.3 in a short run", 4.8,
           "archive", "CPU, S3 server, 1 KiB lz4 records", 1),
    Figure("docs/deploy/sizing.md", "4.8 to 5.3 in a short run", 5.3,
           "archive", "CPU, S3 server, 64 KiB records", 1),
    Figure("docs/deploy/sizing.md", "17,300 a second over 1,000 connections", 17300,
           "connections", "small fetches over 1000 connections, fetchproxy", -2),
    Figure("docs/deploy/sizing.md", "for 19,000 over 100", 19000,
           "connections", "small fetches over 100 connections, fetchproxy", -3),
    Figure("docs/deploy/sizing.md", "took 82 MiB at most on the tail", 82,
           "tail", "memory at most, fetchproxy", 0),
    Figure("docs/deploy/sizing.md", "594 MiB in replays", 594,
           "replay", "memory at most, fetchproxy", 0),
    Figure("docs/deploy/sizing.md", "309 MiB to S3", 309,
           "archive", "memory at most, S3 server, 1 KiB records", 0),
    Figure("docs/deploy/sizing.md", "| each archiver | 43,200 to 86,400 | 39,000 |", 39000,
           "requests", "idle archiver: listings, without those of partitions", -3),
    Figure("docs/deploy/sizing.md", "| | 1,440 | |", 1440,
           "requests", "idle archiver: listings of a partition", 0),
    Figure("docs/deploy/sizing.md", "| each proxy | | 50,000 |", 50000,
           "requests", "idle proxy: listings", -4),
    Figure("docs/deploy/sizing.md", "5 + 1 for each 8 MiB of its log", 6,
           "requests", "a small segment: writes", 0),
    Figure("docs/deploy/sizing.md", "if there is more than one | 2 |", 2,
           "requests", "a small segment: listings", 0),
    Figure("docs/recover/proxy.md", "copied 171 MB/s of records of 1 KiB", 171,
           "archive", "throughput, S3 server, 1 KiB records", 0),
    Figure("docs/recover/proxy.md", "and 86 MB/s of records of 100 bytes", 86,
           "archive", "throughput, S3 server, 100 B records", 0),
    Figure("docs/recover/proxy.md", "the start of a process: 4.4 s", 4.4,
           "recover", "start of a proxy", 1),
    Figure("docs/recover/bucket.md", "archivers and proxies: 4.4 s", 4.4,
           "recover", "start of a proxy", 1),
    Figure("docs/recover/bucket.md", "It read 278 MB/s in the benchmark", 278,
           "recover", "verify", 0),
    Figure("docs/recover/metadata.md", "it restored 161 segments a second", 161,
           "recover", "restore of the metadata topic", 0),
    Figure("docs/recover/topic.md", "a backfill: 5 MB/s", 5,
           "recover", "backfill into a topic", 0),
    Figure("docs/recover/cluster.md", "a backfill: 5 MB/s", 5,
           "recover", "backfill into a topic", 0),
    Figure("docs/recover/cluster.md", "listed the archive: 1.2 s in the benchmark", 1.2,
           "recover", "start of an archive-only node", 1),
    Figure("docs/recover/cluster.md", "with 2,015 segments", 2015,
           "recover", "segments of the archive", 0),
    Figure("docs/recover/fail-over.md", "the start of a node, 1.2 s in the benchmark", 1.2,
           "recover", "start of an archive-only node", 1),
)  # fmt: skip


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.page} {figure.value}")
def test_a_figure_on_a_page_is_that_of_the_results(figure: Figure) -> None:
    page = (ROOT / figure.page).read_text(encoding="utf-8")
    assert " ".join(figure.words.split()) in " ".join(page.split())
    results = ROOT / "benchmarks" / "results" / f"{figure.part}.json"
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"]
    (value,) = [row["value"] for row in rows if row["name"] == figure.row]
    assert round(value, figure.digits) == figure.value
