"""A topic that grows evenly while something else is measured."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Producer

from benchmarks.numbered_records import value_of
from lab.errors import PartFailed

GROWING = "benchmark-growing"
RECORD_BYTES = 1024
GROWING_RECORDS_PER_S = 1000


class Growing:
    """Produces to the only partition of `GROWING`, in a thread."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20}
        )
        self._over = threading.Event()
        self._produced = 0
        self._thread = threading.Thread(target=self._run, name="growing", daemon=True)

    def stop(self) -> int:
        """Stops and returns the number of records produced. Raises PartFailed."""
        self._over.set()
        self._thread.join()
        if self._producer.flush(60.0):
            raise PartFailed("the broker does not take records")
        return self._produced

    def __enter__(self) -> Growing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(0.1):
            due = int((time.monotonic() - began) * GROWING_RECORDS_PER_S)
            for number in range(self._produced, due):
                self._producer.produce(GROWING, value_of(0, number, RECORD_BYTES), partition=0)
            self._produced = due
            self._producer.poll(0)
