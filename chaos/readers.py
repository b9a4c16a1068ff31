"""Consumers through the proxies. They check each record by itself; the calm checks completeness.

Some follow the log all the time, alone or in a group. Others replay a whole partition.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from chaos.ledger import Log, ReadRecord

# A reader hangs if it gets nothing for this long, with all parts up and more to read.
HANG_S_MAX = 90.0
_FAULTS_MAX = 5
_LOG = logging.getLogger("chaos.clients")
logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it reports each broker that is away
# Only these errors end a reader. A client recovers from others by itself; if it hangs instead,
# that is noticed.
_ENDS_A_READER = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def consumer_settings(bootstrap: str, *, reset: str, committed_only: bool) -> dict[str, object]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "chaos-alone",
        "enable.auto.commit": False,
        "auto.offset.reset": reset,
        "isolation.level": "read_committed" if committed_only else "read_uncommitted",
        "enable.partition.eof": True,
        "fetch.queue.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "queued.max.messages.kbytes": 4096,
    }


@dataclass
class Course:
    """One reader's way through one log. Offsets must increase and records must be as written."""

    reader: str
    log: Log
    committed_only: bool
    faults: list[str]
    last: int = -1
    offsets_read: set[int] = field(default_factory=set)
    position: int = 0  # the client's position, after transaction markers too

    def take(self, record: ReadRecord) -> None:
        if record.offset <= self.last:
            self._fault(f"offset {record.offset} came after {self.last}")
        wrong = self.log.wrong(record, committed_only=self.committed_only)
        if wrong is not None:
            self._fault(wrong)
        self.last = record.offset
        self.position = max(self.position, record.offset + 1)
        self.offsets_read.add(record.offset)

    def missing(self, begin: int, end: int) -> set[int]:
        expected = self.log.expected(begin, end, committed_only=self.committed_only)
        return expected - self.offsets_read

    def _fault(self, text: str) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(f"{self.reader}, {self.log.name}: {text}")


class Follower:
    """Reads all of some logs from their beginning, and then new records. With `group` it is a
    member, which may get records again when partitions move. `proxy`: the name of its proxy."""

    def __init__(
        self,
        name: str,
        logs: Sequence[Log],
        bootstrap: str,
        *,
        reset: str,
        committed_only: bool,
        group: str = "",
        proxy: str = "",
    ) -> None:
        self.name = name
        self.proxy = proxy
        self._bootstrap, self._reset, self._committed_only = bootstrap, reset, committed_only
        self.faults: list[str] = []
        self.courses = {log.name: Course(name, log, committed_only, self.faults) for log in logs}
        self._settings = consumer_settings(bootstrap, reset=reset, committed_only=committed_only)
        self._in_group = bool(group)
        if group:
            self._settings |= {
                "group.id": group,
                "enable.auto.commit": True,
                "auto.commit.interval.ms": 1_000,
                "session.timeout.ms": 10_000,
            }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001  # a reader that is gone is a fault of its own
            self.faults.append(f"{self.name} ended: {error!r}")

    def _follow(self) -> None:
        consumer = Consumer(self._settings, logger=_LOG)
        try:
            self._begin(consumer)
            while not self._stop.is_set():
                for message in consumer.consume(500, 0.3):
                    self._take(message)
        finally:
            consumer.close()

    def _begin(self, consumer: Consumer) -> None:
        logs = [course.log for course in self.courses.values()]
        if self._in_group:
            consumer.subscribe(sorted({log.topic for log in logs}), on_assign=self._assigned)
        else:
            consumer.assign([TopicPartition(log.topic, log.partition, 0) for log in logs])

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.courses[f"{each.topic}-{each.partition}"].last = -1

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self.courses[f"{message.topic()}-{message.partition()}"].take(_read(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            course = self.courses[f"{message.topic()}-{message.partition()}"]
            course.position = max(course.position, message.offset())
        elif error.fatal() or error.code() in _ENDS_A_READER:
            self.faults.append(f"{self.name}: {message.topic()}-{message.partition()}: {error}")


class PythonFollower(Follower):
    """A single consumer of kafka-python, which shares no code with librdkafka."""

    def _follow(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            auto_offset_reset=self._reset,
            isolation_level="read_committed" if self._committed_only else "read_uncommitted",
            reconnect_backoff_max_ms=1_000,
            fetch_max_wait_ms=300,
        )
        try:
            places = {
                kafka.TopicPartition(course.log.topic, course.log.partition): course
                for course in self.courses.values()
            }
            consumer.assign(list(places))
            for place in places:
                consumer.seek(place, 0)
            while not self._stop.is_set():
                for place, records in consumer.poll(timeout_ms=300, max_records=500).items():
                    for one in records:
                        places[place].take(ReadRecord(one.offset, one.key or b"", one.value or b""))
                for place, course in places.items():
                    # It includes markers. It needs no request: the consumer's start offset was set
                    # above.
                    course.position = max(course.position, consumer.position(place))
        finally:
            consumer.close()


def _read(message: Message) -> ReadRecord:
    return ReadRecord(message.offset(), message.key() or b"", message.value() or b"")


def replay(
    name: str, log: Log, bootstrap: str, end: int, *, reset: str, committed_only: bool
) -> tuple[Course, list[str]]:
    """Reads with a new reader from the beginning to `end`. Returns its course and its faults.

    With a reset policy other than earliest, the reader starts at 0, as if its group had committed
    offset 0.
    """
    faults: list[str] = []
    course = Course(name, log, committed_only, faults)
    settings = consumer_settings(bootstrap, reset=reset, committed_only=committed_only)
    begin = OFFSET_BEGINNING if reset == "earliest" else 0
    consumer = Consumer(settings, logger=_LOG)
    moved = time.monotonic()
    try:
        consumer.assign([TopicPartition(log.topic, log.partition, begin)])
        while course.position < end:
            for message in consumer.consume(500, 0.3):
                error = message.error()
                if error is None:
                    course.take(_read(message))
                    moved = time.monotonic()
                elif error.code() == KafkaError._PARTITION_EOF:
                    course.position = max(course.position, message.offset())
                elif error.fatal() or error.code() in _ENDS_A_READER:
                    return course, [*faults, f"{name}, {log.name}: {error}"]
            if time.monotonic() - moved > HANG_S_MAX or len(faults) >= _FAULTS_MAX:
                stuck = f"{name}, {log.name}: stands at {course.position} of {end}"
                return course, [*faults, stuck]
    finally:
        consumer.close()
    return course, faults
