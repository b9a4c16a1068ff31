"""A stock consumer in a thread that a test can hold in the middle and let go on.

It never resets its offset and keeps every error of its client. It reads in small steps, so that at
a hold the client has no later records yet.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import confluent_kafka
import kafka
import pytest
from client_readers import Records
from proxy_process import wait_for

READ_S = 120.0
STEP_BYTES = 8_000
CLIENTS = ("kafka-python", "confluent-kafka")
Poll = Callable[[], list[tuple[int, int, bytes, bytes]]]  # partition, offset, key, value


class HeldReader:
    """`with HeldReader("kafka-python", bootstrap, topic, ends) as reader`; reads from offset 0.

    `hold_at`: after this many records it stops polling until `go_on()`.
    """

    def __init__(
        self,
        client: str,
        bootstrap: str,
        topic: str,
        ends: Mapping[int, int],
        hold_at: int | None = None,
        **more: object,
    ) -> None:
        self.read: Records = {partition: [] for partition in ends}
        self.errors: list[object] = []
        self.arrived_at: dict[tuple[int, int], float] = {}  # (partition, offset): monotonic s
        self._open = {"kafka-python": self._kafka_python, "confluent-kafka": self._confluent}[
            client
        ]
        self._bootstrap, self._topic, self._ends, self._more = bootstrap, topic, ends, more
        self._hold_at = hold_at
        self._paused, self._go_on, self._stop = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name=f"reader {client}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._go_on.set()
        self._thread.join()

    @property
    def count(self) -> int:
        return sum(map(len, self.read.values()))

    @property
    def finished(self) -> bool:
        return not self._thread.is_alive()

    def wait_until_held(self) -> None:
        wait_for("the reader in the middle", lambda: self._paused.is_set() or self.finished)
        assert not self.finished, self.errors

    def go_on(self) -> None:
        self._go_on.set()

    def records(self) -> Records:
        """All records, once the ends are reached; the client must have shown no error."""
        self._thread.join(READ_S)
        assert not self.errors, self.errors
        assert self.finished, f"read {self.count} of {self._ends}"
        return self.read

    def _run(self) -> None:
        poll, close = self._open()
        try:
            while not self._stop.is_set() and not self._done():
                for partition, offset, key, value in poll():
                    self.read[partition].append((offset, key, value))
                    self.arrived_at[partition, offset] = time.monotonic()
                if self._hold_at is not None and self.count >= self._hold_at:
                    self._hold_at = None
                    self._paused.set()
                    self._go_on.wait()
        except Exception as error:  # noqa: BLE001 - shown to the test, which asserts on it
            self.errors.append(error)
        finally:
            close()

    def _done(self) -> bool:
        """This compares visible records with the ends: for topics without transactions only."""
        return all(
            records and records[-1][0] >= self._ends[p] - 1
            for p, records in self.read.items()
            if self._ends[p] > 0
        )

    def _kafka_python(self) -> tuple[Poll, Callable[[], None]]:
        settings: dict[str, Any] = {
            "max_partition_fetch_bytes": STEP_BYTES,
            "auto_offset_reset": "none",
            **self._more,
        }
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, **settings
        )
        tps = [kafka.TopicPartition(self._topic, p) for p in self._ends]
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, 0)

        def poll() -> list[tuple[int, int, bytes, bytes]]:
            polled = consumer.poll(timeout_ms=100, max_records=20)
            return [(r.partition, r.offset, r.key, r.value) for rs in polled.values() for r in rs]

        return poll, consumer.close

    def _confluent(self) -> tuple[Poll, Callable[[], None]]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "held",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": STEP_BYTES,
                "queued.min.messages": 1,
                "queued.max.messages.kbytes": 1,
                "fetch.queue.backoff.ms": 10,
                **self._more,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(self._topic, p, 0) for p in self._ends])

        def poll() -> list[tuple[int, int, bytes, bytes]]:
            messages = consumer.consume(20, timeout=0.1)
            for message in messages:
                assert message.error() is None, message.error()
            return [(m.partition(), m.offset(), m.key(), m.value()) for m in messages]

        return poll, consumer.close


@pytest.fixture
def collected_here() -> Iterator[None]:
    """Collect here and not in a later test, where an unclosed socket is an error."""
    yield
    gc.collect()


@contextmanager
def held_readers(
    bootstrap: str, topic: str, ends: Mapping[int, int], hold_at: int | None = None
) -> Iterator[list[HeldReader]]:
    """One reader with each client; with `hold_at`, both are held there already."""
    with ExitStack() as stack:
        readers = [
            stack.enter_context(HeldReader(client, bootstrap, topic, ends, hold_at))
            for client in CLIENTS
        ]
        if hold_at is not None:
            for reader in readers:
                reader.wait_until_held()
        yield readers
