"""The clients of a soak, each in a thread.

There are two producers, a reader of the tail, and a reader that repeatedly reads all retained
records. The readers check what they read; the module judges nothing else.

The value of a committed record begins with its number within its partition, counted from 0. In
partitions without transactions the number equals the offset, so a gap in either is noticed. The
last partition has transactions, and every fifth is aborted; its markers and aborted records take
offsets.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

TOPIC = "soak"
PARTITIONS = 4
RECORD_BYTES = 1000
RECORDS_PER_S = 300  # for each partition: 1.2 MB/s in all
_TXN_PARTITION = PARTITIONS - 1
_ABORTED = (1 << 64) - 1
_TICK_S = 0.2
_STALLED_S = 240.0
_PASS_PAUSE_S = 5.0
_FAULTS_MAX = 20
_CLIENT_LOG = logging.getLogger("benchmarks.soak.clients")
# Errors that matter are returned by a record, a transaction or a fetch.
_CLIENT_LOG.setLevel(logging.CRITICAL)
_FILLING = random.Random(5).randbytes(RECORD_BYTES + 4096)  # incompressible


def value_of(number: int) -> bytes:
    shift = number % 4096
    return number.to_bytes(8, "big") + _FILLING[shift : shift + RECORD_BYTES - 8]


@dataclass
class Outcome:
    """What the clients did and saw so far. One thread writes each field; all may read it."""

    produced: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    aborted: int = 0
    tail_read: int = 0
    tail_delay_s_max: float = 0.0
    passes: int = 0
    archive_read: int = 0
    overtaken: int = 0
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(text)


class Check:
    """The record that a reader of a partition must get next. `number` None: any record."""

    def __init__(self, reader: str, partition: int, number: int | None, outcome: Outcome) -> None:
        self.first: int | None = None
        self.number = number
        self.offset = -1  # the last offset read; -1 if nothing was read
        self._name = f"{reader}, partition {partition}"
        self._numbers_are_offsets = partition != _TXN_PARTITION
        self._outcome = outcome

    def take(self, offset: int, value: bytes) -> None:
        number = int.from_bytes(value[:8], "big")
        place = f"{self._name}, offset {offset}"
        if number == _ABORTED:
            self._outcome.fault(f"{place}: a record of an aborted transaction")
            return
        if value != value_of(number):
            self._outcome.fault(f"{place}: other bytes than record {number} was written with")
        if self.number is not None and number != self.number:
            self._outcome.fault(f"{place}: record {number} came instead of {self.number}")
        if offset <= self.offset:
            self._outcome.fault(f"{place}: after offset {self.offset}")
        if self._numbers_are_offsets and number != offset:
            self._outcome.fault(f"{place}: has record {number}")
        if self.first is None:
            self.first = number
        self.number, self.offset = number + 1, offset


class Traffic:
    """A context manager that runs the clients. `retained_bytes_min`: the bytes of a partition that
    retention keeps at least."""

    def __init__(self, bootstrap: str, retained_bytes_min: int) -> None:
        self.outcome = Outcome()
        self._bootstrap = bootstrap
        self._retained_min = retained_bytes_min // RECORD_BYTES
        self._stop_producing, self._stop_reading = threading.Event(), threading.Event()
        self._producers = [self._thread(self._produce), self._thread(self._transact)]
        self._readers = [self._thread(self._read_tail), self._thread(self._read_again_and_again)]

    def __enter__(self) -> Self:
        for each in (*self._producers, *self._readers):
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_producing.set()
        self._stop_reading.set()
        for each in (*self._producers, *self._readers):
            each.join()

    def stop_producing(self) -> None:
        self._stop_producing.set()
        for each in self._producers:
            each.join()

    def finish_reading(self) -> None:
        """Call it after `stop_producing`. Reads the tail to its end and makes a last pass."""
        passes, deadline = self.outcome.passes, time.monotonic() + _STALLED_S
        # The pass that is running may have begun before the last records were written.
        while (
            self.outcome.tail_read < sum(self.outcome.produced) or self.outcome.passes < passes + 2
        ):
            if not all(each.is_alive() for each in self._readers):
                break  # a reader that ended has already reported a fault
            if time.monotonic() > deadline:
                records_read, of = self.outcome.tail_read, sum(self.outcome.produced)
                self.outcome.fault(
                    f"readers not at the end in {_STALLED_S:.0f} s: tail {records_read} of {of}"
                )
                break
            time.sleep(0.2)
        self._stop_reading.set()
        for each in self._readers:
            each.join()

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # a client that is gone is a fault of its own
                self.outcome.fault(f"{work.__name__.strip('_')} ended: {error!r}")

        return threading.Thread(target=run, name=work.__name__, daemon=True)

    def _producer(self, **settings: Any) -> Producer:
        common = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 50}
        return Producer({**common, **settings}, logger=_CLIENT_LOG)

    def _send(self, producer: Producer, partition: int, value: bytes) -> None:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self.outcome.fault(f"producing to partition {partition}: {error}")

        producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)

    def _produce(self) -> None:
        producer = self._producer()
        numbers = range(0)
        for upto in self._paced():
            numbers = range(numbers.stop, upto)
            for number in numbers:
                for partition in range(_TXN_PARTITION):
                    self._send(producer, partition, value_of(number))
                    self.outcome.produced[partition] += 1
            producer.poll(0)
        if producer.flush(60.0):
            self.outcome.fault("records without an answer from the broker after 60 s")

    def _transact(self) -> None:
        producer = self._producer(**{"transactional.id": "soak"})
        producer.init_transactions(60.0)
        first = 0
        for number, upto in enumerate(self._paced(), start=1):
            producer.begin_transaction()
            if number % 5 == 0:
                for _ in range(first, upto):
                    self._send(producer, _TXN_PARTITION, _ABORTED.to_bytes(8, "big") * 125)
                producer.flush(60.0)
                producer.abort_transaction(60.0)
                self.outcome.aborted += 1
            else:
                for _ in range(first, upto):
                    self._send(producer, _TXN_PARTITION, value_of(self.outcome.produced[-1]))
                    self.outcome.produced[-1] += 1
                producer.commit_transaction(60.0)
            first = upto

    def _paced(self) -> Any:
        """Yields how many records a partition should have by now, several times a second."""
        began = time.monotonic()
        while not self._stop_producing.wait(_TICK_S):
            yield int((time.monotonic() - began) * RECORDS_PER_S)

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "soak-readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 8192,
            },
            logger=_CLIENT_LOG,
        )

    def _read_tail(self) -> None:
        consumer = self._consumer()
        checks = [Check("tail", partition, 0, self.outcome) for partition in range(PARTITIONS)]
        try:
            consumer.assign(
                [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
            )
            while not self._stop_reading.is_set():
                for message in consumer.consume(500, 0.5):
                    error = message.error()
                    if error is None:
                        checks[message.partition()].take(message.offset(), message.value())
                        self.outcome.tail_read += 1
                        delay_s = time.time() - message.timestamp()[1] / 1000
                        self.outcome.tail_delay_s_max = max(self.outcome.tail_delay_s_max, delay_s)
                    elif _matters(error):
                        self.outcome.fault(f"tail, partition {message.partition()}: {error}")
        finally:
            consumer.close()

    def _read_again_and_again(self) -> None:
        consumer = self._consumer()
        starts = [0] * PARTITIONS
        try:
            while not self._stop_reading.is_set():
                checks = self._one_pass(consumer)
                if checks is None:
                    return
                for partition, check in enumerate(checks):
                    self._check_start(partition, check, starts)
                self.outcome.passes += 1
                self._stop_reading.wait(_PASS_PAUSE_S)
        finally:
            consumer.close()

    def _one_pass(self, consumer: Consumer) -> list[Check] | None:
        """Reads from the earliest offsets to the ends at its start. None: it was stopped."""
        began = time.monotonic()
        name = "reader of all that is retained"
        checks = [Check(name, partition, None, self.outcome) for partition in range(PARTITIONS)]
        everything = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(each, 60.0)[1] for each in everything]
        for each in everything:
            each.offset = consumer.get_watermark_offsets(each, 60.0)[0]
        positions = [each.offset for each in everything]
        open_ = set(range(PARTITIONS))
        consumer.assign(everything)
        while open_ and not self._stop_reading.is_set():
            for message in consumer.consume(500, 0.5):
                partition, error = message.partition(), message.error()
                if error is None:
                    checks[partition].take(message.offset(), message.value())
                    self.outcome.archive_read += 1
                    positions[partition] = message.offset() + 1
                    if positions[partition] >= ends[partition]:
                        open_.discard(partition)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_.discard(partition)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    positions[partition] = self._overtaken(
                        consumer, partition, positions[partition]
                    )
                    checks[partition].number = None
                elif _matters(error):
                    self.outcome.fault(f"{name}, partition {partition}: {error}")
            if time.monotonic() - began > _STALLED_S:
                self.outcome.fault(f"{name}: a pass has taken {_STALLED_S:.0f} s, left {open_}")
                break
        finished = not self._stop_reading.is_set() or not open_
        consumer.unassign()
        return checks if finished else None

    def _overtaken(self, consumer: Consumer, partition: int, position: int) -> int:
        """Retention overtook this reader: it goes on at the log start, which must be higher."""
        start = int(consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), 60.0)[0])
        if start <= position:
            self.outcome.fault(
                f"partition {partition}: offset {position} was refused, the log starts at {start}"
            )
        self.outcome.overtaken += 1
        # No seek: librdkafka refuses it if it has just stopped fetching the partition.
        consumer.incremental_unassign([TopicPartition(TOPIC, partition)])
        consumer.incremental_assign([TopicPartition(TOPIC, partition, start)])
        return start

    def _check_start(self, partition: int, check: Check, starts: list[int]) -> None:
        """Deleted records must not come back, and retention must not delete more than it may."""
        if check.first is None or check.number is None:
            return
        if check.first < starts[partition]:
            self.outcome.fault(
                f"partition {partition}: record {check.first} came back after deletion"
            )
        starts[partition] = check.first
        # A fifth of the last partition's records are aborted, and readers never see them.
        least = self._retained_min * (3 if partition == _TXN_PARTITION else 4) // 4
        records_left = check.number - check.first
        if check.first > 0 and records_left < least:
            self.outcome.fault(
                f"partition {partition}: {records_left} records are left, "
                f"retention leaves at least {least}"
            )


def _matters(error: KafkaError) -> bool:
    """False for errors that librdkafka recovers from by itself."""
    if error.code() == KafkaError._PARTITION_EOF:
        return False
    return bool(error.fatal() or not (error.retriable() or error.code() in _PASSING))


_PASSING = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError.KAFKA_STORAGE_ERROR,  # a long outage of the store has this error
)
