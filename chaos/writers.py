"""Producers of numbered records, each in a thread and for one partition.

They enter in the ledger what the brokers have acknowledged. They never give up a record, because a
broker may be away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from random import Random

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from chaos.ledger import ABORTED, COMMITTED, Log

RECORDS_PER_S = 40
RECORDS_PER_S_CATCHING_UP = 1_000  # for a log that has to reach the end of another one
_TICK_S = 0.25
_WAITING_MAX = 400  # records without a response, above which the writer waits
_ABORTED_SHARE = 0.25
_CALL_S = 10.0
_LOG = logging.getLogger("chaos.clients")
_LOG.setLevel(logging.CRITICAL)  # errors that matter are returned by a record or a transaction


class Writer:
    """`rest` returns when all sent records have a response. `go_on` resumes writing."""

    def __init__(self, log: Log, bootstrap: str, *, idempotent: bool = False) -> None:
        self.log = log
        self._settings: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": idempotent,
            "acks": "all",
            "linger.ms": 20,
            "message.timeout.ms": 0,
        }
        self._writing, self._resting, self._stop = (threading.Event() for _ in range(3))
        self._writing.set()
        self.failure: str | None = None
        self.records_per_s = RECORDS_PER_S
        self._thread = threading.Thread(target=self._run, name=f"writer of {log.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def rest(self, timeout_s: float) -> bool:
        self._writing.clear()
        return self._resting.wait(timeout_s)

    def go_on(self) -> None:
        self._resting.clear()
        self._writing.set()

    def stop(self) -> None:
        self._stop.set()
        self._writing.clear()
        self._thread.join(30.0)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  # a writer that is gone is a fault of its own
            self.failure = f"{self._thread.name} ended: {error!r}"

    def _work(self) -> None:
        producer = Producer(self._settings, logger=_LOG)
        while not self._stop.is_set():
            if not self._writing.is_set():
                if producer.flush(0.2) == 0:
                    self._resting.set()
                continue
            if len(producer) < _WAITING_MAX:
                for _ in range(int(self.records_per_s * _TICK_S)):
                    self._send(producer, COMMITTED, self._acknowledged)
            producer.poll(_TICK_S)
            self._stop.wait(_TICK_S)

    def _send(self, producer: Producer, key: bytes, written: Callable[[int, bytes], None]) -> None:
        value = self.log.next_value()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                written(message.offset(), value)

        producer.produce(self.log.topic, value, key, self.log.partition, on_delivery=delivered)

    def _acknowledged(self, offset: int, value: bytes) -> None:
        self.log.written[offset] = value


class TransactionalWriter(Writer):
    """Aborts a quarter of its transactions. If it does not learn the outcome of a transaction, that
    transaction's offsets stay undecided in the ledger."""

    def __init__(self, log: Log, bootstrap: str, rng: Random) -> None:
        super().__init__(log, bootstrap, idempotent=True)
        self._rng = rng
        self._settings |= {"transactional.id": f"chaos-{log.name}"}
        del self._settings["message.timeout.ms"]

    def _work(self) -> None:
        producer: Producer | None = None
        while not self._stop.is_set():
            if not self._writing.is_set():
                self._resting.set()
                time.sleep(0.1)
                continue
            try:
                if producer is None:
                    producer = self._new_producer()
                self._transaction(producer)
            except KafkaException:
                producer = None  # the next one fences it; its transaction's outcome is unknown
            self._stop.wait(_TICK_S)

    def _new_producer(self) -> Producer:
        producer = Producer(self._settings, logger=_LOG)
        self._until_done(producer.init_transactions)
        return producer

    def _transaction(self, producer: Producer) -> None:
        offsets: set[int] = set()

        def written(offset: int, value: bytes) -> None:
            offsets.add(offset)
            self.log.undecided.add(offset)
            self.log.written[offset] = value

        key = ABORTED if self._rng.random() < _ABORTED_SHARE else COMMITTED
        producer.begin_transaction()
        for _ in range(int(RECORDS_PER_S * _TICK_S)):
            self._send(producer, key, written)
        committed = key == COMMITTED and self._until_done(producer.commit_transaction)
        if not committed:
            self._until_done(producer.abort_transaction)
            self.log.aborted |= offsets
        self.log.undecided -= offsets

    def _until_done(self, call: Callable[[float], object]) -> bool:
        """False: the transaction must be aborted. Raises KafkaException if the producer is dead."""
        while True:
            try:
                call(_CALL_S)
            except KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    return False
                if not error.retriable() or self._stop.is_set():
                    raise
            else:
                return True
