"""`fetchproxy cluster recover-journal`, after SIGKILL of an archiver and the end of its brokers."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from confluent_kafka import Producer
from fetchproxy_command import COMMAND, PROJECT, fetchproxy, output_of

from lab.mock_cluster import MockCluster


def segments(store: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(
        output_of("segments", "--store", store.as_uri(), "--json")
    )
    return rows


def until_journal_has(store: Path, size_bytes: int) -> None:
    """The store has no events. Only a hang takes this long."""
    ends = time.monotonic() + 300
    while sum(path.stat().st_size for path in store.glob("journals/*/*")) < size_bytes:
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_the_archive_ends_where_the_journal_ended(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with MockCluster() as mock:
        producer = Producer({"bootstrap.servers": mock.bootstrap, "batch.size": 10_000})
        for number in range(1_000):
            producer.produce("orders", b"v" * 100, str(number).encode(), partition=0)
        assert producer.flush(180) == 0
        archiver = subprocess.Popen(
            [*COMMAND, "archive", "--bootstrap", mock.bootstrap, "--store", store.as_uri(),
             "--topics", "orders", "--create", "--set", "archive.recovery_point_ms=100ms"],
            cwd=PROJECT,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until_journal_has(store, 100_000)
        finally:
            archiver.kill()
            archiver.wait()
    assert not list(store.glob("orders*/*/*.log"))
    printed = output_of("cluster", "recover-journal", "--store", store.as_uri())
    assert "the journal had more records than the archive for 1 of 1 partition" in printed
    assert sum(int(str(row["last_offset"])) + 1 for row in segments(store)) == 1_000
    again = output_of("cluster", "recover-journal", "--store", store.as_uri(), "--json")
    assert json.loads(again) == {"partitions": [], "faults": []}
    assert list(store.glob("journals/*/*")) == []
    done = fetchproxy("verify", "--store", store.as_uri())
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_place_without_an_archive(tmp_path: Path) -> None:
    done = fetchproxy("cluster", "recover-journal", "--store", tmp_path.as_uri())
    assert done.returncode == 2
    assert "archive" in done.stderr
