"""Both sides and what is done to them alike: produce, transactions, rolls, tiering, restarts."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from oracle_log import Names, ReferenceLog, build_batch, normal_form, with_place
from oracle_sides import LATEST, SEGMENT_MS, ProxiedKafka, Side, TieredKafka, until

from lab.kafka_versions import KAFKA_VERSION

if TYPE_CHECKING:
    from oracle_rules import Findings

T = TypeVar("T")
Key = tuple[str, int]  # topic name, partition
NO_PRODUCER_FIELDS = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS
_TRY_AGAIN = {14, 15, 16, 51}


@dataclass
class Producer:
    """A transactional producer; `ids` are (producer id, epoch) on each side."""

    name: str
    ids: list[tuple[int, int]]
    sequence: dict[Key, int] = field(default_factory=dict)
    in_txn: set[Key] = field(default_factory=set)  # what the open transaction has


@dataclass
class TwinTopic:
    """One partition on both sides; `name` is its topic's. `clock_ms` stamps the next batch."""

    name: str
    clock_ms: int
    partition: int = 0
    log: ReferenceLog = field(default_factory=ReferenceLog)
    names: tuple[Names, Names] = field(default_factory=lambda: (Names(), Names()))
    written: int = 0
    # (high watermark, LSO, log start, local log start), each with since when (monotonic s)
    marks: list[tuple[float, tuple[int, int, int, int]]] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return self.name, self.partition

    def note_marks(self) -> None:
        log = self.log
        marks = (log.end, log.last_stable, log.log_start, log.local_start)
        self.marks.append((time.monotonic(), marks))


