"""What every object store, and the RemoteStorageManager over it, must do. One suite for all.

A backend's test module subclasses the two contracts and gives the fixture `store`: an open, empty
`ObjectStore` with the smallest part size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from fetchproxy.errors import (
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageUnavailable,
)
from fetchproxy.model import (
    ByteRange,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.storage.api import ObjectStore, StoredObject
from fetchproxy.storage.layout import LAYOUT_OBJECT, SegmentFile
from fetchproxy.storage.remote_storage_manager import LogSegmentData, RemoteStorageManager

MiB = 1024 * 1024
PART_BYTES = 5 * MiB

# Every character Kafka takes in a topic name, and names that sort differently as folders.
ODD_KEYS = sorted(
    [
        "a/b",
        "a-/b",
        "a./b",
        "a0/b",
        "a_/b",
        "A/b",
        ".hidden/x",
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/0/00-x.log",
        "-starts_with.dash/x",
        "z",
    ]
)

ILLEGAL_KEYS = ["", "/", "/etc/passwd", "../x", "..", "a/../../x", "a/./b", "a//b", "a/", "~put-1"]
ILLEGAL_KEYS += ["a\0b", "ä", "a b", "a\\b", "a%2fb", "a\n", "x" * 1025]


async def keys_of(listing: AsyncIterator[StoredObject]) -> list[str]:
    return [found.key async for found in listing]


def noise(size_bytes: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size_bytes)


async def cancel_after_turns(work: asyncio.Task[None], turns: int, turn_s: float) -> None:
    """Let `work` run for so many turns of the loop, then cancel it."""
    for _ in range(turns):
        await asyncio.sleep(turn_s)
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


class ObjectStoreContract:
    many_keys = 1234  # more than one page of a listing
    cancel_turn_s = 0.0

    async def test_an_absent_key_is_not_found(self, store: ObjectStore) -> None:
        await store.put("there/x", b"x")
        for key in ("absent", "there/y", "there/x/y", "nowhere/at/all"):
            with pytest.raises(ObjectNotFound):
                await store.get(key)
            with pytest.raises(ObjectNotFound):
                await store.get_range(key, ByteRange(0, 1))

    async def test_a_folder_is_no_object(self, store: ObjectStore) -> None:
        await store.put("folder/x", b"x")
        with pytest.raises(ObjectNotFound):
            await store.get("folder")

    @pytest.mark.parametrize("content", [b"", b"\0", b"hello", bytes(range(256)) * 5000])
    async def test_what_is_put_is_got(self, store: ObjectStore, content: bytes) -> None:
        await store.put("k/o", content)
        assert await store.get("k/o") == content

    async def test_ranges(self, store: ObjectStore) -> None:
        content = noise(1000)
        await store.put("k", content)
        for start, end in ((0, 1), (999, 1000), (0, 1000), (17, 500), (500, 5000), (0, 1001)):
            assert await store.get_range("k", ByteRange(start, end)) == content[start:end]

    async def test_a_range_past_the_end_is_an_error(self, store: ObjectStore) -> None:
        await store.put("k", b"0123456789")
        for start in (10, 11, 2**40):
            with pytest.raises(RangeNotSatisfiable):
                await store.get_range("k", ByteRange(start, start + 5))

    async def test_no_range_of_an_empty_object(self, store: ObjectStore) -> None:
        await store.put("k", b"")
        with pytest.raises(RangeNotSatisfiable):
            await store.get_range("k", ByteRange(0, 1))

    async def test_a_second_put_replaces(self, store: ObjectStore) -> None:
        await store.put("k", b"first, longer")
        [before] = [found async for found in store.list("k")]
        await store.put("k", b"second")
        [after] = [found async for found in store.list("k")]
        assert await store.get("k") == b"second"
        assert (after.key, after.size_bytes) == ("k", 6)
        assert after.version != before.version

    async def test_the_version_stays_with_the_content(self, store: ObjectStore) -> None:
        await store.put("k", b"same")
        first = [found async for found in store.list("")]
        await store.get("k")
        assert [found async for found in store.list("")] == first

    async def test_a_listing_is_in_the_order_of_keys(self, store: ObjectStore) -> None:
        for key in reversed(ODD_KEYS):
            await store.put(key, key.encode())
        found = [o async for o in store.list("")]
        assert [o.key for o in found] == ODD_KEYS
        assert [o.size_bytes for o in found] == [len(key) for key in ODD_KEYS]
        for key in ODD_KEYS:
            assert await store.get(key) == key.encode()

    async def test_a_listing_starts_after_a_key(self, store: ObjectStore) -> None:
        for key in ODD_KEYS:
            await store.put(key, b"")
        for start_after in (*ODD_KEYS, "a", "a/", "a/b/", "a/b0", "zz", "0"):
            expected = [key for key in ODD_KEYS if key > start_after]
            assert await keys_of(store.list("", start_after)) == expected, start_after

    async def test_a_prefix_need_not_end_at_a_folder(self, store: ObjectStore) -> None:
        for key in ("t-a/0/1.log", "t-a/0/12.log", "t-a/1/1.log", "t-ab/0/1.log", "u"):
            await store.put(key, b"")
        assert await keys_of(store.list("t-a/0/1")) == ["t-a/0/1.log", "t-a/0/12.log"]
        assert await keys_of(store.list("t-a/0/1", "t-a/0/1.log")) == ["t-a/0/12.log"]
        assert await keys_of(store.list("t-a")) == [
            "t-a/0/1.log",
            "t-a/0/12.log",
            "t-a/1/1.log",
            "t-ab/0/1.log",
        ]
        assert await keys_of(store.list("t-a/2")) == []
        assert await keys_of(store.list("nothing/here/")) == []

    async def test_folders(self, store: ObjectStore) -> None:
        assert [name async for name in store.list_folders("")] == []
        for key in ("b/0/x", "b/0/y", "b/1/z", "b/10/z", "b/file", "b-c/0/x", "a/x", "top"):
            await store.put(key, b"")
        assert [name async for name in store.list_folders("")] == ["a", "b-c", "b"]
        assert [name async for name in store.list_folders("b/")] == ["0", "1", "10"]
        assert [name async for name in store.list_folders("absent/")] == []
        await store.delete("a/x")
        assert [name async for name in store.list_folders("")] == ["b-c", "b"]

    async def test_more_keys_than_a_page_holds(self, store: ObjectStore) -> None:
        keys = [f"many/{n // 100}/{n:020d}" for n in range(self.many_keys)]
        for start in range(0, len(keys), 50):
            async with asyncio.TaskGroup() as group:
                for key in keys[start : start + 50]:
                    group.create_task(store.put(key, b"."))
        assert await keys_of(store.list("many/")) == sorted(keys)
        half = sorted(keys)[self.many_keys // 2]
        assert await keys_of(store.list("many/", half)) == [k for k in sorted(keys) if k > half]

    async def test_a_listing_can_be_left_early(self, store: ObjectStore) -> None:
        for n in range(5):
            await store.put(f"k{n}", b"")
        async for found in store.list(""):
            assert found.key == "k0"
            break
        assert await keys_of(store.list("")) == ["k0", "k1", "k2", "k3", "k4"]

    async def test_delete(self, store: ObjectStore) -> None:
        await store.put("f/k", b"x")
        await store.put("f/l", b"y")
        await store.delete("f/k")
        await store.delete("f/k")
        await store.delete("never/was")
        with pytest.raises(ObjectNotFound):
            await store.get("f/k")
        assert await keys_of(store.list("")) == ["f/l"]

    @pytest.mark.parametrize("size_bytes", [0, 1, PART_BYTES, 20 * MiB + 7])
    async def test_a_file_is_put_whole(
        self, store: ObjectStore, tmp_path: Path, size_bytes: int
    ) -> None:
        path = tmp_path / "segment"
        content = noise(size_bytes)
        path.write_bytes(content)
        await store.put_file("f/segment.log", path)
        assert sha256(await store.get("f/segment.log")).digest() == sha256(content).digest()
        assert [o.size_bytes async for o in store.list("f/")] == [size_bytes]
        if size_bytes > PART_BYTES:
            border = ByteRange(PART_BYTES - 10, PART_BYTES + 10)
            assert await store.get_range("f/segment.log", border) == content[border.start :][:20]

    async def test_a_file_that_is_not_there(self, store: ObjectStore, tmp_path: Path) -> None:
        with pytest.raises(RemoteStorageError) as caught:
            await store.put_file("k", tmp_path / "absent")
        assert not isinstance(caught.value, ObjectNotFound)  # it is not the store that lacks it
        assert not caught.value.retriable
        assert await keys_of(store.list("")) == []

    async def test_many_reads_at_once(self, store: ObjectStore) -> None:
        content = noise(400_000)
        await store.put("k", content)

        async def read(seed: int) -> None:
            start = Random(seed).randrange(len(content) - 1)
            end = Random(seed + 1000).randrange(start + 1, len(content))
            assert await store.get_range("k", ByteRange(start, end)) == content[start:end]

        async with asyncio.TaskGroup() as group:
            for seed in range(64):
                group.create_task(read(seed))

    async def test_writers_of_one_key_leave_one_of_their_contents(self, store: ObjectStore) -> None:
        stored: list[bytes] = []

        async def write(content: bytes) -> None:
            # A server may turn down writers that meet, as long as it says so and one succeeds.
            with suppress(StorageUnavailable):
                await store.put("k", content)
                stored.append(content)

        async with asyncio.TaskGroup() as group:
            for seed in range(8):
                group.create_task(write(noise(100_000, seed)))
        assert await store.get("k") in stored
        assert await keys_of(store.list("")) == ["k"]

    async def test_a_reader_sees_the_old_or_the_new_content(self, store: ObjectStore) -> None:
        contents = {noise(200_000, seed) for seed in range(10)}
        await store.put("k", next(iter(contents)))

        async def write() -> None:
            for content in contents:
                await store.put("k", content)

        async with asyncio.TaskGroup() as group:
            writer = group.create_task(write())
            while not writer.done():
                assert await store.get("k") in contents

    @pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 30, 60])
    async def test_a_cancelled_put_leaves_old_or_new(self, store: ObjectStore, turns: int) -> None:
        old, new = b"old", noise(3 * MiB)
        await store.put("old", old)
        for key in ("fresh", "old"):
            work = asyncio.create_task(store.put(key, new))
            await cancel_after_turns(work, turns, self.cancel_turn_s)
        assert await store.get("old") in (old, new)
        with suppress(ObjectNotFound):
            assert await store.get("fresh") == new
        assert set(await keys_of(store.list(""))) <= {"old", "fresh"}

    @pytest.mark.parametrize("turns", [0, 1, 2, 4, 10, 25])
    async def test_a_cancelled_put_of_a_file_leaves_nothing_or_all(
        self, store: ObjectStore, tmp_path: Path, turns: int
    ) -> None:
        content = noise(3 * PART_BYTES)
        path = tmp_path / "segment"
        path.write_bytes(content)
        work = asyncio.create_task(store.put_file("k", path))
        await cancel_after_turns(work, turns, self.cancel_turn_s)
        with suppress(ObjectNotFound):
            assert await store.get("k") == content
        assert set(await keys_of(store.list(""))) <= {"k"}

    async def test_a_cancelled_read_harms_nobody(self, store: ObjectStore) -> None:
        content = noise(2 * MiB)
        await store.put("k", content)
        for turns in range(12):
            work: asyncio.Task[bytes] = asyncio.create_task(store.get("k"))
            for _ in range(turns):
                await asyncio.sleep(self.cancel_turn_s)
            work.cancel()
            with suppress(asyncio.CancelledError):
                assert await work == content
        assert await store.get("k") == content

    async def test_an_illegal_key_is_a_bug_of_the_caller(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        file = tmp_path / "file"
        file.write_bytes(b"x")
        for key in ILLEGAL_KEYS:
            for call in (
                store.put(key, b"x"),
                store.put_file(key, file),
                store.get(key),
                store.get_range(key, ByteRange(0, 1)),
                store.delete(key),
            ):
                with pytest.raises(ValueError, match="key"):
                    await call
        assert await keys_of(store.list("")) == []

    async def test_an_illegal_prefix_is_a_bug_of_the_caller(self, store: ObjectStore) -> None:
        for prefix in ("../", "/", "a//", "~", "a/../b"):
            with pytest.raises(ValueError, match="illegal"):
                await keys_of(store.list(prefix))
        with pytest.raises(ValueError, match="does not end"):
            [name async for name in store.list_folders("a")]

    async def test_close_is_idempotent_and_final(self, store: ObjectStore) -> None:
        await store.put("k", b"x")
        await store.close()
        await store.close()
        with pytest.raises(RemoteStorageError):
            await store.get("k")
        with pytest.raises(RemoteStorageError):
            await store.put("k", b"y")
        with pytest.raises(RemoteStorageError):
            await keys_of(store.list(""))


TOPIC_ID = UUID("fbffbffb-ffbf-4fbf-bfbf-fbffbffbffbf")  # base64 with many "-" and "_"


def segment(
    start_offset: int = 0,
    *,
    topic: str = "weather-eu.v1_raw",
    topic_id: UUID = TOPIC_ID,
    partition: int = 0,
    segment_id: int = 1,
    has_aborted_txns: bool = False,
) -> RemoteLogSegmentMetadata:
    tip = TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition)
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(tip, UUID(int=segment_id)),
        start_offset=start_offset,
        end_offset=start_offset + 9,
        max_timestamp_ms=0,
        event_timestamp_ms=0,
        segment_leader_epochs=(EpochStart(0, 0),),
        segment_size_bytes=10,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        has_aborted_txns=has_aborted_txns,
    )


class RemoteStorageManagerContract:
    @pytest.fixture
    async def manager(self, store: ObjectStore) -> AsyncIterator[RemoteStorageManager]:
        async with RemoteStorageManager(store, "team/archive") as manager:
            yield manager

    @pytest.fixture
    def data(self, tmp_path: Path) -> LogSegmentData:
        log = tmp_path / "log"
        log.write_bytes(b"0123456789")
        return LogSegmentData(log=log, index=b"index", txn=None, epochs=b"epochs")

    async def test_a_copied_segment_is_read_back(
        self, manager: RemoteStorageManager, data: LogSegmentData
    ) -> None:
        metadata = segment()
        await manager.copy_log_segment_data(metadata, data)
        assert await manager.fetch_log_segment(metadata, ByteRange(2, 5)) == b"234"
        assert await manager.fetch_log_segment(metadata, ByteRange(8, 50)) == b"89"
        with pytest.raises(RangeNotSatisfiable):
            await manager.fetch_log_segment(metadata, ByteRange(10, 11))
        assert await manager.fetch_index(metadata, SegmentFile.INDEX) == b"index"
        assert await manager.fetch_index(metadata, SegmentFile.EPOCHS) == b"epochs"
        assert await manager.fetch_index(metadata, SegmentFile.TXN) == b""
        with pytest.raises(ValueError, match="no index"):
            await manager.fetch_index(metadata, SegmentFile.LOG)

    async def test_aborted_transactions_travel_along(
        self, manager: RemoteStorageManager, data: LogSegmentData
    ) -> None:
        metadata = segment(has_aborted_txns=True)
        with pytest.raises(ValueError, match="disagree"):
            await manager.copy_log_segment_data(metadata, data)
        with_txn = LogSegmentData(data.log, data.index, b"txn", data.epochs)
        await manager.copy_log_segment_data(metadata, with_txn)
        assert await manager.fetch_index(metadata, SegmentFile.TXN) == b"txn"
        with pytest.raises(ValueError, match="disagree"):
            await manager.copy_log_segment_data(segment(), with_txn)

    async def test_the_objects_of_a_segment(
        self, manager: RemoteStorageManager, store: ObjectStore, data: LogSegmentData
    ) -> None:
        metadata = segment(12345, has_aborted_txns=True)
        await manager.copy_log_segment_data(
            metadata, LogSegmentData(data.log, data.index, b"txn", data.epochs)
        )
        await manager.put_segment_metadata(metadata, b"metadata")
        stem = (
            "team/archive/weather-eu.v1_raw--_-_-_-_T7-_v_v_v_v_vw/0/"
            "00000000000000012345-AAAAAAAAAAAAAAAAAAAAAQ"
        )
        assert await keys_of(store.list("")) == [
            f"team/archive/{LAYOUT_OBJECT}",
            f"{stem}.epochs",
            f"{stem}.index",
            f"{stem}.log",
            f"{stem}.metadata",
            f"{stem}.txn",
        ]

    async def test_a_segment_without_its_metadata_is_not_listed(
        self, manager: RemoteStorageManager, data: LogSegmentData
    ) -> None:
        metadata = segment()
        await manager.copy_log_segment_data(metadata, data)
        tip = metadata.topic_id_partition
        assert [found async for found in manager.list_segment_metadata(tip)] == []

    async def test_metadata_is_listed_by_base_offset(self, manager: RemoteStorageManager) -> None:
        offsets = [0, 5, 5, 100, 99_999_999_999, 2**63 - 20]
        for number, offset in enumerate(offsets):
            await manager.put_segment_metadata(segment(offset, segment_id=number), b"%d" % number)
        await manager.put_segment_metadata(segment(7, partition=1), b"other partition")
        tip = segment().topic_id_partition
        listed = [found async for found in manager.list_segment_metadata(tip)]
        assert [base for _, base, _ in listed] == offsets
        assert {segment_id.topic_id_partition for segment_id, _, _ in listed} == {tip}
        for segment_id, _, stored in listed:
            content = await manager.get_segment_metadata(stored.key)
            assert content == b"%d" % segment_id.id.int
            assert stored.size_bytes == 1
        for start_after in (0, 3, 5, 99_999_999_999, 2**63 - 1):
            assert [
                base async for _, base, _ in manager.list_segment_metadata(tip, start_after)
            ] == [offset for offset in offsets if offset > start_after]

    async def test_new_state_replaces_the_metadata(self, manager: RemoteStorageManager) -> None:
        metadata = segment()
        tip = metadata.topic_id_partition
        await manager.put_segment_metadata(metadata, b"started")
        [(_, _, started)] = [found async for found in manager.list_segment_metadata(tip)]
        await manager.put_segment_metadata(metadata, b"finished")
        [(_, _, finished)] = [found async for found in manager.list_segment_metadata(tip)]
        assert started.key == finished.key
        assert started.version != finished.version
        assert await manager.get_segment_metadata(finished.key) == b"finished"

    async def test_deletion_is_complete_and_can_be_repeated(
        self, manager: RemoteStorageManager, store: ObjectStore, data: LogSegmentData
    ) -> None:
        kept, gone = segment(0, segment_id=1), segment(10, segment_id=2)
        for metadata in (kept, gone):
            await manager.copy_log_segment_data(metadata, data)
            await manager.put_segment_metadata(metadata, b"m")
        before = await keys_of(store.list(""))
        await manager.delete_log_segment_data(gone)
        await manager.delete_log_segment_data(gone)
        assert await keys_of(store.list("")) == [
            key for key in before if "00000000000000000010-" not in key
        ]
        with pytest.raises(ObjectNotFound):
            await manager.fetch_log_segment(gone, ByteRange(0, 1))
        assert await manager.fetch_log_segment(kept, ByteRange(0, 1)) == b"0"

    async def test_partitions_of_every_incarnation(
        self, manager: RemoteStorageManager, store: ObjectStore
    ) -> None:
        assert await manager.list_partitions() == []
        others = [
            segment(partition=10),
            segment(partition=2),
            segment(topic_id=UUID(int=7)),
            segment(topic="a"),
            segment(topic="x" * 232, topic_id=UUID(int=2**128 - 1)),
            segment(topic="weather", partition=2**31 - 1),
        ]
        for metadata in others:
            await manager.put_segment_metadata(metadata, b"")
        await store.put("team/archive/stranger/0/x", b"")
        await store.put("team/archive/x-y/0/x", b"")
        await store.put("elsewhere/x", b"")
        every = sorted(metadata.topic_id_partition for metadata in others)
        assert await manager.list_partitions() == every
        assert await manager.list_topic(UUID(int=7)) == [
            segment(topic_id=UUID(int=7)).segment_id.topic_id_partition
        ]
        assert await manager.list_topic(TOPIC_ID) == [t for t in every if t.topic_id == TOPIC_ID]
        assert await manager.list_topic(UUID(int=8)) == []

    async def test_a_later_layout_does_not_look_empty(
        self, manager: RemoteStorageManager, store: ObjectStore, data: LogSegmentData
    ) -> None:
        for content in (b"remote-log-layout 2\n", b"something else", b""):
            await store.put(f"team/archive/{LAYOUT_OBJECT}", content)
            with pytest.raises(RemoteStorageError, match="layout") as caught:
                await manager.list_partitions()
            assert not caught.value.retriable
            with pytest.raises(RemoteStorageError, match="layout"):
                [x async for x in manager.list_segment_metadata(segment().topic_id_partition)]
            with pytest.raises(RemoteStorageError, match="layout"):
                await manager.copy_log_segment_data(segment(), data)
            with pytest.raises(RemoteStorageError, match="layout"):
                await manager.put_segment_metadata(segment(), b"")
        await store.put(f"team/archive/{LAYOUT_OBJECT}", b"remote-log-layout 1\n")
        assert await manager.list_partitions() == []
