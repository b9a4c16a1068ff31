"""Looks up the beginnings, the ends and the offsets for a timestamp of very many partitions.

The broker and the proxy are asked in turn, about an archived topic and about one that was never
archived, with the store 40 ms away. "Warm" is every question to a proxy after its first round.
"Cold" is the first question to a proxy that has just started. Both are repeated after the cluster
has many more partitions, of other topics.

To answer the cold question for a timestamp, the proxy must read one segment of each partition. A
bare client reads the same segments in as many requests at once.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import Console

from benchmarks.contestants import DIRECT, FETCHPROXY, FETCHPROXY_COMMAND, FetchproxyServer
from benchmarks.frame import child, in_turn
from benchmarks.goals import LOOK_UPS
from benchmarks.look_up_client import BEGINNING, END, QUESTIONS, TIMES
from benchmarks.replayed_topics import S3Copy, presigned_logs
from benchmarks.report import Row, goal_rows, ratios, row
from benchmarks.store_relay import StoreRelay
from fetchproxy.config.schema import Config
from lab.errors import PartFailed
from lab.kafka import KafkaServer
from lab.s3 import S3Server

LATENCY_MS = 40.0
ARCHIVED, NEVER = "archived", "never archived"
WARM, COLD = "warm", "cold"
WARM_WIDE, COLD_WIDE = "warm in a wide cluster", "cold in a wide cluster"
BARE_READS = f"bare reads of the same segments: {DIRECT}"
_TOPICS = {ARCHIVED: "looked-up-archived", NEVER: "looked-up-never-archived"}
_RECORDS_EACH = 4  # the last one is only in the broker's log
_BEGAN_MS = 1_700_000_000_000
# The second record of each partition, which the archived topic has in the store.
_ASKED_MS = _BEGAN_MS + 1
_BATCH_S = 300.0
_TOPIC_PARTITIONS = 1_000  # of each topic that widens the cluster


@dataclass(slots=True)
class Measured:
    """Seconds by (topic's kind, question, how), with a figure a round, for both contestants.

    `bare_reads`: seconds in which a bare client reads the segments of the first cold rounds.
    """

    partitions: int
    direct: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    proxied: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    bare_reads: list[float] = field(default_factory=list)

    def add(self, kind: str, how: str, name: str, seconds: Mapping[str, float]) -> None:
        side = self.direct if name == DIRECT else self.proxied
        for question, each in seconds.items():
            side.setdefault((kind, question, how), []).append(each)


def rows_of(measured: Measured) -> list[Row]:
    factors = {
        key: ratios(measured.proxied[key], measured.direct[key]) for key in sorted(measured.proxied)
    }

    def worst(*hows: str) -> list[float]:
        return [max(e) for e in zip(*(f for k, f in factors.items() if k[2] in hows), strict=True)]

    rows = goal_rows(LOOK_UPS, worst(WARM, WARM_WIDE), worst(COLD, COLD_WIDE))
    for (kind, question, how), factor in factors.items():
        rows.append(row(f"{question}, {kind}, {how}: {FETCHPROXY} : {DIRECT}", "x", factor))
    for (kind, question, how), seconds in measured.proxied.items():
        rows.append(row(f"{question}, {kind}, {how}: {FETCHPROXY}", "s", seconds))
    cold_times = measured.direct.get((ARCHIVED, TIMES, COLD), [])
    if measured.bare_reads:
        rows.append(row(BARE_READS, "x", ratios(measured.bare_reads, cold_times)))
    return rows


def measure(
    kafka: KafkaServer, partitions: int, cluster_partitions: int, rounds: int, console: Console
) -> Measured:
    """`cluster_partitions`: the number of all topics' partitions in the wide cluster."""
    measured = Measured(partitions)
    with ExitStack() as running:
        server = running.enter_context(S3Server())
        relay = running.enter_context(StoreRelay(server.port, LATENCY_MS))
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="looked-up-")))
        _prepare(kafka, partitions, folder)
        store = S3Copy(server, folder, relay.endpoint_url)
        console.print(f"{partitions} partitions are archived, and {partitions} are not")
        _measure_warm(kafka, store, rounds, measured, console, WARM)
        _measure_cold(kafka, store, rounds, measured, console, COLD)
        logs = presigned_logs(store, folder, _TOPICS[ARCHIVED])
        measured.bare_reads = [_bare_reads_once(logs) for _ in range(rounds)]
        _widen(kafka, cluster_partitions - len(_TOPICS) * partitions)
        console.print(f"the cluster has {cluster_partitions} partitions")
        _measure_warm(kafka, store, rounds, measured, console, WARM_WIDE)
        _measure_cold(kafka, store, rounds, measured, console, COLD_WIDE)
    return measured


