"""Replay from a distant object store: an S3 server behind a relay that delays requests.

Replay through fetchproxy is compared with raw parallel range reads of the same objects through the
same relay. After a seek to an offset that nothing has read yet, the successive store requests are
counted. This module only measures: the topics and the archive exist already.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks import goals
from benchmarks.contestants import FetchproxyServer
from benchmarks.frame import child
from benchmarks.process_usage import CpuMeter
from benchmarks.raw_fetch import RawConnection
from benchmarks.replayed_topics import MIB, ReplayedTopic, S3Copy, log_objects, presigned_logs
from benchmarks.report import Row, goal_rows, ratios, row
from benchmarks.store_relay import StoreRelay, longest_chain
from lab.s3 import S3Server

LATENCY_MS = 50
# (requests at once, MiB in each): fetchproxy is compared with the best of these.
RAW_WAYS = ((8, 4), (8, 16), (16, 4), (16, 8), (32, 4), (32, 8))
_SETTLE_S = 0.2  # after this time, read-ahead is no longer in flight


class RawReads(NamedTuple):
    mb_per_s: float
    cpu_per_gb: float  # s


@dataclass(slots=True)
class RemoteReplay:
    """One entry for each round or seek."""

    raw_way: tuple[int, int] = (0, 0)  # the best of RAW_WAYS
    raw_mb_per_s: list[float] = field(default_factory=list)
    raw_cpu_per_gb: list[float] = field(default_factory=list)
    proxy_mb_per_s: list[float] = field(default_factory=list)
    proxy_cpu_per_gb: list[float] = field(default_factory=list)
    store_share: list[float] = field(default_factory=list)  # bytes read from the store / served
    cold_round_trips: list[float] = field(default_factory=list)
    cold_ms: list[float] = field(default_factory=list)
    warm_ms: list[float] = field(default_factory=list)


def replay_from_afar(
    upstream: str,
    archive: Path,
    topics: tuple[ReplayedTopic, ReplayedTopic],
    settings: Mapping[str, str],
    rounds: int,
    seeks: int,
    console: Console,
) -> RemoteReplay:
    """Replays the first of `topics` and seeks in the second. Raises PartMissing."""
    replayed, sought = topics
    measured = RemoteReplay()
    with ExitStack() as running:
        server = running.enter_context(S3Server())
        relay = running.enter_context(StoreRelay(server.port, LATENCY_MS))
        copy = S3Copy(server, archive, relay.endpoint_url)
        objects = presigned_logs(copy, archive, replayed.name)
        proxy = running.enter_context(
            FetchproxyServer(upstream, settings, copy.store_url, copy.environment)
        )
        measured.raw_way = _best_raw_way(objects, console)
        for number in range(rounds + 1):
            if number % 2:
                raw = _raw_once(objects, measured.raw_way)
            _proxy_once(proxy, replayed, relay, measured if number else RemoteReplay())
            if not number % 2:
                raw = _raw_once(objects, measured.raw_way)
            if number:
                measured.raw_mb_per_s.append(raw.mb_per_s)
                measured.raw_cpu_per_gb.append(raw.cpu_per_gb)
                console.print(
                    f"S3 with {LATENCY_MS} ms, round {number} of {rounds}, MB/s: "
                    f"raw {raw.mb_per_s:.0f}, fetchproxy {measured.proxy_mb_per_s[-1]:.0f}"
                )
        _seek(proxy, sought, _first_offsets(archive, sought, seeks), relay, measured)
    return measured


def far_rows(measured: RemoteReplay) -> list[Row]:
    at_once, mib = measured.raw_way
    far = f"S3 with {LATENCY_MS} ms"
    return [
        *goal_rows(goals.REPLAY_S3, ratios(measured.proxy_mb_per_s, measured.raw_mb_per_s)),
        *goal_rows(goals.FIRST_RECORD, measured.cold_round_trips, measured.warm_ms),
        row("time to the first record after a cold seek", "ms", measured.cold_ms),
        row(f"{far}, raw client, 1 connection, fetchproxy", "MB/s", measured.proxy_mb_per_s),
        row(f"{far}, raw range reads, {at_once} of {mib} MiB", "MB/s", measured.raw_mb_per_s),
        row(f"{far}, bytes read from the store / served", "x", measured.store_share),
        row(f"{far}: CPU of the proxy", "s/GB", measured.proxy_cpu_per_gb),
        row(f"{far}: CPU of the raw range reads", "s/GB", measured.raw_cpu_per_gb),
    ]


def _best_raw_way(objects: Sequence[tuple[str, int]], console: Console) -> tuple[int, int]:
    speeds = {way: _raw_once(objects, way).mb_per_s for way in RAW_WAYS}
    text = ", ".join(f"{n} of {mib} MiB {speed:.0f}" for (n, mib), speed in speeds.items())
    console.print(f"raw range reads with {LATENCY_MS} ms, MB/s: {text}")
    return max(speeds, key=lambda way: speeds[way])


def _raw_once(objects: Sequence[tuple[str, int]], way: tuple[int, int]) -> RawReads:
    at_once, mib = way
    arguments = {"objects": objects, "concurrency": at_once, "part_bytes": mib * MIB}
    outcome = child("benchmarks.range_reads", stdin=json.dumps(arguments))
    size = outcome["bytes"]
    return RawReads(size / 1e6 / outcome["seconds"], outcome["cpu_seconds"] / (size / 1e9))


def _proxy_once(
    proxy: FetchproxyServer, topic: ReplayedTopic, relay: StoreRelay, measured: RemoteReplay
) -> None:
    relay.take()
    meter = CpuMeter({"proxy": proxy.pid})
    arguments = {
        "bootstrap": proxy.bootstrap,
        "topic": topic.name,
        "ends": topic.ends,
        "connections": 1,
        "partitions_max": len(topic.ends),
    }
    outcome = child("benchmarks.raw_fetch", json.dumps(arguments))
    size = outcome["bytes"]
    measured.proxy_mb_per_s.append(size / 1e6 / outcome["seconds"])
    measured.proxy_cpu_per_gb.append(meter.spent()["proxy"] / (size / 1e9))
    measured.store_share.append(sum(each.size_bytes for each in relay.take()) / size)


def _first_offsets(archive: Path, topic: ReplayedTopic, count: int) -> list[int]:
    """The base offsets of `count` random segments, without the first segment."""
    bases = [int(path.name[:20]) for path, _ in log_objects(archive, topic.name)][1:]
    return random.Random(3).sample(bases, min(count, len(bases)))


def _seek(
    proxy: FetchproxyServer,
    topic: ReplayedTopic,
    offsets: Sequence[int],
    relay: StoreRelay,
    measured: RemoteReplay,
) -> None:
    """The proxy knows the topic and its segments, but has not read the segments sought."""
    with RawConnection(proxy.bootstrap) as connection:
        connection.first_record_ms(topic.name, 0, 0)
        for offset in offsets:
            time.sleep(_SETTLE_S)
            relay.take()
            began = time.monotonic()
            measured.cold_ms.append(connection.first_record_ms(topic.name, 0, offset))
            responded = time.monotonic()
            measured.warm_ms.append(connection.first_record_ms(topic.name, 0, offset))
            # Requests that are still in flight were not needed for the response.
            needed = [e for e in relay.take() if e.began >= began and e.ended <= responded]
            measured.cold_round_trips.append(longest_chain(needed))
