"""`python -m benchmarks.fanin`: how much is read from the store when many consumers replay a topic.

Each consumer is a connection of a client that only counts bytes. All begin at offset 0 at the same
time and continue at their own pace. A relay in front of the S3 server counts the bytes of its
answers, so the figure does not depend on the proxy's own metrics.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import goals
from benchmarks.contestants import FetchproxyServer
from benchmarks.filling import Shape
from benchmarks.frame import Outcome, Part, Size, child
from benchmarks.process_usage import CpuMeter, resident_mib_max
from benchmarks.replayed_topics import MIB, S3Copy, archived_topic
from benchmarks.report import Row, goal_rows, row
from benchmarks.store_relay import StoreRelay
from lab.kafka import KafkaServer
from lab.s3 import S3Server

PARTITIONS = 4
LATENCY_MS = 10
TOPIC = "benchmark-fan-in"
_GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class FanIn:
    """Bytes of the topic's batches, of the store's responses and of all fetches by the
    consumers.
    """

    topic_bytes: int
    store_bytes: int
    served_bytes: int
    seconds: float
    proxy_cpu: float
    client_cpu: float
    resident_mib: float

    @property
    def store_gib_a_gib(self) -> float:
        """GiB read from the store for each GiB of the topic."""
        return self.store_bytes / self.topic_bytes


def rows_of(fan_in: FanIn) -> list[Row]:
    gigabytes = fan_in.served_bytes / 1e9
    return [
        *goal_rows(goals.FAN_IN, [fan_in.store_gib_a_gib]),
        row("size of the topic", "GiB", [fan_in.topic_bytes / _GIB]),
        row("all consumers together", "MB/s", [fan_in.served_bytes / 1e6 / fan_in.seconds]),
        row("CPU of the proxy", "s/GB", [fan_in.proxy_cpu / gigabytes]),
        row("CPU of the consumers", "s/GB", [fan_in.client_cpu / gigabytes]),
        row("memory at most, fetchproxy", "MiB", [fan_in.resident_mib]),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="settings",
        help="for fetchproxy",
    )  # fmt: skip


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    settings = dict(text.split("=", 1) for text in options.settings)
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="fan-in-")))
        server = running.enter_context(S3Server())
        relay = running.enter_context(StoreRelay(server.port, LATENCY_MS))
        kafka = running.enter_context(KafkaServer())
        console.print(f"writing {options.mib} MiB")
        size = options.mib * MIB
        shape = Shape(1024, "none")
        topic = archived_topic(kafka, TOPIC, shape, PARTITIONS, size, folder.as_uri())
        copy = S3Copy(server, folder, relay.endpoint_url)
        proxy = running.enter_context(
            FetchproxyServer(kafka.bootstrap, settings, copy.store_url, copy.environment)
        )
        console.print(f"{options.consumers} consumers replay it")
        relay.take()
        meter = CpuMeter({"proxy": proxy.pid})
        arguments = {
            "bootstrap": proxy.bootstrap,
            "topic": TOPIC,
            "ends": topic.ends,
            "connections": options.consumers,
            "partitions_max": PARTITIONS,
        }
        outcome = child("benchmarks.raw_fetch", json.dumps(arguments))
        fan_in = FanIn(
            topic_bytes=outcome["bytes"] // options.consumers,
            store_bytes=sum(each.size_bytes for each in relay.take()),
            served_bytes=outcome["bytes"],
            seconds=outcome["seconds"],
            proxy_cpu=meter.spent()["proxy"],
            client_cpu=outcome["cpu_seconds"],
            resident_mib=resident_mib_max(proxy.pid),
        )
    return Outcome(rows_of(fan_in), {"settings": settings})


PART = Part(
    "fanin",
    "Fan-in: one replay by all consumers",
    __doc__,
    [
        Size("consumers", 100, 12, "that replay at once; more than there are partitions"),
        Size("mib", 1024, 32, "of records of 1 KiB"),
    ],
    measure,
    add_options,
)

if __name__ == "__main__":
    sys.exit(PART.main())
