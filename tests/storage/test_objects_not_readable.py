"""The store works and does not give out one object: a fault of that object, with its remedy."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_object_store import MemoryObjectStore
from obstore import exceptions as obstore_errors
from virtual_loop import run_virtual

from fetchproxy.errors import (
    ObjectNotFound,
    ObjectNotReadable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.model import ByteRange
from fetchproxy.observability.health import Kind
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.contract import segment
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.store_health import (
    REFUSED_FORGOTTEN_AFTER_S,
    REFUSED_OF_PARTITION_MAX,
    StoreOperation,
)
from fetchproxy.storage.stores import retries
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.object_store import ObjectStore, error_of
from fetchproxy.storage.stores.obstore_store import obstore_error
from fetchproxy.storage.stores.s3 import S3ObjectStore
from fetchproxy.storage.stores.webhdfs import RemoteFault, translated_webhdfs_error
from fetchproxy.storage.watched_store import PROBE_GOOD_FOR_S
from lab.s3 import MotoServer


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "InvalidObjectState", ObjectNotReadable),
        (409, "BlobArchived", ObjectNotReadable),
        (409, "BlobBeingRehydrated", ObjectNotReadable),
        (400, "KMS.DisabledException", StorageDenied),
        (400, "KMS.AnyOtherException", StorageDenied),
        (400, "KMS.ThrottlingException", StorageThrottled),
        (500, "KMS.KMSInternalException", StorageUnavailable),
        (409, "BlobImmutableDueToPolicy", StorageDenied),
    ],
)
def test_codes_of_an_objects_state(status: int, code: str, kind: type[RemoteStorageError]) -> None:
    assert error_of(status, code) is kind
    assert not issubclass(kind, StorageUnavailable) or kind.retriable


def test_azures_archive_tier_is_named_with_its_remedy() -> None:
    error = obstore_error(
        obstore_errors.GenericError(
            "Generic MicrosoftAzure error: Error performing GET http://h/c/k?sig=s in 1ms, after "
            "2 retries, max_retries: 3, retry_timeout: 9s - Server returned non-2xx status code: "
            "409 Conflict: <Error><Code>BlobArchived</Code><Message>This operation is not permitted"
            "</Message><RequestId>4442587F</RequestId></Error>"
        ),
        "get k",
    )
    assert isinstance(error, ObjectNotReadable)
    assert str(error) == (
        "get k: status 409 BlobArchived: This operation is not permitted (request 4442587F) "
        "(tried 3 times); it is in the archive tier: set its tier to hot or cool"
    )


def test_lost_blocks_of_hdfs() -> None:
    lost = pytest.raises(ObjectNotReadable, match="get k: BlockMissingException: no live node")
    with lost, translated_webhdfs_error("get k", may_be_absent=True):
        raise RemoteFault(403, "BlockMissingException", "no live node")


class Guarded(MemoryObjectStore):
    """Denies reads of the keys whose name contains one of `denied`."""

    def __init__(self) -> None:
        super().__init__()
        self.denied: set[str] = set()
        self.keys_read: list[str] = []

    async def get(self, key: str, bytes_max: int = 1 << 26) -> bytes:
        self._check(key)
        return await super().get(key, bytes_max)

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        self._check(key)
        return await super().get_range(key, byte_range)

    def _check(self, key: str) -> None:
        self.keys_read.append(key)
        if any(part in key for part in self.denied):
            raise StorageDenied(f"get {key}: status 403 AccessDenied")


async def archive_of(store: ObjectStore, folder: Path) -> RemoteStorage:
    storage = RemoteStorage(store, "p")
    log = folder / "log"
    log.write_bytes(b"0123456789")
    for number in (1, 2):
        copied = segment(number * 10, segment_id=number)
        await storage.rsm.copy_log_segment_data(copied, LogSegmentData(log, b"i", None, b"e"))
    return storage


def test_denied_for_one_object_or_for_all(tmp_path: Path) -> None:
    first, second = segment(10, segment_id=1), segment(20, segment_id=2)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = Guarded()
        storage = await archive_of(store, tmp_path)
        health = storage.health
        store.denied = {storage.rsm.object_key(first, SegmentFile.LOG)}
        store.keys_read.clear()
        for _ in range(2):
            with pytest.raises(ObjectNotReadable, match=r"AccessDenied.*returns other objects"):
                await storage.rsm.fetch_log_segment(first, ByteRange(0, 5))
        assert len([key for key in store.keys_read if key.endswith("remote-log-layout")]) == 1
        assert await storage.rsm.fetch_log_segment(second, ByteRange(0, 5)) == b"01234"
        assert health[StoreOperation.READ].status(loop.time()).up
        (condition,) = health.conditions(loop.time())
        assert condition.kind == Kind.OBJECT_NOT_READABLE
        assert (condition.first_offset, condition.last_offset) == (10, 19)
        assert store.denied.pop() in condition.what

        await storage.rsm.fetch_log_segment(second, ByteRange(0, 5))  # says nothing of the first
        assert list(health.conditions(loop.time()))
        await storage.rsm.fetch_log_segment(first, ByteRange(0, 5))
        assert not list(health.conditions(loop.time()))

        store.denied = {""}
        await asyncio.sleep(PROBE_GOOD_FOR_S + 1)
        with pytest.raises(StorageDenied):
            await storage.rsm.fetch_log_segment(first, ByteRange(0, 5))
        assert health[StoreOperation.READ].status(loop.time()).up is False

    run_virtual(main)


@pytest.mark.remedy("object_not_readable")
def test_the_condition_ends_with_the_segment_or_when_nobody_asks(tmp_path: Path) -> None:
    first, second = segment(10, segment_id=1), segment(20, segment_id=2)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = Guarded()
        storage = await archive_of(store, tmp_path)
        store.denied = {".log", ".index"}
        for one in (first, second):
            with pytest.raises(ObjectNotReadable):
                await storage.rsm.fetch_log_segment(one, ByteRange(0, 5))
            with pytest.raises(ObjectNotReadable):
                await storage.rsm.fetch_index(one, SegmentFile.INDEX)
        (condition,) = storage.health.conditions(loop.time())
        assert condition.what.endswith("(and 1 more segments)")
        await storage.rsm.delete_log_segment_data(first)
        (condition,) = storage.health.conditions(loop.time())
        assert (condition.first_offset, condition.last_offset) == (20, 29)
        await asyncio.sleep(REFUSED_FORGOTTEN_AFTER_S)
        storage.health.look(loop.time())
        assert not list(storage.health.conditions(loop.time()))

    run_virtual(main)


def test_a_partition_with_many_such_objects_is_one_condition_that_ends(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = Guarded()
        storage = await archive_of(store, tmp_path)
        store.denied = {".log"}
        many = [segment(10 * n, segment_id=n) for n in range(1, REFUSED_OF_PARTITION_MAX + 2)]
        for one in many:
            with pytest.raises(ObjectNotReadable):
                await storage.rsm.fetch_log_segment(one, ByteRange(0, 5))
        (condition,) = storage.health.conditions(loop.time())
        assert condition.first_offset == 20  # the one asked for first is forgotten
        assert condition.what.endswith(f"(and {REFUSED_OF_PARTITION_MAX - 1} more segments)")
        await asyncio.sleep(REFUSED_FORGOTTEN_AFTER_S)
        storage.health.look(loop.time())
        assert not list(storage.health.conditions(loop.time()))

    run_virtual(main)


@pytest.fixture(scope="module")
def moto_server() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


async def test_an_object_that_a_lifecycle_rule_has_moved_to_glacier(
    moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in moto_server.environment.items():
        monkeypatch.setenv(name, value)
    place = S3Location("cold", endpoint_url=moto_server.endpoint_url, region=moto_server.region)
    store = S3ObjectStore(place)
    first, second = segment(10, segment_id=1), segment(20, segment_id=2)
    client = await store._opened()
    await client.create_bucket(Bucket="cold")
    storage = await archive_of(store, tmp_path)
    async with storage:
        key = storage.rsm.object_key(first, SegmentFile.LOG)
        moved = {"Bucket": "cold", "Key": key, "CopySource": f"cold/{key}"}
        await client.copy_object(**moved, StorageClass="GLACIER")
        with pytest.raises(ObjectNotReadable, match=r"InvalidObjectState.*storage class"):
            await storage.rsm.fetch_log_segment(first, ByteRange(0, 5))
        assert await storage.rsm.fetch_log_segment(second, ByteRange(0, 5)) == b"01234"
        now = asyncio.get_running_loop().time()
        (condition,) = storage.health.conditions(now)
        assert condition.kind == Kind.OBJECT_NOT_READABLE
        # The remedy: restore it, then copy it back.
        await client.restore_object(Bucket="cold", Key=key, RestoreRequest={"Days": 1})
        await client.copy_object(**moved, StorageClass="STANDARD")
        assert await storage.rsm.fetch_log_segment(first, ByteRange(0, 5)) == b"01234"
        assert not list(storage.health.conditions(now))


async def test_a_missing_object_is_not_mixed_up_with_one_that_is_refused(tmp_path: Path) -> None:
    storage = await archive_of(MemoryObjectStore(), tmp_path)
    with pytest.raises(ObjectNotFound):
        await storage.rsm.fetch_log_segment(segment(30, segment_id=3), ByteRange(0, 5))


class BadDisk:
    """`os.pread` over files of which some cannot be read, by a part of their path."""

    def __init__(self, error: int) -> None:
        self.error = error
        self.failing: dict[str, float] = {}
        self._pread = os.pread

    def __call__(self, fd: int, size: int, at: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{fd}")
        for part, times in self.failing.items():
            if part in path and times:
                self.failing[part] -= 1
                raise OSError(self.error, os.strerror(self.error))
        return self._pread(fd, size, at)


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="only Linux names a descriptor's file"
)
@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.ENOTCONN])
async def test_a_file_that_its_disk_does_not_give_out(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BadDisk(error)
    monkeypatch.setattr(os, "pread", disk)
    monkeypatch.setattr(retries, "PAUSES_S", (0.001, 0.001, 0.001))
    first, second = segment(10, segment_id=1), segment(20, segment_id=2)
    store = FilesystemObjectStore(tmp_path / "store", create=True)
    async with await archive_of(store, tmp_path) as storage:
        read_health = storage.health[StoreOperation.READ]
        now = asyncio.get_running_loop().time
        key = storage.rsm.object_key(first, SegmentFile.LOG)
        disk.failing = {key: 1}
        assert await storage.rsm.fetch_log_segment(first, ByteRange(0, 5)) == b"01234"

        disk.failing = {key: float("inf")}
        if error == errno.ENOTCONN:  # a mount whose server has gone, and never one file
            with pytest.raises(StorageUnavailable):
                await storage.rsm.fetch_log_segment(first, ByteRange(0, 5))
            return
        message = rf"{os.strerror(error)}; the store returns other objects: check the disks"
        with pytest.raises(ObjectNotReadable, match=message):
            await storage.rsm.fetch_log_segment(first, ByteRange(0, 5))
        (condition,) = storage.health.conditions(now())
        assert (condition.kind, condition.first_offset) == (Kind.OBJECT_NOT_READABLE, 10)
        assert await storage.rsm.fetch_log_segment(second, ByteRange(0, 5)) == b"01234"
        assert read_health.status(now()).up

        disk.failing = {"": float("inf")}
        with pytest.raises(StorageUnavailable) as outage:
            await storage.rsm.fetch_log_segment(second, ByteRange(0, 5))
        assert outage.value.retriable
        assert read_health.status(now()).up is False

        disk.failing = {}
        await storage.rsm.fetch_log_segment(first, ByteRange(0, 5))
        assert not list(storage.health.conditions(now()))
