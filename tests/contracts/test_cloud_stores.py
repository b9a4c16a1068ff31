"""The contract on emulators of Google Cloud Storage and Azure Blob Storage; outages, refusals."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from archive_contract import ArchiveContract
from test_store_server_faults import in_the_end

from fetchproxy.config.schema import MiB, StoreConfig
from fetchproxy.errors import RemoteStorageError, StorageDenied, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.storage.contract import (
    CONTRACT_PART_BYTES,
    ObjectStoreContract,
    keys_of,
    noise,
)
from fetchproxy.storage.stores.clouds import open_cloud_store
from fetchproxy.storage.stores.obstore_store import ObstoreObjectStore
from fetchproxy.storage.stores.registry import parse_store_url
from lab.clouds import AzureServer, GcsServer
from lab.store_server import StoreServer

HASTY = StoreConfig(timeout_ms=1000)
ServePart = Callable[[str, StoreServer], Iterator[StoreServer]]
_numbers = count()


def open_bucket(
    server: StoreServer, bucket: str, config: StoreConfig | None = None
) -> ObstoreObjectStore:
    location = parse_store_url(server.store_url(bucket))
    # A busy machine may not answer for long; only the silent server gets a short time-out.
    return open_cloud_store(location, config or StoreConfig(), part_bytes=CONTRACT_PART_BYTES)


@contextmanager
def in_environment(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
async def gcs(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ObstoreObjectStore]:
    with in_environment(gcs_server, monkeypatch):
        async with open_bucket(
            gcs_server, gcs_server.create_bucket(f"contract-{next(_numbers)}")
        ) as it:
            yield it


@pytest.fixture
async def azure(
    azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ObstoreObjectStore]:
    with in_environment(azure_server, monkeypatch):
        bucket = azure_server.create_bucket(f"contract-{next(_numbers)}")
        async with open_bucket(azure_server, bucket) as it:
            yield it


@pytest.mark.gcs
class TestGcsObjectStore(ObjectStoreContract):
    cancel_turn_s = 0.002

    @pytest.fixture
    def store(self, gcs: ObstoreObjectStore) -> ObstoreObjectStore:
        return gcs


@pytest.mark.gcs
class TestRemoteStorageOnGcs(ArchiveContract):
    @pytest.fixture
    def store(self, gcs: ObstoreObjectStore) -> ObstoreObjectStore:
        return gcs


@pytest.mark.azure
class TestAzureObjectStore(ObjectStoreContract):
    cancel_turn_s = 0.002

    @pytest.fixture
    def store(self, azure: ObstoreObjectStore) -> ObstoreObjectStore:
        return azure


@pytest.mark.azure
class TestRemoteStorageOnAzure(ArchiveContract):
    @pytest.fixture
    def store(self, azure: ObstoreObjectStore) -> ObstoreObjectStore:
        return azure


async def everything_fails(
    store: ObstoreObjectStore, error: type[RemoteStorageError], path: Path
) -> None:
    with pytest.raises(error):
        await store.get("k")
    with pytest.raises(error):
        await store.get_range("k", ByteRange(0, 10))
    with pytest.raises(error):
        await store.put("k", b"x")
    with pytest.raises(error):
        await store.put_new("k", b"x")
    with pytest.raises(error):
        await store.put_file("k", path)
    with pytest.raises(error):
        await store.delete("k")
    with pytest.raises(error):
        await keys_of(store.list(""))
    with pytest.raises(error):
        [name async for name in store.list_folders("")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(noise(2 * CONTRACT_PART_BYTES))
    return path


class CloudOutages:
    @pytest.fixture
    def server(self) -> StoreServer:
        """A server that the test may kill; the environment is set for this server."""
        raise NotImplementedError

    async def test_a_killed_server_is_unavailable_until_it_is_back(
        self, server: StoreServer, file: Path
    ) -> None:
        async with open_bucket(server, server.create_bucket("archive")) as store:
            await store.put("k", b"before")
            server.kill()
            async with asyncio.timeout(60):
                await everything_fails(store, StorageUnavailable, file)
            server.start()
            assert await in_the_end(lambda: store.get("k")) == b"before"

    async def test_a_silent_server_is_unavailable_in_bounded_time(
        self, server: StoreServer
    ) -> None:
        async with open_bucket(server, server.create_bucket("archive"), HASTY) as store:
            await in_the_end(lambda: store.put("k", b"before"))
            server.pause()
            async with asyncio.timeout(60):
                with pytest.raises(StorageUnavailable):
                    await store.get("k")
                with pytest.raises(StorageUnavailable):
                    await keys_of(store.list(""))
                with pytest.raises(StorageUnavailable):
                    await store.put("k", noise(8 * MiB))
            server.resume()
            assert await in_the_end(lambda: store.get("k")) == b"before"

    async def test_a_server_killed_within_an_upload(
        self, server: StoreServer, tmp_path: Path
    ) -> None:
        path = tmp_path / "segment"
        path.write_bytes(noise(64 * MiB))
        async with open_bucket(server, server.create_bucket("archive")) as store:
            await store.put("before", b"x")
            async with asyncio.timeout(60):
                work = asyncio.create_task(store.put_file("k", path))
                await asyncio.sleep(0.02)
                server.kill()
                with pytest.raises(StorageUnavailable):
                    await work
            server.start()
            assert await in_the_end(lambda: keys_of(store.list(""))) == ["before"]

    async def test_a_missing_bucket_is_no_empty_archive(
        self, server: StoreServer, file: Path
    ) -> None:
        async with open_bucket(server, "no-such-bucket") as store:
            await everything_fails(store, StorageUnavailable, file)


@pytest.mark.gcs
class TestGcsOutages(CloudOutages):
    @pytest.fixture
    def server(
        self, serve_part: ServePart, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[StoreServer]:
        for server in serve_part("gcs", GcsServer()):
            with in_environment(server, monkeypatch):
                yield server

    async def test_a_wrong_token_is_denied(
        self, server: StoreServer, monkeypatch: pytest.MonkeyPatch, file: Path
    ) -> None:
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "wrong")
        async with open_bucket(server, server.create_bucket("archive")) as store:
            await everything_fails(store, StorageDenied, file)


@pytest.mark.azure
class TestAzureOutages(CloudOutages):
    @pytest.fixture
    def server(
        self, serve_part: ServePart, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[StoreServer]:
        for server in serve_part("azure", AzureServer()):
            with in_environment(server, monkeypatch):
                yield server

    async def test_a_wrong_key_is_denied(
        self, server: StoreServer, monkeypatch: pytest.MonkeyPatch, file: Path
    ) -> None:
        right = server.environment["AZURE_STORAGE_CONNECTION_STRING"]
        wrong = right.replace(AzureServer.key, "A" * 86 + "==")
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
        async with open_bucket(server, server.create_bucket("archive")) as store:
            await everything_fails(store, StorageDenied, file)

    async def test_a_rotated_key_is_read_again(
        self, server: AzureServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (text,) = server.environment.values()
        connection_file = tmp_path / "connection"
        connection_file.write_text(text)
        monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING_FILE", str(connection_file))
        async with open_bucket(server, server.create_bucket("rotated")) as store:
            assert isinstance(store, ObstoreObjectStore)
            assert store._renewal is not None
            await store.put("a", b"1")
            server.rotate_key(base64.b64encode(bytes(64)).decode())
            with pytest.raises(StorageDenied):
                await store.get("a")
            connection_file.write_text("AccountKey")  # half of it
            store._renewal.file._look_at = 0.0  # no pause in this test
            with pytest.raises(StorageDenied):
                await store.get("a")
            (text,) = server.environment.values()
            connection_file.write_text(text)
            store._renewal.file._look_at = 0.0
            assert await store.get("a") == b"1"
            await store.put("b", b"2")
