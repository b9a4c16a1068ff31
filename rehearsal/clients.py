"""The load: producers and groups, each in a thread, until the cluster is lost or they are stopped.

They write into the ledger what the brokers have told them, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from rehearsal.ledger import Ledger, Place, value_of

_TICK_S = 0.05
_WAITING_MAX = 5_000  # records without a response, above which a producer waits
_RECORDS_PER_TRANSACTION = 20
_ABORTED_SHARE = 0.2
_CALL_S = 10.0
# On a busy machine, new brokers take long to make the topic of the groups' offsets. If the time
# ends while librdkafka waits for the coordinator, it aborts this process (rd_kafka_enq_once).
_COMMIT_S = 240.0
_JOIN_S = 60.0
_LOG = logging.getLogger("rehearsal.clients")  # librdkafka tells of the loss at length
_LOG.setLevel(logging.CRITICAL + 1)
QUIET: Mapping[str, object] = {"log_level": 0, "logger": _LOG}


class Client(ABC):
    """`fault`: why it ended by itself; a lost cluster is no reason, as long as it is expected."""

    def __init__(self, name: str) -> None:
        self.fault: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait."""
        self._stopping.set()

    def join(self) -> None:
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - it is reported as a fault of the drill
            if not self._stopping.is_set():
                self.fault = f"{self._thread.name} ended: {error!r}"

    @abstractmethod
    def _work(self) -> None: ...


class IdempotentProducer(Client):
    """Writes to all `places` in turn."""

    def __init__(
        self, bootstrap: str, ledger: Ledger, places: Sequence[Place], records_per_s: int
    ) -> None:
        super().__init__("idempotent producer")
        self._bootstrap, self._ledger = bootstrap, ledger
        self._places, self._per_s = places, records_per_s

    def _work(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                **QUIET,
            }
        )
        began_at, written = time.monotonic(), 0
        while not self._stopping.is_set():
            due = int((time.monotonic() - began_at) * self._per_s)
            while written < due and len(producer) < _WAITING_MAX:
                self._send(producer, self._places[written % len(self._places)])
                written += 1
            producer.poll(_TICK_S)
        producer.purge()
        producer.poll(0)

    def _send(self, producer: Producer, place: Place) -> None:
        number = self._ledger.next_number()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._ledger.acknowledge(place, message.offset(), number, time.monotonic())

        producer.produce(place[0], value_of(number), partition=place[1], on_delivery=delivered)


class TransactionalProducer(Client):
    """A fifth of its transactions is aborted."""

    def __init__(
        self, bootstrap: str, ledger: Ledger, places: Sequence[Place], random: Random
    ) -> None:
        super().__init__("transactional producer")
        self._bootstrap, self._ledger = bootstrap, ledger
        self._places, self._random = places, random

    def _work(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": "drill-payments",
                **QUIET,
            }
        )
        while not self._stopping.is_set():
            try:
                producer.init_transactions(_CALL_S)
                break
            except KafkaException as error:
                if not error.args[0].retriable():  # a new cluster makes its topic first
                    raise
        while not self._stopping.is_set():
            self._transaction(producer)

    def _transaction(self, producer: Producer) -> None:
        acknowledged: list[tuple[Place, int, int]] = []
        aborts = self._random.random() < _ABORTED_SHARE
        producer.begin_transaction()
        for place in (self._random.choice(self._places) for _ in range(_RECORDS_PER_TRANSACTION)):
            number = self._ledger.next_number()
            if aborts:
                self._ledger.aborted.add(number)

            def one_delivered(
                error: KafkaError | None, message: Message, place: Place = place, n: int = number
            ) -> None:
                if error is None:
                    acknowledged.append((place, message.offset(), n))

            producer.produce(
                place[0], value_of(number), partition=place[1], on_delivery=one_delivered
            )
        producer.flush(_CALL_S)
        if aborts:
            producer.abort_transaction(_CALL_S)
            return
        producer.commit_transaction(_CALL_S)
        at = time.monotonic()
        for place, offset, number in acknowledged:
            self._ledger.acknowledge(place, offset, number, at)


class Committers(Client):
    """Commits offsets for many groups without members. Each group has one topic. Some commit the
    end of the log, and some an offset before it.
    """

    def __init__(
        self, bootstrap: str, ledger: Ledger, groups: Mapping[str, Sequence[Place]], random: Random
    ) -> None:
        super().__init__("groups")
        self._bootstrap, self._ledger = bootstrap, ledger
        self._groups, self._random = groups, random

    def _work(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap, **QUIET})
        behind = {group: self._random.choice((0, 0, 3, 20)) for group in self._groups}
        while not self._stopping.is_set():
            for group, places in self._groups.items():
                if self._stopping.is_set():
                    return
                offsets = {
                    place: max(self._ledger.end(place) - behind[group], 0) for place in places
                }
                _commit(admin, group, offsets)
                for place, offset in offsets.items():
                    self._ledger.commits[group, place] = offset
                self._stopping.wait(_TICK_S)


def _commit(admin: AdminClient, group: str, offsets: Mapping[Place, int]) -> None:
    """Raises KafkaException."""
    rows = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    request = [ConsumerGroupTopicPartitions(group, rows)]
    for future in admin.alter_consumer_group_offsets(request, request_timeout=_COMMIT_S).values():
        future.result()


class MemberConsumer(Client):
    """A member of a group of consumers, which commits what it has read each second."""

    def __init__(self, bootstrap: str, ledger: Ledger, group: str, topic: str) -> None:
        super().__init__(f"member of {group}")
        self._bootstrap, self._ledger = bootstrap, ledger
        self._group, self._topic = group, topic

    def _work(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        consumer.subscribe([self._topic])
        committed_at, fresh = time.monotonic(), False
        while not self._stopping.is_set():
            fresh |= any(one.error() is None for one in consumer.consume(500, _TICK_S))
            if fresh and time.monotonic() > committed_at + 1:
                for one in consumer.commit(asynchronous=False) or ():
                    self._ledger.commits[self._group, (one.topic, one.partition)] = one.offset
                committed_at, fresh = time.monotonic(), False


class FirstRecords(Client):
    """A group's consumer after the restore, until it gets its first record. `at`: when
    (monotonic, s); `offset`: of that record, and `committed`: where its group was.
    """

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        super().__init__(f"reader of {group}")
        self._bootstrap, self.group, self._topic = bootstrap, group, topic
        self.at: float | None = None
        self.first: tuple[Place, int] | None = None

    def _work(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self.group,
                # What the group had not read is in the archive alone, so it begins at the new log.
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        consumer.subscribe([self._topic])
        while not self._stopping.is_set():
            message = consumer.poll(_TICK_S)
            if message is not None and message.error() is None:
                self.at = time.monotonic()
                self.first = (message.topic(), message.partition()), message.offset()
                break
        consumer.close()
