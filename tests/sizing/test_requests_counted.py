"""A real S3 server counts what archiving, listing, reading and deleting segments take.

The server's own access log is the oracle. What it counts is what `fetchproxy.sizing` says, within
5%. Requests that follow from time alone are left out: looks each few seconds, whose constants are
compared in `test_coefficients`, and second requests for slow reads, which are 5% at most.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from fetchproxy_command import PROJECT
from proxy_process import wait_for
from segment_values import segment_of

from fetchproxy.config.schema import MetadataConfig, StoreConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.sizing.coefficients import COEFFICIENTS
from fetchproxy.sizing.estimate import log_writes
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.registry import open_object_store
from lab import limited
from lab.kafka import KafkaServer
from lab.process import ServerProcess, free_port
from lab.s3 import S3Server

pytestmark = [pytest.mark.kafka, pytest.mark.s3]

LINE = re.compile(r" s3_(\w+) (\S+) (\S+) \d{3} ")
# No look that follows from time alone falls into a test: retention and orphans begin in an hour.
SETTINGS = {
    "archive.segment_age_max_ms": "1h",
    "limits.writing.retention_clock_settle_ms": 3_600_000,
    "limits.writing.remote_refresh_interval_ms": 3_600_000,
}
READS_AT_START = 2  # of `finished-offsets`
WRITES = frozenset(["PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])


@dataclass(frozen=True, slots=True)
class CountingStore:
    server: S3Server
    log: Path
    topic: str

    @property
    def url(self) -> str:
        return self.server.store_url("archive", "prefix")

    def now(self) -> int:
        return self.log.stat().st_size

    def requests(self, since: int) -> Iterator[tuple[str, str]]:
        """(operation, key or URL) of those about the topic's folder."""
        with self.log.open("rb") as log:
            log.seek(since)
            for operation, key, url in LINE.findall(log.read().decode()):
                if f"/{self.topic}-" in key or f"%2F{self.topic}-" in url:
                    yield operation, key

    def counted(self, since: int) -> Counter[str]:
        """By kind: `write`, `listing`, `read`, `deletion`, `clean-up`."""
        return Counter(kind_of(operation) for operation, _ in self.requests(since))

    def finished(self) -> int:
        """The last write of a copy is that of `finished-offsets`."""
        return sum(
            operation == "PutObject" and key.endswith("/finished-offsets")
            for operation, key in self.requests(0)
        )

    def logs(self) -> list[Path]:
        folder = self.server.objects / "archive" / "prefix"
        return list(folder.glob(f"{self.topic}-*/*/*.log"))


def kind_of(operation: str) -> str:
    if operation in WRITES:
        return "write"
    kinds = {
        "DeleteObject": "deletion",
        "GetObject": "read",
        "ListObjectsV2": "listing",
        # Of a copy that the end of the process has interrupted.
        "ListMultipartUploads": "clean-up",
        "AbortMultipartUpload": "clean-up",
    }
    return kinds[operation]


@pytest.fixture
def store(
    tmp_path: Path,
    topic: str,
    serve_part: Callable[[str, S3Server], Iterator[S3Server]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CountingStore]:
    log = tmp_path / "access.log"
    for server in serve_part("s3", S3Server(access_log=log)):
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.create_bucket("archive")
        yield CountingStore(server, log, topic)


@contextmanager
def running(folder: Path, settings: dict[str, object], *arguments: str) -> Iterator[None]:
    words = [*limited.command(settings), *arguments, *limited.options(settings)]
    process = ServerProcess("fetchproxy", words, folder / "fetchproxy.log", cwd=PROJECT)
    process.start()
    try:
        yield
    finally:
        process.stop()


@contextmanager
def archiver(
    kafka: KafkaServer, store: CountingStore, folder: Path, **settings: object
) -> Iterator[None]:
    all_settings = SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}
    places = ("--bootstrap", kafka.bootstrap, "--store", store.url, "--topics", store.topic)
    with running(folder, all_settings, "archive", *places):
        yield