def _measure_warm(
    kafka: KafkaServer, store: S3Copy, rounds: int, measured: Measured, console: Console, how: str
) -> None:
    with FetchproxyServer(kafka.bootstrap, None, store.store_url, store.environment) as proxy:
        ways = [(DIRECT, kafka.bootstrap), (FETCHPROXY, proxy.bootstrap)]
        for number in range(rounds + 1):  # round 0 warms up
            for kind in _TOPICS:
                for name, bootstrap in in_turn(ways, number):
                    whole = kind == ARCHIVED and name == FETCHPROXY
                    seconds = _ask_once(bootstrap, kind, measured.partitions, whole)
                    if number:
                        measured.add(kind, how, name, seconds)
            console.print(f"look-ups, round {number} of {rounds}" if number else "warm-up")


def _measure_cold(
    kafka: KafkaServer, store: S3Copy, rounds: int, measured: Measured, console: Console, how: str
) -> None:
    for number in range(1, rounds + 1):
        for kind in _TOPICS:
            for question in QUESTIONS:
                with FetchproxyServer(
                    kafka.bootstrap, None, store.store_url, store.environment
                ) as proxy:
                    whole = kind == ARCHIVED
                    seconds = _ask_once(proxy.bootstrap, kind, measured.partitions, whole, question)
                direct = _ask_once(kafka.bootstrap, kind, measured.partitions, False, question)
                measured.add(kind, how, FETCHPROXY, seconds)
                measured.add(kind, how, DIRECT, direct)
        console.print(f"cold look-ups, round {number} of {rounds}")


def _bare_reads_once(logs: list[tuple[str, int]]) -> float:
    at_once = Config().store.small_reads_max
    part_bytes = max(size for _, size in logs)
    arguments = {"objects": logs, "concurrency": at_once, "part_bytes": part_bytes}
    return float(child("benchmarks.range_reads", stdin=json.dumps(arguments))["seconds"])


def _ask_once(
    bootstrap: str, kind: str, partitions: int, whole: bool, *questions: str
) -> dict[str, float]:
    """The seconds of each question. Raises PartFailed if a response is wrong."""
    seconds_by_question = child(
        "benchmarks.look_up_client",
        *(bootstrap, _TOPICS[kind], str(partitions), str(_ASKED_MS), *(questions or QUESTIONS)),
    )
    for question, response in seconds_by_question.items():
        if response["offsets"] != partitions * offset_of(question, whole):
            raise PartFailed(f"{question}, {kind} topic: wrong offsets, {response['offsets']}")
    return {question: response["seconds"] for question, response in seconds_by_question.items()}


def offset_of(question: str, whole: bool) -> int:
    """The correct offset of each partition. `whole`: include records only in the archive."""
    if question == END:
        return _RECORDS_EACH
    local_start = _RECORDS_EACH - 1
    if question == BEGINNING:
        return 0 if whole else local_start
    return 1 if whole else local_start


# -- topics --------------------------------------------------------------------------------------
def _prepare(kafka: KafkaServer, partitions: int, folder: Path) -> None:
    """Both topics have the same records. The store has all but the last of the archived topic."""
    for topic in _TOPICS.values():
        kafka.create_topic(topic, partitions, {"retention.ms": "-1", "segment.bytes": "1048576"})
    for number in range(_RECORDS_EACH - 1):
        for topic in _TOPICS.values():
            _produce(kafka, topic, partitions, number)
    command = [*FETCHPROXY_COMMAND, "archive", "--once", "--bootstrap", kafka.bootstrap]
    command += ["--store", folder.as_uri(), "--archive", _TOPICS[ARCHIVED]]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise PartFailed(f"{_TOPICS[ARCHIVED]} could not be archived\n{result.stderr[-2000:]}")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for topic in _TOPICS.values():
        _produce(kafka, topic, partitions, _RECORDS_EACH - 1)
        partitions_asked = [TopicPartition(topic, n, _RECORDS_EACH - 1) for n in range(partitions)]
        for future in admin.delete_records(partitions_asked).values():
            future.result(timeout=_BATCH_S)


def _widen(kafka: KafkaServer, partitions: int) -> None:
    """Creates `partitions` more partitions, in topics that no client asks about."""
    for number, remaining in enumerate(range(partitions, 0, -_TOPIC_PARTITIONS)):
        kafka.create_topic(f"beside-look-ups-{number}", min(remaining, _TOPIC_PARTITIONS))


def _produce(kafka: KafkaServer, topic: str, partitions: int, number: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50, "log_level": 0})
    for partition in range(partitions):
        producer.produce(topic, b"v" * 100, partition=partition, timestamp=_BEGAN_MS + number)
    if producer.flush(_BATCH_S):
        raise KafkaException("the broker does not take the benchmark's records")
