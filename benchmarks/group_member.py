"""One stock librdkafka consumer of a group. It prints what it has read, then commits.

`python -m benchmarks.group_member BOOTSTRAP TOPIC GROUP INSTANCE SLEEPS` runs until SIGTERM. After
every 10,000 records, or when none comes, it prints a line of JSON: a list of [partition, first
offset, offset after the last]. INSTANCE is its `group.instance.id` or "". SLEEPS is the seed of its
naps or "". Each record's value must name its own position (`numbered`).
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaException, Message

_TOLD_EACH = 10_000
# The share of steps, in percent, that end in a nap as long as a pause and in a short nap.
_LONG_NAPS, _LONG_NAP_S = 6, 1.2
_SHORT_NAPS, _SHORT_NAP_S = 30, 0.05


def numbered(partition: int, offset: int, size_bytes: int) -> bytes:
    """The value of the record at this offset."""
    return (b"%d/%d" % (partition, offset)).ljust(size_bytes, b".")


class Member:
    def __init__(self, bootstrap: str, topic: str, group: str, instance: str, naps: str) -> None:
        settings: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "client.id": group,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        if instance:
            settings["group.instance.id"] = instance
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic], on_revoke=lambda consumer, partitions: self._tell())
        self._naps = random.Random(naps) if naps else None
        self._runs: dict[int, list[int]] = {}
        self._untold = 0
        self.stopped = False

    def read(self) -> None:
        """Reads until `stopped` is set. Raises KafkaException."""
        while not self.stopped:
            message = self._consumer.poll(0.1)
            if message is not None:
                self._take(message)
            if self._untold >= _TOLD_EACH or message is None:
                self._tell()
                if message is not None:
                    self._nap()
        self._consumer.close()

    def _take(self, message: Message) -> None:
        if (error := message.error()) is not None:
            raise KafkaException(error)
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        if value != numbered(partition, offset, len(value)):
            raise SystemExit(f"{partition}/{offset} holds {value!r}")
        run = self._runs.setdefault(partition, [offset, offset])
        if run[1] != offset:
            raise SystemExit(f"{partition}/{offset} comes behind {run[1] - 1}")
        run[1] = offset + 1
        self._untold += 1

    def _tell(self) -> None:
        if not self._untold:
            return
        runs = [[partition, *run] for partition, run in self._runs.items()]
        print(json.dumps(runs), flush=True)
        self._consumer.commit(asynchronous=False)
        self._runs, self._untold = {}, 0

    def _nap(self) -> None:
        if self._naps is None:
            return
        kind = self._naps.randrange(100)
        if kind < _LONG_NAPS:
            time.sleep(self._naps.uniform(0, _LONG_NAP_S))
        elif kind < _LONG_NAPS + _SHORT_NAPS:
            time.sleep(self._naps.uniform(0, _SHORT_NAP_S))


if __name__ == "__main__":
    member = Member(*sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda number, frame: setattr(member, "stopped", True))
    member.read()