def produce(kafka: KafkaServer, topic: str, count: int, size: int) -> None:
    """One record a batch."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "batch.num.messages": 1})
    for _ in range(count):
        producer.produce(topic, bytes(size), partition=0)
        producer.poll(0)
        while len(producer) > 200:
            producer.poll(0.1)
    producer.flush()


def wait_until_finished(store: CountingStore, copies: int) -> None:
    """The first copy writes `finished-offsets` twice."""
    wait_for(f"{copies} copies", lambda: store.finished() > copies, timeout_s=300)


def test_segments_of_several_parts_and_their_readers(
    kafka_server: KafkaServer, store: CountingStore, tmp_path: Path
) -> None:
    produce(kafka_server, store.topic, 250, 900_000)  # 225 MB
    with archiver(kafka_server, store, tmp_path, archive__segment_bytes_max="10MiB"):
        wait_until_finished(store, 20)
    requests, sizes = store.counted(0), [path.stat().st_size for path in store.logs()]
    assert len(sizes) >= 20
    writes = sum(COEFFICIENTS.segment_writes + log_writes(size, COEFFICIENTS) for size in sizes)
    assert requests["write"] == pytest.approx(writes, rel=0.05)
    assert requests["read"] == pytest.approx(
        len(sizes) * COEFFICIENTS.segment_reads_store, abs=READS_AT_START
    )

    before, port = store.now(), free_port()
    node = ("serve", "--archive-only", "--store", store.url, "--listen", f"127.0.0.1:{port}")
    with running(tmp_path, {"limits.reading.hedged_reads_share_max": 0}, *node):
        read_all(f"127.0.0.1:{port}", store.topic)
    reads = len(sizes) * COEFFICIENTS.segment_reads_by_reader
    reads += sum(ceil(size / COEFFICIENTS.chunk_bytes) for size in sizes)
    assert store.counted(before)["read"] == pytest.approx(reads, rel=0.05)


@pytest.mark.slow
def test_a_listing_grows_with_the_partition_and_retention_deletes_all_objects(
    kafka_server: KafkaServer, store: CountingStore, tmp_path: Path
) -> None:
    """300 segments: the last looks take two requests each."""
    count = 300
    produce(kafka_server, store.topic, count + 1, 1500)
    with archiver(kafka_server, store, tmp_path, archive__segment_bytes_max="1KiB"):
        wait_until_finished(store, count - 1)
    requests, segments = store.counted(0), len(store.logs())
    assert segments >= count - 1
    per_segment = COEFFICIENTS.segment_writes + log_writes(1500, COEFFICIENTS)
    assert requests["write"] == pytest.approx(segments * per_segment, rel=0.05)
    reads = segments * COEFFICIENTS.segment_reads_store
    assert requests["read"] == pytest.approx(reads, abs=READS_AT_START)
    a_page = COEFFICIENTS.page_objects / COEFFICIENTS.objects_per_segment
    pages = sum(max(1, ceil(number / a_page)) for number in range(segments))
    listings = COEFFICIENTS.segment_listings_store * pages
    assert listings > COEFFICIENTS.segment_listings_store * segments * 1.1
    assert requests["listing"] == pytest.approx(listings, rel=0.05)

    before = store.now()
    retention = {
        "archive__remote_log_retention_bytes": 1,
        "archive__retention_grace_ms": 0,
        "archive__retention_step_grace_ms": 0,
        "limits__writing__retention_clock_settle_ms": 1,
    }
    with archiver(kafka_server, store, tmp_path, archive__segment_bytes_max="1KiB", **retention):
        wait_for("retention", lambda: len(store.logs()) <= 1, timeout_s=300)
        deletions = (segments - 1) * COEFFICIENTS.deletion_deletes
        enough = deletions - COEFFICIENTS.deletion_deletes
        wait_for("deletions", lambda: store.counted(before)["deletion"] > enough, timeout_s=300)
    deleted = store.counted(before)
    assert deleted["deletion"] == pytest.approx(deletions, rel=0.05)
    assert segments - 1 <= deleted["write"] <= segments * COEFFICIENTS.deletion_writes


@pytest.mark.parametrize("segments", [100, 499, 500, 750])
async def test_looks_at_a_long_partition_list_its_ends(store: CountingStore, segments: int) -> None:
    """What an archiver or a proxy lists for a partition of so many segments, look by look."""
    opened, prefix = open_object_store(store.url, StoreConfig())
    storage = RemoteStorage(opened, prefix)
    manager = StoreBackedRemoteLogMetadataManager(storage, MetadataConfig(), looks_at_ends=True)
    tp, clock = TopicIdPartition(uuid4(), store.topic, 0), asyncio.get_running_loop().time
    async with storage, manager:
        made = [segment_of(tp, number, 10 * number, 10 * number + 9) for number in range(segments)]
        await for_each(made, partial(plant, storage), 16)
        pages = ceil(segments * COEFFICIENTS.objects_per_segment / COEFFICIENTS.page_objects)
        is_long = segments >= COEFFICIENTS.whole_below_segments
        # The first look does not know the partition; the second one sees where its past stands.
        for expected in (pages, pages + is_long, *[COEFFICIENTS.ends_listings] * 3 * is_long):
            since = store.now()
            view = await manager.refresh(tp, clock())
            assert len(view.segments) == segments
            assert store.counted(since)["listing"] == expected
        since, last = store.now(), segment_of(tp, segments, 10 * segments, 10 * segments + 9)
        await plant(storage, last)
        view = await manager.refresh(tp, clock())
        assert view.log_end_offset == 10 * segments + 10
        requests = store.counted(since)
        assert requests["listing"] == (COEFFICIENTS.ends_listings if is_long else pages)
        assert requests["read"] == 1


async def plant(storage: RemoteStorage, metadata: RemoteLogSegmentMetadata) -> None:
    """The names of a segment's objects; their content is not read."""
    await storage.objects.put_segment_metadata(metadata, encode_segment(metadata))
    for file in (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS):
        await storage.store.put(storage.rsm.object_key(metadata, file), b"")


