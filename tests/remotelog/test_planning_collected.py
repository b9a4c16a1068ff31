"""A planning reads what was collected of a topic in place of each segment's metadata, on any store,
and sees what is newer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from made_batches import Record, made_batch
from written_archive import TP, WrittenArchive

from fetchproxy.config.schema import MetadataConfig, StoreConfig
from fetchproxy.metadata.collected_metadata import READ_ALONE_MIN
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentState, TopicIdPartition
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.remotelog.archive_reading import plan_input
from fetchproxy.remotelog.options import parse_options
from fetchproxy.segments.description import encode_segment
from fetchproxy.storage.remote_storage import RemoteStorage, open_store
from fetchproxy.storage.stores.registry import open_object_store
from lab.s3 import S3Server

SEGMENTS = READ_ALONE_MIN


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    """Two partitions, with as many segments as are worth being collected."""
    made = WrittenArchive(tmp_path / "archive")
    for number in range(SEGMENTS):
        tp = TopicIdPartition(TP.topic_id, TP.topic, number % 2)
        made.add([made_batch(10 * (number // 2), [Record()] * 10)], tp=tp)
    return made


@pytest.fixture
async def on_s3(archive: WrittenArchive, s3_server: S3Server, s3_bucket: str) -> str:
    url = s3_server.store_url(s3_bucket, "kafka")
    store, prefix = open_object_store(url, StoreConfig(), create=True)
    try:
        for path in archive.folder.rglob("*"):
            if path.is_file() and "~" not in path.name:
                key = path.relative_to(archive.folder).as_posix()
                await store.put(prefix + key, path.read_bytes())
    finally:
        await store.close()
    return url


async def test_a_folder(archive: WrittenArchive) -> None:
    await check(archive.url, archive)


@pytest.mark.s3
async def test_s3(on_s3: str, archive: WrittenArchive) -> None:
    await check(on_s3, archive)


async def check(url: str, archive: WrittenArchive) -> None:
    expected, reads = await planned(url)
    assert reads == SEGMENTS
    async with open_store(url, StoreConfig()) as storage:
        await collect(storage)
        assert await planned(url) == (expected, 0)
        # Whatever has changed since is seen, and read by itself.
        gone, ended = archive.segments[:2]
        await storage.rsm.delete_log_segment_data(gone)
        deleted = ended.with_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 5)
        await storage.objects.put_segment_metadata(deleted, encode_segment(deleted))
        now, reads = await planned(url)
    assert now == {number: starts[1:] for number, starts in expected.items()}
    assert reads == 1


async def planned(url: str) -> tuple[dict[int, list[int]], int]:
    """The starts of each partition's segments, and how many metadata objects were read."""
    options = parse_options({"store": url, "topics": TP.topic, "failOnDataLoss": "false"})
    before = metadata_reads()
    views_and_spans = await asyncio.to_thread(plan_input, options)
    starts = {v.tp.partition: [s.start_offset for s in v.segments] for v, _ in views_and_spans}
    return starts, metadata_reads() - before


def metadata_reads() -> int:
    labels = {"operation": "get_segment_metadata"}
    name = "fetchproxy_store_request_seconds_count"
    return int(REGISTRY.get_sample_value(name, labels) or 0)


async def collect(storage: RemoteStorage) -> None:
    """As a proxy leaves it."""
    async with StoreBackedRemoteLogMetadataManager(
        storage, MetadataConfig(), collects=True
    ) as rlmm:
        await rlmm.refresh_topic(TP.topic_id, asyncio.get_running_loop().time())
        while await storage.objects.get_collected_metadata(TP.topic_id) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
