"""`python -m demo.console_picture FILE` takes the README's picture of the console.

It runs a real Kafka, `fetchproxy serve` with an archiver, producers, readers of the tail and of the
archive, and the machine's own Chromium. It needs `python -m lab setup kafka`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lab import limited
from lab.browser import Browser
from lab.kafka import KafkaServer
from lab.process import ServerProcess, free_port

_TOPICS = {"clicks": 1, "orders": 3, "payments": 2}
_RECORDS = {"clicks": 30_000, "orders": 18_000, "payments": 12_000}  # in each partition, at most
_FORGOTTEN = 0.7  # the share of them that the broker deletes
_MARGIN_BELOW = 24  # px below the table of partitions
_SETTINGS = {
    "archive.segment_bytes_max": 1024 * 1024,
    "archive.segment_age_max_ms": 1_000,
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.console.refresh_interval_ms": 500,
    "limits.console.sample_interval_ms": 500,
}


def main(arguments: list[str]) -> None:
    """Takes a minute. The store's path is short, because the page shows it."""
    picture, store = Path(arguments[0]).absolute(), Path("/tmp/kafka-archive")
    assert not store.exists(), f"{store} is in the way"
    with tempfile.TemporaryDirectory() as folder, KafkaServer() as kafka:
        for topic, partitions in _TOPICS.items():
            kafka.create_topic(topic, partitions)
        _produce(kafka.bootstrap)
        listen, console = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        command = [*limited.command(_SETTINGS), "serve", "--bootstrap", kafka.bootstrap]
        command += ["--store", f"file://{store}", "--listen", listen]
        command += ["--archive", "|".join(_TOPICS), "--console", console]
        command += limited.options(_SETTINGS)
        proxy, done = ServerProcess("fetchproxy", command, Path(folder) / "log"), threading.Event()
        with Browser() as page:
            try:
                proxy.start()
                proxy.wait_until(lambda: _is_archived(console), 600.0)
                _forget(kafka.bootstrap)
                clients = [
                    threading.Thread(target=work, args=(listen, done.is_set))
                    for work in (_write_on, _replay, _read_the_tail)
                ]
                for client in clients:
                    client.start()
                time.sleep(20)  # the charts need samples
                _take(page, console, picture)
                done.set()
                for client in clients:
                    client.join()
            finally:
                done.set()
                proxy.stop()
                shutil.rmtree(store, ignore_errors=True)


def _is_archived(console: str) -> bool:
    """Before the broker deletes records."""
    try:
        with urllib.request.urlopen(f"http://{console}/api/status?rows_max=0") as response:
            totals = json.load(response)["totals"]
    except OSError:  # it does not listen yet
        return False
    return bool(totals["partitions"] == len(_partitions()) and totals["lag_offsets"] == 0)


def _take(page: Browser, console: str, picture: Path) -> None:
    page.open(f"http://{console}/")
    bottom = "document.getElementById('partitions').getBoundingClientRect().bottom"
    while not page.evaluate(f"{bottom} && !document.getElementById('charts-part').hidden"):
        time.sleep(0.5)
    time.sleep(4)  # the page has the figures of a second
    page.evaluate("document.documentElement.style.overflow = 'hidden'")
    page.screenshot(picture, int(page.evaluate(bottom)) + _MARGIN_BELOW)


def _partitions() -> list[tuple[str, int]]:
    return [(topic, number) for topic, count in _TOPICS.items() for number in range(count)]


def _produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic, partition in _partitions():
        for _ in range(_RECORDS[topic] - 1_700 * partition):
            producer.produce(topic, value=os.urandom(400), partition=partition)
        producer.flush()


def _forget(bootstrap: str) -> None:
    places = [
        TopicPartition(topic, number, int(_FORGOTTEN * (_RECORDS[topic] - 1_700 * number)))
        for topic, number in _partitions()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records(places).values():
        future.result()


def _write_on(bootstrap: str, done: Callable[[], bool]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    while not done():
        for topic, partition in _partitions():
            producer.produce(topic, value=os.urandom(400), partition=partition)
        producer.poll(0.005)
    producer.flush(1)


def _replay(bootstrap: str, done: Callable[[], bool]) -> None:
    """Reads from offset 0 repeatedly."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "replay"})
    while not done():
        consumer.assign([TopicPartition("orders", number, 0) for number in range(3)])
        for _ in range(40):
            consumer.consume(500, timeout=0.1)
    consumer.close()


def _read_the_tail(bootstrap: str, done: Callable[[], bool]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tail"})
    consumer.subscribe(list(_TOPICS))
    while not done():
        consumer.consume(1_000, timeout=0.1)
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
