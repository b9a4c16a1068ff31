"""`python -m benchmarks.workers`: what a second worker adds where clients speak TLS.

One process and two workers (`process.workers`) serve the tail and an archive to a client that
decrypts nothing (`discarding_client`). The tail comes from a broker that repeats recorded responses
(`recorded_broker`), and the archive from a folder. So the server has almost all of both
cores; the rows say how much client and broker took. The same rounds measure the machine's ceiling:
one and two bare relays (`bare_relay`) with the same TLS, client and broker.

The ratio of speeds is that of a machine without other work. "Cores that the server used" tells: one
process that got less than a core has shared it with others. The ratio by CPU seconds holds then.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError

from rich.console import Console

from benchmarks.bare_relay import BareRelay
from benchmarks.certificate import certificate
from benchmarks.contestants import FetchproxyServer
from benchmarks.filling import Shape, fill
from benchmarks.frame import Outcome, Part, Size, child, in_turn
from benchmarks.goals import WORKERS_TAIL
from benchmarks.process_usage import CpuMeter
from benchmarks.recorded_broker import RecordedBroker
from benchmarks.replayed_topics import archived_topic
from benchmarks.report import Row, goal_rows, ratios, row
from lab.errors import PartFailed
from lab.kafka import KafkaServer

TAIL, ARCHIVE = "benchmark-workers-tail", "benchmark-workers-archive"
ONE, TWO, BARE_ONE, BARE_TWO = "one process", "two workers", "one bare relay", "two bare relays"
BY_CPU_TAIL = "the same, tail, by CPU seconds on two cores of its own"
BY_CPU_REPLAY = "the same, replay, by CPU seconds on two cores of its own"
CEILING = "the machine's ceiling, tail: two bare TLS relays : one"
_PARTITIONS = 8
_CONNECTIONS = 16
_RECORDS = Shape(1024, "none")
_GB = 1e9


@dataclass(slots=True)
class Turn:
    """What one contestant did in one round. `cpu`: seconds by who used them."""

    bytes_per_s: float
    seconds: float
    cpu: Mapping[str, float]

    def cpu_s_per_gb(self, who: str) -> float:
        return self.cpu[who] / (self.bytes_per_s * self.seconds / _GB)

    @property
    def all_cpu_s_per_gb(self) -> float:
        return sum(map(self.cpu_s_per_gb, self.cpu))


@dataclass(slots=True)
class Measured:
    """By (topic, contestant): a turn for each round."""

    turns: dict[tuple[str, str], list[Turn]] = field(default_factory=dict)

    def rates(self, topic: str, who: str) -> list[float]:
        return [turn.bytes_per_s for turn in self.turns[topic, who]]


def rows_of(measured: Measured) -> list[Row]:
    def gain(topic: str, two: str, one: str) -> list[float]:
        return ratios(measured.rates(topic, two), measured.rates(topic, one))

    rows = goal_rows(WORKERS_TAIL, gain(TAIL, TWO, ONE), gain(ARCHIVE, TWO, ONE))
    ceiling = gain(TAIL, BARE_TWO, BARE_ONE)
    rows.append(row(CEILING, "x", ceiling))
    for topic, what in ((TAIL, BY_CPU_TAIL), (ARCHIVE, BY_CPU_REPLAY)):
        rows.append(row(what, "x", by_cpu(measured.turns[topic, ONE], measured.turns[topic, TWO])))
    for (topic, who), turns in measured.turns.items():
        what = f"{'tail' if topic == TAIL else 'replay'}, {who}"
        rows.append(row(what, "MB/s", [turn.bytes_per_s / 1e6 for turn in turns]))
        for part in turns[0].cpu:
            cpu = [turn.cpu_s_per_gb(part) for turn in turns]
            rows.append(row(f"{what}: CPU of the {part}", "s/GB", cpu))
        served = [turn.cpu["server"] / turn.seconds for turn in turns]
        rows.append(row(f"{what}: cores that the server used", "cores", served))
    return rows


def by_cpu(one: Sequence[Turn], two: Sequence[Turn]) -> list[float]:
    """The ratio that CPU seconds allow, whoever else has used the machine: two workers have what
    client and broker leave of two cores, and one process has one core.
    """
    return [
        2 * alone.cpu_s_per_gb("server") / both.all_cpu_s_per_gb
        for alone, both in zip(one, two, strict=True)
    ]


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child_pid) for child_pid in text.split()]


@dataclass(frozen=True, slots=True)
class Contestant:
    """`pids`: of the processes that serve, by any names."""

    name: str
    bootstrap: str
    pids: Mapping[str, int]


def contestants(running: ExitStack, broker: RecordedBroker, store: str) -> Iterator[Contestant]:
    pem = certificate(Path(running.enter_context(tempfile.TemporaryDirectory())))
    settings = {"gateway.tls_certificate_file": str(pem), "gateway.permit_ttl_ms": "1d"}
    for name, count in ((ONE, 1), (TWO, 2)):
        all_settings = {**settings, "process.workers": str(count)}
        proxy = running.enter_context(FetchproxyServer(broker.bootstrap, all_settings, store))
        _wait_for_workers(proxy, count)
        pids = [proxy.pid, *children(proxy.pid)]
        yield Contestant(name, proxy.bootstrap, {f"{number}": p for number, p in enumerate(pids)})
    for name, count in ((BARE_ONE, 1), (BARE_TWO, 2)):
        relay = running.enter_context(BareRelay(broker.port, pem, count))
        pids = relay.pids
        yield Contestant(name, relay.bootstrap, {f"{number}": p for number, p in enumerate(pids)})


def _wait_for_workers(server: FetchproxyServer, count: int) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            ready = json.loads(server.get("/readyz"))
        except (URLError, ConnectionError):  # also 503
            ready = {"ready": False}
        if ready["ready"] and ready.get("workers", 1) == count:
            return
        time.sleep(0.1)
    raise PartFailed(f"{count} workers are not ready")


def take_turn(one: Contestant, topic: str, broker: int, seconds: float) -> Turn:
    order = {
        "bootstrap": one.bootstrap, "topic": topic, "partitions": _PARTITIONS,
        "connections": _CONNECTIONS, "seconds": seconds,
    }  # fmt: skip
    meter = CpuMeter({**one.pids, "broker": broker})
    printed = child("benchmarks.discarding_client", json.dumps(order))
    spent = meter.spent()
    # The seconds of server and broker are those of the first responses, too.
    cpu = {
        "server": sum(spent[name] for name in one.pids),
        "broker": spent["broker"],
        "client": printed["cpu_seconds"],
    }
    return Turn(printed["bytes"] / printed["seconds"], printed["seconds"], cpu)


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    measured = Measured()
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="workers-")))
        broker = RecordedBroker()
        kafka = running.enter_context(KafkaServer(broker.told_by_kafka()))
        running.enter_context(broker)
        kafka.create_topic(TAIL, _PARTITIONS)
        records = _PARTITIONS * 4 * 1024
        fill(kafka.bootstrap, TAIL, _PARTITIONS, records, _RECORDS)
        (folder / "store").mkdir()
        store = (folder / "store").as_uri()
        size = records * _RECORDS.record_bytes
        archived_topic(kafka, ARCHIVE, _RECORDS, _PARTITIONS, size, store)
        present = list(contestants(running, broker, store))
        for number in range(options.rounds):
            for topic in (TAIL, ARCHIVE):
                for one in in_turn(present, number):
                    if topic == ARCHIVE and one.name in (BARE_ONE, BARE_TWO):
                        continue  # they have no archive
                    turn = take_turn(one, topic, broker.pid, options.seconds)
                    measured.turns.setdefault((topic, one.name), []).append(turn)
                    rate = turn.bytes_per_s / 1e6
                    console.print(f"round {number}: {topic}, {one.name}: {rate:.0f} MB/s")
    return Outcome(rows_of(measured))


PART = Part(
    "workers",
    "What a second worker adds where clients speak TLS",
    __doc__,
    (
        Size("rounds", 5, 1, "rounds, each with all contestants in turn"),
        Size("seconds", 5, 1, "seconds of each turn"),
    ),
    measure,
)


if __name__ == "__main__":
    sys.exit(PART.main())
