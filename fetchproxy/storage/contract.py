"""Tests of what every object store must do. A backend's own test module inherits them.

    from fetchproxy.config.schema import MiB
from fetchproxy.storage.contract import ObjectStoreContract, RemoteStorageManagerContract

    @pytest.fixture
    async def store() -> AsyncIterator[MyStore]: ...     # open and empty

    class TestMyStore(ObjectStoreContract): ...
    class TestArchiveOnMyStore(RemoteStorageManagerContract): ...

This module needs pytest and pytest-asyncio (`asyncio_mode = "auto"`); no other module of fetchproxy
does. docs/contribute/store-plugins.md has a whole example.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from fetchproxy.config.schema import MiB
from fetchproxy.errors import (
    DamagedObject,
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
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, SegmentFile
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import ObjectStore, StoredObject

CONTRACT_PART_BYTES = 5 * MiB

# Every character that Kafka allows in a topic name, and names that sort differently as folders.
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
TOPIC_ID = UUID("fbffbffb-ffbf-4fbf-bfbf-fbffbffbffbf")  # base64 with many "-" and "_"

ILLEGAL_KEYS += ["a\0b", "ä", "a b", "a\\b", "a%2fb", "a\n", "x" * 1025]


async def keys_of(listing: AsyncIterator[StoredObject]) -> list[str]:
    return [stored.key async for stored in listing]


def noise(size_bytes: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size_bytes)


async def cancel_after_turns(work: asyncio.Task[Any], turns: int, turn_s: float) -> None:
    """Let `work` run for `turns` turns of the event loop, then cancel it."""
    for _ in range(turns):
        await asyncio.sleep(turn_s)
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


class ObjectStoreContract:
    many_keys = 1234  # more than one page of a listing
    cancel_turn_s = 0.0
    # Errors that a read or listing may raise while an object is replaced: a server may break off
    # its response, or list the object twice, also for a moment after the client has gone.
    while_replaced: tuple[type[StorageUnavailable], ...] = ()

    async def _keys_after_cancel(self, store: ObjectStore) -> set[str]:
        for _ in range(100):
            with suppress(*self.while_replaced):
                return set(await keys_of(store.list("")))
            await asyncio.sleep(0.05)
        return set(await keys_of(store.list("")))

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

    @pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
    async def test_what_is_larger_than_wanted_is_not_read(
        self, store: ObjectStore, size: int
    ) -> None:
        await store.put("k/o", noise(size))
        assert await store.get("k/o", size) == noise(size)
        assert await store.get("k/o", size + 1) == noise(size)
        for bytes_max in {max(0, size - 1), size // 2} - {size}:
            with pytest.raises(DamagedObject, match=rf"^k/o has {size} bytes.*{bytes_max} at most"):
                await store.get("k/o", bytes_max)
        with pytest.raises(ObjectNotFound):
            await store.get("k/absent", size)
        assert await store.get("k/o") == noise(size)

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
        [before] = [stored async for stored in store.list("k")]
        await store.put("k", b"second")
        [after] = [stored async for stored in store.list("k")]
        assert await store.get("k") == b"second"
        assert (after.key, after.size_bytes) == ("k", 6)
        assert after.version != before.version

    async def test_what_is_new_replaces_nothing(self, store: ObjectStore) -> None:
        assert await store.put_new("k/o", b"first")
        assert not await store.put_new("k/o", b"second")
        assert await store.get("k/o") == b"first"
        assert await keys_of(store.list("")) == ["k/o"]
        await store.delete("k/o")
        assert await store.put_new("k/o", b"third")
        await store.put("k/o", b"fourth")
        assert await store.get("k/o") == b"fourth"
        assert await keys_of(store.list("")) == ["k/o"]

    async def test_of_many_that_make_it_at_once_one_does(self, store: ObjectStore) -> None:
        for number in range(5):
            contents = [b"%d" % each for each in range(8)]
            successes = await asyncio.gather(*(store.put_new(f"k/{number}", c) for c in contents))
            assert successes.count(True) == 1
            assert await store.get(f"k/{number}") == contents[successes.index(True)]

    async def test_a_version_that_a_put_names_is_the_listed_one(self, store: ObjectStore) -> None:
        for content in (b"", b"x" * 10, b"y" * 10):
            version = await store.put("v", content)
            [stored] = [one async for one in store.list("v")]
            assert version in (None, stored.version)

    async def test_the_version_stays_with_the_content(self, store: ObjectStore) -> None:
        await store.put("k", b"same")
        first = [stored async for stored in store.list("")]
        await store.get("k")
        assert [stored async for stored in store.list("")] == first

    async def test_a_listing_is_in_the_order_of_keys(self, store: ObjectStore) -> None:
        for key in reversed(ODD_KEYS):
            await store.put(key, key.encode())
        listed = [o async for o in store.list("")]
        assert [o.key for o in listed] == ODD_KEYS
        assert [o.size_bytes for o in listed] == [len(key) for key in ODD_KEYS]
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
        async for stored in store.list(""):
            assert stored.key == "k0"
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

    @pytest.mark.parametrize("size_bytes", [0, 1, CONTRACT_PART_BYTES, 20 * MiB + 7])
    async def test_a_file_is_put_whole(
        self, store: ObjectStore, tmp_path: Path, size_bytes: int
    ) -> None:
        path = tmp_path / "segment"
        content = noise(size_bytes)
        path.write_bytes(content)
        await store.put_file("f/segment.log", path)
        assert sha256(await store.get("f/segment.log")).digest() == sha256(content).digest()
        assert [o.size_bytes async for o in store.list("f/")] == [size_bytes]
        if size_bytes > CONTRACT_PART_BYTES:
            border = ByteRange(CONTRACT_PART_BYTES - 10, CONTRACT_PART_BYTES + 10)
            assert await store.get_range("f/segment.log", border) == content[border.start :][:20]

    async def test_a_settled_file_may_lose_its_name(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        path = tmp_path / "segment"
        path.write_bytes(b"old")
        await store.put_file("f/k", path, settled=True)
        await store.put_file("f/k", path, settled=True)
        path.unlink()
        assert await store.get("f/k") == b"old"
        assert await keys_of(store.list("")) == ["f/k"]
        path.write_bytes(b"newer")
        await store.put_file("f/k", path, settled=True)
        assert await store.get("f/k") == b"newer"

    async def test_a_file_that_is_not_settled_may_change(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        path = tmp_path / "segment"
        path.write_bytes(b"content")
        await store.put_file("f/k", path)
        with path.open("r+b") as file:
            file.truncate(1)
        assert await store.get("f/k") == b"content"

    @pytest.mark.parametrize("settled", [False, True])
    async def test_a_file_that_is_not_there(
        self, store: ObjectStore, tmp_path: Path, settled: bool
    ) -> None:
        with pytest.raises(RemoteStorageError) as caught:
            await store.put_file("k", tmp_path / "absent", settled=settled)
        assert not isinstance(caught.value, ObjectNotFound)  # the local file is missing
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
            # A server may refuse concurrent writers, if it reports that and one of them succeeds.
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
                with suppress(*self.while_replaced):
                    assert await store.get("k") in contents
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
        assert await self._keys_after_cancel(store) <= {"old", "fresh"}

    @pytest.mark.parametrize("settled", [False, True])
    @pytest.mark.parametrize("turns", [0, 1, 2, 4, 10, 25])
    async def test_a_cancelled_put_of_a_file_leaves_nothing_or_all(
        self, store: ObjectStore, tmp_path: Path, turns: int, settled: bool
    ) -> None:
        content = noise(3 * CONTRACT_PART_BYTES)
        path = tmp_path / "segment"
        path.write_bytes(content)
        work = asyncio.create_task(store.put_file("k", path, settled=settled))
        await cancel_after_turns(work, turns, self.cancel_turn_s)
        with suppress(ObjectNotFound):
            assert await store.get("k") == content
        assert await self._keys_after_cancel(store) <= {"k"}

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
            with pytest.raises(ValueError, match="invalid"):
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


class AwayStoreContract:
    """The fixture `away_store` is an open store whose bucket, folder or server is missing. It must
    never look like an empty store, or readers would skip data.
    """

    async def test_a_store_that_is_away_is_not_empty(
        self, away_store: ObjectStore, tmp_path: Path
    ) -> None:
        file = tmp_path / "file"
        file.write_bytes(b"x")
        for call in (
            away_store.get("k"),
            away_store.get_range("k", ByteRange(0, 1)),
            away_store.put("k", b"x"),
            away_store.put_new("k", b"x"),
            away_store.put_file("k", file),
            away_store.delete("k"),
            keys_of(away_store.list("")),
            keys_of(away_store.list("folder/")),
        ):
            with pytest.raises(StorageUnavailable) as caught:
                await call
            assert caught.value.retriable
        with pytest.raises(StorageUnavailable):
            [name async for name in away_store.list_folders("")]


# An archive in the store.


def segment(
    start_offset: int = 0,
    *,
    topic: str = "weather-eu.v1_raw",
    topic_id: UUID = TOPIC_ID,
    partition: int = 0,
    segment_id: int = 1,
    has_aborted_txns: bool = False,
) -> RemoteLogSegmentMetadata:
    tp = TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition)
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(tp, UUID(int=segment_id)),
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
    async def storage(self, store: ObjectStore) -> AsyncIterator[RemoteStorage]:
        async with RemoteStorage(store, "team/archive") as storage:
            yield storage

    @pytest.fixture
    def data(self, tmp_path: Path) -> LogSegmentData:
        log = tmp_path / "log"
        log.write_bytes(b"0123456789")
        return LogSegmentData(log=log, index=b"index", txn=None, epochs=b"epochs")

    async def test_a_copied_segment_is_read_back(
        self, storage: RemoteStorage, data: LogSegmentData
    ) -> None:
        metadata = segment()
        await storage.rsm.copy_log_segment_data(metadata, data)
        assert await storage.rsm.fetch_log_segment(metadata, ByteRange(2, 5)) == b"234"
        assert await storage.rsm.fetch_log_segment(metadata, ByteRange(8, 50)) == b"89"
        with pytest.raises(RangeNotSatisfiable):
            await storage.rsm.fetch_log_segment(metadata, ByteRange(10, 11))
        assert await storage.rsm.fetch_index(metadata, SegmentFile.INDEX) == b"index"
        assert await storage.rsm.fetch_index(metadata, SegmentFile.EPOCHS) == b"epochs"
        assert await storage.rsm.fetch_index(metadata, SegmentFile.TXN) == b""
        with pytest.raises(ValueError, match="not an index"):
            await storage.rsm.fetch_index(metadata, SegmentFile.LOG)

    async def test_the_objects_of_a_segment(
        self, storage: RemoteStorage, store: ObjectStore, data: LogSegmentData
    ) -> None:
        metadata = segment(12345, has_aborted_txns=True)
        await storage.rsm.copy_log_segment_data(
            metadata, LogSegmentData(data.log, data.index, b"txn", data.epochs)
        )
        await storage.objects.put_segment_metadata(metadata, b"metadata")
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

    async def test_deletion_is_complete_and_can_be_repeated(
        self, storage: RemoteStorage, store: ObjectStore, data: LogSegmentData
    ) -> None:
        remaining, gone = segment(0, segment_id=1), segment(10, segment_id=2)
        for metadata in (remaining, gone):
            await storage.rsm.copy_log_segment_data(metadata, data)
            await storage.objects.put_segment_metadata(metadata, b"m")
        before = await keys_of(store.list(""))
        await storage.rsm.delete_log_segment_data(gone)
        await storage.rsm.delete_log_segment_data(gone)
        assert await keys_of(store.list("")) == [
            key for key in before if "00000000000000000010-" not in key
        ]
        with pytest.raises(ObjectNotFound):
            await storage.rsm.fetch_log_segment(gone, ByteRange(0, 1))
        assert await storage.rsm.fetch_log_segment(remaining, ByteRange(0, 1)) == b"0"
