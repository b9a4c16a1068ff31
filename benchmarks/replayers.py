"""Consumers that read an archived topic repeatedly and check every record.

`python -m benchmarks.replayers BOOTSTRAP TOPIC PARTITIONS RECORDS RECORD_BYTES CONSUMERS` prints
its progress as JSON ten times a second, until stdin ends. Each consumer reads one partition of
`numbered_records` from its own start offset, and from 0 again after the last record. All consumers
are in one process. It has the lowest priority on this machine, because clients of a real cluster
run on other machines.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from benchmarks.numbered_records import value_of
from lab.errors import PartFailed

_TELL_S = 0.1
_FAULTS_MAX = 10
_BATCH_RECORDS = 1000
_NICE = 19
_GROUP_NICE = 10
_AUTOGROUP = Path("/proc/self/autogroup")
_PROJECT = Path(__file__).parents[1]
_CLIENT_LOG = logging.getLogger("benchmarks.replayers.clients")
# Errors that matter are returned by a fetch.
_CLIENT_LOG.setLevel(logging.CRITICAL)

# Errors that librdkafka reports but retries by itself.
_PASSING = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError.KAFKA_STORAGE_ERROR,
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """By consumer, at `at_s` of the monotonic clock. `passes`: how often it has reached the end."""

    at_s: float
    records: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Course:
    """The records that one consumer may receive next. Pure."""

    def __init__(self, partition: int, start: int, records: int, record_bytes: int) -> None:
        self.partition = partition
        self.next = start
        self._end = records
        self._record_bytes = record_bytes
        self.records = 0
        self.passes = 0

    def take(self, offset: int, value: bytes) -> str | None:
        """Returns what is wrong with this record, or None."""
        expected = self.next
        self.next = offset + 1
        self.records += 1
        if offset != expected:
            return f"partition {self.partition}: offset {offset}, expected {expected}"
        if value != value_of(self.partition, offset, self._record_bytes):
            return f"partition {self.partition}: offset {offset} has another value"
        return None

    def begin_again(self) -> bool:
        """True, once, when the end is reached. The next record is then the one at offset 0."""
        if self.next < self._end:
            return False
        self.next = 0
        self.passes += 1
        return True


class Replayers:
    """The consumers, all in one thread. `run` ends when its event is set."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        records: int,
        record_bytes: int,
        count: int,
    ) -> None:
        self._topic = topic
        self._faults: list[str] = []
        # Each consumer begins at a different offset, so that one read of the store does not serve
        # all.
        self._courses = [
            Course(
                number % partitions,
                number // partitions * records * partitions // max(count, partitions),
                records,
                record_bytes,
            )
            for number in range(count)
        ]
        self._consumers = [self._consumer(bootstrap, course) for course in self._courses]

    def run(self, over: threading.Event) -> None:
        while not over.is_set():
            moved = False
            for consumer, course in zip(self._consumers, self._courses, strict=True):
                messages = consumer.consume(_BATCH_RECORDS, 0)
                moved = moved or bool(messages)
                for message in messages:
                    self._take(message, course)
                if course.begin_again():
                    consumer.seek(TopicPartition(self._topic, course.partition, 0))
            if not moved:
                over.wait(0.002)
        for consumer in self._consumers:
            consumer.close()

    def done(self) -> Replayed:
        return Replayed(
            time.monotonic(),
            [course.records for course in self._courses],
            [course.passes for course in self._courses],
            list(self._faults),
        )

    def _take(self, message: Message, course: Course) -> None:
        error = message.error()
        fault: str | None = None
        if error is None:
            fault = course.take(message.offset(), message.value())
        elif error.fatal() or not (error.retriable() or error.code() in _PASSING):
            fault = f"partition {course.partition}: {error}"
        if fault is not None and len(self._faults) < _FAULTS_MAX:
            self._faults.append(fault)

    def _consumer(self, bootstrap: str, course: Course) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "benchmark-replayers",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # a refused offset is a fault, no offset to skip
                # The queue is small, so that a consumer stops soon when the store is away.
                "queued.max.messages.kbytes": 1024,
                "fetch.queue.backoff.ms": 10,
            },
            logger=_CLIENT_LOG,
        )
        consumer.assign([TopicPartition(self._topic, course.partition, course.next)])
        return consumer


class ReplayerProcess:
    """`with ReplayerProcess(…) as replaying: replaying.latest()`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "benchmarks.replayers", *arguments]
        self._latest = Replayed(time.monotonic())
        self._progress = threading.Condition()

    @property
    def pid(self) -> int:
        return self._process.pid

    def latest(self) -> Replayed:
        """Raises PartFailed if a reader saw a fault, or if the readers have ended."""
        with self._progress:
            latest = self._latest
        if latest.faults:
            raise PartFailed(f"a reader of the archive saw: {'; '.join(latest.faults)}")
        if self._process.poll() is not None:
            raise PartFailed("the readers of the archive have ended")
        return latest

    def wait_until(
        self, ready: Callable[[Replayed], bool], what: str, timeout_s: float
    ) -> Replayed:
        """The first report for which `ready(report)` is true. Raises PartFailed."""
        deadline = time.monotonic() + timeout_s
        while not ready(latest := self.latest()):
            if time.monotonic() > deadline:
                raise PartFailed(f"not within {timeout_s:g} s: {what}; {latest}")
            with self._progress:
                self._progress.wait(_TELL_S)
        return latest

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_PROJECT,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, name="replayers", daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._progress:
                self._latest = Replayed(**json.loads(line))
                self._progress.notify_all()


def step_back() -> None:
    """Takes the lowest priority, for a process that leads a session of its own.

    If Linux groups processes by session (CONFIG_SCHED_AUTOGROUP), a process's nice value counts
    only within its session. So the group has a nice value too, which gives it a tenth of the time
    that others get.
    """
    os.nice(_NICE)
    if _AUTOGROUP.exists():
        _AUTOGROUP.write_text(f"{_GROUP_NICE}\n")


def main(arguments: Sequence[str]) -> None:
    bootstrap, topic = arguments[:2]
    step_back()
    replayers = Replayers(bootstrap, topic, *map(int, arguments[2:]))
    over = threading.Event()

    def tell() -> None:
        while not over.wait(_TELL_S):
            print(json.dumps(asdict(replayers.done())), flush=True)

    def wait_for_end() -> None:
        sys.stdin.read()
        over.set()

    for work in (tell, wait_for_end):
        threading.Thread(target=work, daemon=True).start()
    replayers.run(over)


if __name__ == "__main__":
    main(sys.argv[1:])