def test_an_object_of_the_journal_is_one_write_and_one_deletion(
    kafka_server: KafkaServer, store: CountingStore, tmp_path: Path
) -> None:
    """And a state of the cluster one listing and one write."""

    def counted(folder: str, operation: str) -> Counter[str]:
        with store.log.open("rb") as log:
            requests = LINE.findall(log.read().decode())
        return Counter(key for name, key, _ in requests if name == operation and folder in key)

    def has_objects(number: int) -> bool:
        return len(counted("/journals/", "PutObject")) >= number

    def journal_is_cut() -> bool:
        written = counted("/journals/", "PutObject")
        return len(written) >= 3 and counted("/journals/", "DeleteObject") == written

    changes = {"archive__recovery_point_ms": "200ms", "archive__segment_age_max_ms": "3s"}
    changes |= {"archive__cluster_state_interval_ms": "1s"}
    with archiver(kafka_server, store, tmp_path, **changes):
        for number in range(1, 4):
            produce(kafka_server, store.topic, 5, 100)
            wait_for("an object", partial(has_objects, number), timeout_s=300)
        wait_for("segments", journal_is_cut, timeout_s=300)
        states = "/cluster-states/"
        wait_for("a state", lambda: len(counted(states, "PutObject")) > 0, timeout_s=300)
    assert set(counted("/journals/", "PutObject").values()) == {1}
    assert set(counted(states, "PutObject").values()) == {1}
    with store.log.open("rb") as log:
        lines = log.read().decode().splitlines()
    listings = sum("ListObjectsV2" in line and "cluster-states" in line for line in lines)
    assert listings == len(counted(states, "PutObject"))


def read_all(bootstrap: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    partition = TopicPartition(topic, 0, 0)
    end = None
    while end is None:
        try:
            _, end = consumer.get_watermark_offsets(partition, timeout=5)
        except Exception:  # noqa: BLE001  # it does not listen yet
            time.sleep(0.2)
    consumer.assign([partition])
    reached = 0
    while reached < end:
        for message in consumer.consume(100, 1):
            assert message.error() is None, message.error()
            reached = message.offset() + 1
    consumer.close()
