"""The contract on a real S3 server, plus outages and refusals, which only a real one can show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from archive_contract import ArchiveContract
from test_store_server_faults import in_the_end

from fetchproxy.config.schema import MiB, StoreConfig
from fetchproxy.errors import StorageDenied, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.contract import (
    CONTRACT_PART_BYTES,
    ObjectStoreContract,
    keys_of,
    noise,
    segment,
)
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore
from lab.s3 import S3Server

pytestmark = pytest.mark.s3

PATIENT = StoreConfig()  # a busy machine may not answer for long
_numbers = count()
LATER_MS = 2**52  # later than every upload


def open_bucket(server: S3Server, bucket: str, config: StoreConfig = PATIENT) -> S3ObjectStore:
    return S3ObjectStore(
        S3Location(bucket, endpoint_url=server.endpoint_url, region=server.region),
        config=config,
        part_bytes=CONTRACT_PART_BYTES,
    )


def all_ours(key: str) -> bool:
    return True


@pytest.fixture
async def store(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[S3ObjectStore]:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"contract-{next(_numbers)}"
    async with open_bucket(s3_server, bucket) as store:
        await (await store._opened()).create_bucket(Bucket=bucket)
        yield store


async def uploads_of(store: S3ObjectStore) -> list[str]:
    client = await store._opened()
    response = await client.list_multipart_uploads(Bucket=store._bucket)
    return [upload["Key"] for upload in response.get("Uploads", ())]


async def upload_begins(store: S3ObjectStore) -> None:
    for _ in range(10_000):
        if await uploads_of(store):
            return
    pytest.fail("no upload was begun")


class TestS3ObjectStore(ObjectStoreContract):
    cancel_turn_s = 0.001

    @pytest.mark.parametrize("turns", [3, 20, 60])
    async def test_a_cancelled_upload_is_aborted(
        self, store: S3ObjectStore, tmp_path: Path, turns: int
    ) -> None:
        path = tmp_path / "segment"
        path.write_bytes(noise(6 * CONTRACT_PART_BYTES))
        await store.put("first", b"x")  # the first write probes the server by an upload
        work = asyncio.create_task(store.put_file("k", path))
        await upload_begins(store)
        for _ in range(turns):
            await asyncio.sleep(0.001)
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        assert await uploads_of(store) == []

    async def test_stale_uploads_are_aborted(self, store: S3ObjectStore) -> None:
        client = await store._opened()
        for key in ("p/a", "p/b", "q/c"):
            await client.create_multipart_upload(Bucket=store._bucket, Key=key)
        assert await store.abort_stale_uploads("p/", 1000, all_ours) == 0
        assert await store.abort_stale_uploads("p/", LATER_MS, all_ours) == 2
        assert await uploads_of(store) == ["q/c"]
        assert await store.abort_stale_uploads("", LATER_MS, all_ours) == 1
        assert await keys_of(store.list("")) == []


class TestRemoteStorageOnS3(ArchiveContract):
    async def test_uploads_of_other_applications_are_left_alone(self, store: S3ObjectStore) -> None:
        """An archive may share its bucket, even at the root."""
        client = await store._opened()
        storage = RemoteStorage(store)
        own_key = storage.rsm.object_key(segment(), SegmentFile.LOG)
        others = ["backup/of-something.log", "orders-0.log", own_key + ".part", "x/" + own_key]
        for key in (own_key, *others):
            await client.create_multipart_upload(Bucket=store._bucket, Key=key)
        assert await storage.objects.abort_stale_uploads(LATER_MS) == 1
        assert sorted(await uploads_of(store)) == sorted(others)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(noise(2 * CONTRACT_PART_BYTES))
    return path


async def everything_fails(store: S3ObjectStore, error: type[Exception], path: Path) -> None:
    with pytest.raises(error):
        await store.get("k")
    with pytest.raises(error):
        await store.get_range("k", ByteRange(0, 10))
    with pytest.raises(error):
        await store.put("k", b"x")
    with pytest.raises(error):
        await store.put_file("k", path)
    with pytest.raises(error):
        await store.delete("k")
    with pytest.raises(error):
        await keys_of(store.list(""))
    with pytest.raises(error):
        [name async for name in store.list_folders("")]
    with pytest.raises(error):
        await store.abort_stale_uploads("", LATER_MS, all_ours)


class TestS3Outages:
    @pytest.fixture(autouse=True)
    def _credentials(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in s3_server.environment.items():
            monkeypatch.setenv(name, value)

    async def test_a_killed_server_is_unavailable_until_it_is_back(
        self, own_s3_server: S3Server, file: Path
    ) -> None:
        own_s3_server.create_bucket("archive")
        async with open_bucket(own_s3_server, "archive") as store:
            await store.put("k", b"before")
            own_s3_server.kill()
            async with asyncio.timeout(60):
                await everything_fails(store, StorageUnavailable, file)
            own_s3_server.start()
            assert await in_the_end(lambda: store.get("k")) == b"before"

    async def test_a_silent_server_is_unavailable_in_bounded_time(
        self, own_s3_server: S3Server
    ) -> None:
        own_s3_server.create_bucket("archive")
        hasty = StoreConfig(timeout_ms=1000)
        async with open_bucket(own_s3_server, "archive", hasty) as store:
            await in_the_end(lambda: store.put("k", b"before"))
            own_s3_server.pause()
            async with asyncio.timeout(60):
                with pytest.raises(StorageUnavailable):
                    await store.get("k")
                with pytest.raises(StorageUnavailable):
                    await keys_of(store.list(""))
                with pytest.raises(StorageUnavailable):
                    await store.put("k", noise(8 * MiB))
            own_s3_server.resume()
            assert await in_the_end(lambda: store.get("k")) == b"before"

    async def test_a_server_killed_within_an_upload(
        self, own_s3_server: S3Server, tmp_path: Path
    ) -> None:
        path = tmp_path / "segment"
        path.write_bytes(noise(64 * MiB))
        own_s3_server.create_bucket("archive")
        async with open_bucket(own_s3_server, "archive") as store:
            await store.put("first", b"x")  # the first write probes the server by an upload
            async with asyncio.timeout(60):
                work = asyncio.create_task(store.put_file("k", path))
                await upload_begins(store)
                own_s3_server.kill()
                with pytest.raises(StorageUnavailable):
                    await work
            own_s3_server.start()
            assert await in_the_end(lambda: keys_of(store.list(""))) == ["first"]
            assert await store.abort_stale_uploads("", LATER_MS, all_ours) == 1

    async def test_nobody_has_to_be_there_when_the_store_is_opened(
        self, own_s3_server: S3Server
    ) -> None:
        own_s3_server.create_bucket("archive")
        own_s3_server.kill()
        async with open_bucket(own_s3_server, "archive") as store:
            with pytest.raises(StorageUnavailable):
                await store.get("k")
            own_s3_server.start()
            await in_the_end(lambda: store.put("k", b"x"))
            assert await store.get("k") == b"x"

    async def test_a_missing_bucket_is_no_empty_archive(
        self, s3_server: S3Server, file: Path
    ) -> None:
        async with open_bucket(s3_server, "no-such-bucket") as store:
            await everything_fails(store, StorageUnavailable, file)
            with pytest.raises(StorageUnavailable, match="NoSuchBucket"):
                await store.get("k")

    async def test_a_wrong_secret_is_denied(
        self,
        s3_server: S3Server,
        s3_bucket: str,
        monkeypatch: pytest.MonkeyPatch,
        file: Path,
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        async with open_bucket(s3_server, s3_bucket) as store:
            await everything_fails(store, StorageDenied, file)

    async def test_missing_credentials_are_denied(
        self,
        s3_server: S3Server,
        s3_bucket: str,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        file: Path,
    ) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        async with open_bucket(s3_server, s3_bucket) as store:
            await everything_fails(store, StorageDenied, file)


async def test_it_tells_the_time(store: S3ObjectStore) -> None:
    clock_ms = await store.clock_ms("archive/")
    assert clock_ms is not None
    assert abs(clock_ms - time.time() * 1000) < 30_000
