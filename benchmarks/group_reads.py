"""Applications that do more than read: one that naps, a group that rebalances, and one that is
killed.

Each is a group of its own that reads a topic from its beginning to its end. Every record is
counted.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import Producer

from benchmarks.group_member import numbered

_PROJECT = Path(__file__).parents[1]
_STALLED_S = 120.0
_END_S = 60.0
_FLUSH_S = 300.0
_NAPS_SEED = "20261126"  # the same naps each time
Run = tuple[int, int, int]  # partition, first offset, the offset after the last


def fill_numbered(
    bootstrap: str, topic: str, partitions: int, records: int, size_bytes: int
) -> dict[int, int]:
    """Writes the records and returns each partition's end offset. Raises KafkaException."""
    settings = {"batch.size": 1_000_000, "linger.ms": 100, "batch.num.messages": 100_000}
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, **settings})
    ends = dict.fromkeys(range(partitions), records // partitions)
    for partition, end in ends.items():
        for offset in range(end):
            value = numbered(partition, offset, size_bytes)
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
    if unsent := producer.flush(_FLUSH_S):
        raise TimeoutError(f"{unsent} records were not written")
    return ends


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seconds`: from the first report of records to the last. `repeated`: records that were
    reported more than once."""

    seconds: float
    repeated: int


class Group:
    """A context manager that ends its members when it ends."""

    def __init__(self, bootstrap: str, topic: str, ends: Mapping[int, int]) -> None:
        self._arguments = [bootstrap, topic, f"{topic}-{uuid.uuid4()}"]
        self._counts = {partition: bytearray(end) for partition, end in ends.items()}
        self.records_left = sum(ends.values())
        self._repeated = 0
        self._runs: queue.Queue[tuple[float, list[Run]]] = queue.Queue()
        self._at: list[float] = []
        self._members = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._members.close()

    def join(self, instance: str = "", naps: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.group_member", *self._arguments]
        member = subprocess.Popen(
            [*command, instance, naps], stdout=subprocess.PIPE, text=True, cwd=_PROJECT
        )
        listener = threading.Thread(target=self._listen, args=(member,))
        listener.start()
        self._members.callback(_end, member, listener)
        return member

    def read_until(self, least: int) -> None:
        """Returns when at most `left` records have not been reported. Raises TimeoutError."""
        while self.records_left > least:
            try:
                at, runs = self._runs.get(timeout=_STALLED_S)
            except queue.Empty:
                raise TimeoutError(f"{self.records_left} records were not read") from None
            self._at.append(at)
            for partition, first, behind in runs:
                counted = self._counts[partition]
                again = counted.count(1, first, behind)
                counted[first:behind] = b"\x01" * (behind - first)
                self._repeated += again
                self.records_left -= behind - first - again

    def outcome(self) -> Outcome:
        """Call it only after everything is read."""
        assert not self.records_left
        return Outcome(self._at[-1] - self._at[0], self._repeated)

    def _listen(self, member: subprocess.Popen[str]) -> None:
        assert member.stdout is not None
        with member.stdout as lines:
            for line in lines:
                self._runs.put((time.monotonic(), json.loads(line)))


def _end(member: subprocess.Popen[str], listener: threading.Thread) -> None:
    if member.poll() is None:
        member.kill()
    member.wait(_END_S)
    listener.join(_END_S)


def _naps(group: Group) -> None:
    group.join(naps=_NAPS_SEED)
    group.read_until(0)


def _rebalances(group: Group) -> None:
    """A second member joins after a quarter is read and leaves after half is read."""
    records = group.records_left
    group.join()
    group.read_until(records * 3 // 4)
    second = group.join()
    group.read_until(records // 2)
    second.terminate()
    group.read_until(0)


def _killed(group: Group) -> None:
    """The member is killed and comes back at once under its instance id, so the group does not wait
    for the session timeout."""
    half = group.records_left // 2
    first = group.join("the-one")
    group.read_until(half)
    first.kill()
    first.wait(_END_S)
    group.join("the-one")
    group.read_until(0)


APPLICATIONS: Mapping[str, Callable[[Group], None]] = {
    "naps at random": _naps,
    "rebalances": _rebalances,
    "is killed and comes back": _killed,
}


def read_as(name: str, bootstrap: str, topic: str, ends: Mapping[int, int]) -> Outcome:
    """Reads as one of APPLICATIONS. Raises TimeoutError."""
    with Group(bootstrap, topic, ends) as group:
        APPLICATIONS[name](group)
        return group.outcome()
