"""The folder of cache files and its commits."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from segment_values import STARTED, segment

from fetchproxy.errors import ConfigError
from fetchproxy.metadata.flat_files import COMMITTED, SegmentMetadataCache
from fetchproxy.model import TopicIdPartition

TOPIC_ID = UUID(int=77)
TPS = [
    TopicIdPartition(UUID(int=5), "a", 0),
    TopicIdPartition(UUID(bytes=b"\xff" * 16), "-_.", 12),
    TopicIdPartition(UUID(bytes=b"\xfb" * 16), "-_.", 12),  # the same name, created again
    TopicIdPartition(UUID(int=6), "x" * 249, 2**31 - 1),
]


def fill(cache: SegmentMetadataCache, tps: list[TopicIdPartition]) -> None:
    for tp in tps:
        file = cache.file(tp)
        file.load()
        file.append([segment(1, 0, 9, STARTED, tp=tp)], 10)
        file.sync()


def test_partitions_are_known_by_their_files_names(tmp_path: Path) -> None:
    with SegmentMetadataCache(tmp_path / "new" / "cache") as cache:
        assert cache.partitions() == []
        fill(cache, TPS)
        (tmp_path / "new" / "cache" / "a" / "0-short.remote-log-metadata").touch()
        (tmp_path / "new" / "cache" / "a" / "notes.txt").touch()
        assert cache.partitions() == sorted(TPS)


def test_offsets_are_kept(tmp_path: Path) -> None:
    with SegmentMetadataCache(tmp_path) as cache:
        assert cache.load_committed(TOPIC_ID) == {}
        fill(cache, TPS)
        cache.commit(TOPIC_ID, {0: 5, 31: 2**40})
        cache.commit(TOPIC_ID, {0: 6, 31: 2**40, 2: 0})
    with SegmentMetadataCache(tmp_path) as cache:
        assert cache.load_committed(TOPIC_ID) == {0: 6, 2: 0, 31: 2**40}
        assert len(cache.partitions()) == len(TPS)


def test_every_byte_of_it_counts(tmp_path: Path) -> None:
    with SegmentMetadataCache(tmp_path) as cache:
        cache.commit(TOPIC_ID, {0: 5, 1: 1234})
        path = tmp_path / COMMITTED
        good = path.read_bytes()
        for at in range(len(good)):
            for bad in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
                path.write_bytes(bad)
                fill(cache, TPS[:1])
                assert cache.load_committed(TOPIC_ID) == {}
                assert cache.partitions() == []
        path.write_bytes(good)
        assert cache.load_committed(TOPIC_ID) == {0: 5, 1: 1234}


def test_offsets_of_another_metadata_topic_are_worth_nothing(tmp_path: Path) -> None:
    with SegmentMetadataCache(tmp_path) as cache:
        fill(cache, TPS)
        cache.commit(TOPIC_ID, {0: 5})
        assert cache.load_committed(UUID(int=78)) == {}
        assert cache.partitions() == []
        assert cache.load_committed(TOPIC_ID) == {}


def test_a_lost_file_is_noticed(tmp_path: Path) -> None:
    with SegmentMetadataCache(tmp_path) as cache:
        fill(cache, TPS)
        cache.commit(TOPIC_ID, {0: 5})
        cache.file(TPS[1]).path.unlink()
        assert cache.load_committed(TOPIC_ID) == {}
        assert cache.partitions() == []


def test_files_without_a_commit_are_worth_nothing(tmp_path: Path) -> None:
    """Earlier events may be missing in them, and it is unknown which."""
    with SegmentMetadataCache(tmp_path) as cache:
        fill(cache, TPS)
        assert cache.load_committed(TOPIC_ID) == {}
        assert cache.partitions() == []


def test_a_deleted_partition_is_no_lost_file(tmp_path: Path) -> None:
    with SegmentMetadataCache(tmp_path) as cache:
        fill(cache, TPS)
        cache.commit(TOPIC_ID, {0: 5}, deleted_tps=TPS[:2])
        assert cache.partitions() == sorted(TPS[2:])
        assert cache.load_committed(TOPIC_ID) == {0: 5}
        fill(cache, TPS[:1])  # a crash before its removal
        assert cache.load_committed(TOPIC_ID) == {0: 5}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        SegmentMetadataCache(tmp_path),
        pytest.raises(ConfigError, match="another process uses it"),
    ):
        SegmentMetadataCache(tmp_path).__enter__()
    with SegmentMetadataCache(tmp_path):
        pass