class World:
    """A context manager over both sides, Kafkas of one version, started at the same time."""

    def __init__(self, folder: Path, version: str = KAFKA_VERSION) -> None:
        self.version = version
        self.tiered, self.proxied = TieredKafka(folder, version), ProxiedKafka(folder, version)
        self.sides: tuple[Side, Side] = (self.tiered, self.proxied)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="oracle")
        self._numbers = itertools.count(1)
        self._producer_names: tuple[dict[int, str], dict[int, str]] = ({}, {})
        self.live: dict[Key, TwinTopic] = {}
        # An empty response that should be data is asked again for so long: only a hang gets there.
        self.settle_s = 30.0
        # Above every marker's time, which is the broker's own; see `Responses.time`.
        self.first_ms = int(time.time() * 1000) + 86_400_000

    def __enter__(self) -> Self:
        try:
            self.both(lambda side: side.start())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._close()

    def _close(self) -> None:
        self.both(lambda side: side.stop())
        self._pool.shutdown()

    def both(self, act: Callable[[Side], T]) -> list[T]:
        """In parallel, for what takes long. Raises the first failure after both have ended."""
        futures = [self._pool.submit(act, side) for side in self.sides]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def ask(self, api: str, version: int, fields: Callable[[int], Any]) -> list[Any]:
        """`fields(0)` to the tiered Kafka and `fields(1)` through the proxy, at the same time."""
        return self._ask([side.wire for side in self.sides], api, version, fields)

    def arrange(self, api: str, version: int, fields: Callable[[int], Any]) -> list[Any]:
        """As `ask`, at the brokers themselves."""
        return self._ask([side.broker for side in self.sides], api, version, fields)

    @staticmethod
    def _ask(wires: list[Any], api: str, version: int, fields: Callable[[int], Any]) -> list[Any]:
        for i, wire in enumerate(wires):
            wire.send(api, version, fields(i))
        return [wire.receive() for wire in wires]

    # -- topics -----------------------------------------------------------------------------------
    def new_topics(self, *partition_counts: int) -> list[TwinTopic]:
        """A topic for each count; returns the partitions of all of them."""
        return [partition for count in partition_counts for partition in self._new_topic(count)]

    def _new_topic(self, partition_count: int) -> list[TwinTopic]:
        name = f"oracle-{next(self._numbers)}"
        self.both(lambda side: side.create_topic(name, partition_count))
        made = [TwinTopic(name, self.first_ms, number) for number in range(partition_count)]
        for topic in made:
            for names, known in zip(topic.names, self._producer_names, strict=True):
                names.producers = known
            self.live[topic.key] = topic
            self._learn_epochs(topic)
            topic.note_marks()
        return made

    def drop_topics(self, topics: list[TwinTopic]) -> None:
        for topic in topics:
            del self.live[topic.key]
        for name in {topic.name for topic in topics}:
            self.both(lambda side, name=name: side.delete_topic(name))  # type: ignore[misc]

    def _siblings(self, topic: TwinTopic) -> list[TwinTopic]:
        """All partitions of its topic: Kafka's switches for tiering are a topic's."""
        return [other for other in self.live.values() if other.name == topic.name]

    def _learn_epochs(self, topic: TwinTopic) -> None:
        for side, names in zip(self.sides, topic.names, strict=True):
            partitions = side.metadata(topic.name).partitions
            (epoch,) = (p.leader_epoch for p in partitions if p.partition_index == topic.partition)
            if epoch not in names.epochs:
                names.epochs.append(epoch)
        a, b = topic.names
        assert len(a.epochs) == len(b.epochs), (a.epochs, b.epochs)

    def restart_brokers(self) -> None:
        """Every partition gets a new leader epoch."""

        def restart(side: Side) -> None:
            side.restart_broker()
            until(
                f"all topics lead again on {side.name}",
                lambda: all(side.leads(name, count) for name, count in counts.items()),
            )

        counts = Counter(name for name, _ in self.live)
        began = time.monotonic()
        self.both(restart)
        away_s = time.monotonic() - began
        for topic in self.live.values():
            # Nobody could refresh them meanwhile.
            topic.marks = [(at + away_s, marks) for at, marks in topic.marks]
            self._learn_epochs(topic)
            self.archive(topic)
            if topic.log.archived > topic.log.log_start:
                # Only a broker's copy task learns again what it has copied (ListOffsets -5).
                self.tiered.archive(topic.name, {topic.partition: [topic.log.archived]})

    # -- writing ----------------------------------------------------------------------------------
    def produce(
        self,
        topic: TwinTopic,
        sizes: list[int],
        *,
        codec: int = 0,
        producer: Producer | None = None,
        seed: int = 0,
    ) -> None:
        """One batch with a record of each size; in `producer`'s transaction if there is one."""
        rng = random.Random(seed)
        times = [topic.clock_ms + rng.randrange(1000) for _ in sizes]
        values = [self._value(topic, size) for size in sizes]
        if producer is not None:
            self._add_to_txn(producer, topic)

        def encoded(i: int) -> bytes:
            who: dict[str, Any] = dict(NO_PRODUCER_FIELDS)
            if producer is not None:
                who["producer_id"], who["producer_epoch"] = producer.ids[i]
                who["base_sequence"] = producer.sequence.get(topic.key, 0)
            return build_batch(codec, times, values, who, transactional=producer is not None)

        batches = [encoded(0), encoded(1)]
        base = self._send(topic, batches, f"tx-{producer.name}" if producer else None)
        if producer is not None:
            producer.sequence[topic.key] = producer.sequence.get(topic.key, 0) + len(sizes)
            topic.log.begin(producer.name, base)
        placed = with_place(batches[0], base, topic.names[0].epochs[-1])
        topic.log.append(normal_form(placed, topic.names[0])[0])
        topic.note_marks()

    def _value(self, topic: TwinTopic, size: int) -> bytes:
        topic.written += 1
        text = b"%s-%d/%d/" % (topic.name.encode(), topic.partition, topic.written)
        return (text * (size // len(text) + 1))[:size]

    def _send(self, topic: TwinTopic, batches: list[bytes], txn: str | None) -> int:
        def fields(i: int) -> dict[str, Any]:
            data = {"index": topic.partition, "records": batches[i]}
            topics = [{"name": topic.name, "partition_data": [data]}]
            request_fields = {"transactional_id": txn, "acks": -1, "timeout_ms": 30_000}
            return request_fields | {"topic_data": topics}

        responses = self.arrange("Produce", 9, fields)
        partition_responses = [
            response.responses[0].partition_responses[0] for response in responses
        ]
        assert [p.error_code for p in partition_responses] == [0, 0], partition_responses
        assert (
            partition_responses[0].base_offset
            == partition_responses[1].base_offset
            == topic.log.end
        ), partition_responses
        base: int = partition_responses[0].base_offset
        return base

    # -- transactions -----------------------------------------------------------------------------
    def new_producer(self) -> Producer:
        name = f"p{next(self._numbers)}"
        request_fields = {"transactional_id": f"tx-{name}", "transaction_timeout_ms": 900_000}
        # The first to look for a coordinator makes the brokers create the topic of transactions.
        coordinator_fields = {"key": f"tx-{name}", "key_type": 1}
        self._until_accepted("FindCoordinator", 3, lambda _: coordinator_fields)
        responses = self._until_accepted("InitProducerId", 4, lambda _: request_fields)
        ids = [(response.producer_id, response.producer_epoch) for response in responses]
        for (producer_id, _), known in zip(ids, self._producer_names, strict=True):
            known[producer_id] = name
        return Producer(name, ids)

    def _add_to_txn(self, producer: Producer, topic: TwinTopic) -> None:
        if topic.key in producer.in_txn:
            return
        named = [{"name": topic.name, "partitions": [topic.partition]}]
        self._until_accepted(
            "AddPartitionsToTxn",
            3,
            lambda i: {
                "v3_and_below_transactional_id": f"tx-{producer.name}",
                "v3_and_below_producer_id": producer.ids[i][0],
                "v3_and_below_producer_epoch": producer.ids[i][1],
                "v3_and_below_topics": named,
            },
            lambda response: response.results_by_topic_v3_and_below[0].results_by_partition[0]
            .partition_error_code,
        )  # fmt: skip
        producer.in_txn.add(topic.key)

    def end_txn(self, producer: Producer, *, commit: bool) -> None:
        """Returns when the markers are in the logs of both sides."""
        self._until_accepted(
            "EndTxn",
            3,
            lambda i: {
                "transactional_id": f"tx-{producer.name}",
                "producer_id": producer.ids[i][0],
                "producer_epoch": producer.ids[i][1],
                "committed": commit,
            },
        )
        for key in sorted(producer.in_txn):
            topic = self.live.get(key)
            if topic is not None:
                self._take_marker(topic, producer, commit)
        producer.in_txn.clear()

    def _take_marker(self, topic: TwinTopic, producer: Producer, commit: bool) -> None:
        marker = topic.log.end
        for side, names in zip(self.sides, topic.names, strict=True):
            until(
                f"marker at {marker} of {topic.key} on {side.name}",
                lambda side=side: (
                    side.list_offset(topic.name, LATEST, topic.partition) == marker + 1
                ),  # type: ignore[misc]
            )
            records = self._read_directly(side, topic, marker)
            batches, _ = normal_form(records, names)
            if side is self.tiered:
                topic.log.append(batches[:1])
        topic.log.finish(producer.name, marker, aborted=not commit)
        topic.note_marks()

    @staticmethod
    def _read_directly(side: Side, topic: TwinTopic, offset: int) -> bytes:
        part = {"partition": topic.partition, "fetch_offset": offset}
        part |= {"partition_max_bytes": 1 << 20}
        topic_fields = {"topic": topic.name, "partitions": [part]}
        request_fields = {
            "max_wait_ms": 1000,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "topics": [topic_fields],
        }
        request_fields |= {
            "replica_id": -1,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
        }
        response = side.broker.ask(
            "Fetch", 11, request_fields | {"forgotten_topics_data": [], "rack_id": ""}
        )
        return bytes(response.responses[0].partitions[0].records or b"")

    def _until_accepted(
        self,
        api: str,
        version: int,
        fields: Callable[[int], Any],
        code: Callable[[Any], int] = lambda response: int(response.error_code),
    ) -> list[Any]:
        responses: list[Any] = []
        for i, side in enumerate(self.sides):

            def accepted(i: int = i, side: Side = side) -> bool:
                response = side.broker.ask(api, version, fields(i))
                if code(response) in _TRY_AGAIN:
                    return False
                assert code(response) == 0, (side.name, response)
                responses.append(response)
                return True

            until(f"{api} on {side.name}", accepted)
        return responses

    # -- tiering ----------------------------------------------------------------------------------
    def roll(self, topic: TwinTopic) -> None:
        """The next batch begins a segment on both sides."""
        topic.clock_ms += 2 * SEGMENT_MS

    def archive(self, topic: TwinTopic) -> None:
        """Move every inactive segment of the topic that lies below the LSO."""
        ends_by_partition = {
            other.partition: self._borders(other) for other in self._siblings(topic)
        }
        borders = {partition: ends for partition, ends in ends_by_partition.items() if ends}
        if borders:
            self.both(lambda side: side.archive(topic.name, borders))
        for partition, ends in borders.items():
            self.live[topic.name, partition].log.archived = ends[-1]

    def trim(self, topic: TwinTopic) -> None:
        """Archive, then let both brokers forget all of the topic that is archived."""
        self.archive(topic)
        logs = {other.partition: other.log for other in self._siblings(topic)}
        behind = {p: log.archived for p, log in logs.items() if log.archived > log.local_start}
        if behind:
            self.both(lambda side: side.forget(topic.name, behind))
        for partition, offset in behind.items():
            logs[partition].local_start = offset
            self.live[topic.name, partition].note_marks()

    def _borders(self, topic: TwinTopic) -> list[int]:
        stable = topic.log.last_stable
        bases = self.tiered.bases(*topic.key)
        start = max(topic.log.archived, topic.log.log_start)
        return [base for base in bases if start < base <= stable]

    def delete_records(
        self, topic: TwinTopic, offset: int, version: int, findings: Findings
    ) -> None:
        """As a client of each side asks for it."""
        part = {"partition_index": topic.partition, "offset": offset}
        request_fields = {
            "topics": [{"name": topic.name, "partitions": [part]}],
            "timeout_ms": 30_000,
        }
        responses = self.ask("DeleteRecords", version, lambda _: request_fields)
        results = []
        for response in responses:
            p = response.topics[0].partitions[0]
            results.append((p.error_code, p.low_watermark))
        findings.equal("delete-records", results[0], results[1])
        if results[0][0] == 0:
            log = topic.log
            log.log_start = max(log.log_start, results[0][1])
            log.local_start = max(log.local_start, log.log_start)
            topic.note_marks()
