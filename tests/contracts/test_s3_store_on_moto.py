"""The contract on moto, which needs only pip: a second opinion on the S3 protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest
from archive_contract import ArchiveContract

from fetchproxy.storage.contract import CONTRACT_PART_BYTES, ObjectStoreContract
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore
from lab.s3 import MotoServer

_numbers = count()


@pytest.fixture(scope="module")
def moto_server() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.fixture
async def store(
    moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[S3ObjectStore]:
    for name, value in moto_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"contract-{next(_numbers)}"
    async with S3ObjectStore(
        S3Location(bucket, endpoint_url=moto_server.endpoint_url, region=moto_server.region),
        part_bytes=CONTRACT_PART_BYTES,
    ) as store:
        await (await store._opened()).create_bucket(Bucket=bucket)
        yield store


@pytest.mark.parametrize("size_bytes", [1000, 3 * CONTRACT_PART_BYTES])
async def test_the_server_is_told_how_to_keep_an_object(
    moto_server: MotoServer, store: S3ObjectStore, tmp_path: Path, size_bytes: int
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(size_bytes))
    async with S3ObjectStore(
        S3Location(
            store._bucket,
            endpoint_url=moto_server.endpoint_url,
            region=moto_server.region,
            storage_class="STANDARD_IA",
            sse="aws:kms",
            sse_kms_key_id="a-key",
        ),
        part_bytes=CONTRACT_PART_BYTES,
    ) as choosy:
        await choosy.put_file("log", path)
        await choosy.put("small", b"x")
        client = await choosy._opened()
        log, small = [
            await client.head_object(Bucket=store._bucket, Key=k) for k in ("log", "small")
        ]
    assert log["ContentLength"] == size_bytes
    assert log["StorageClass"] == "STANDARD_IA"
    assert "StorageClass" not in small, "it is read often"
    for metadata in (log, small):
        assert (metadata["ServerSideEncryption"], metadata["SSEKMSKeyId"]) == ("aws:kms", "a-key")


@pytest.mark.slow
class TestS3ObjectStoreOnMoto(ObjectStoreContract):
    many_keys = 20  # moto is slow; the other backends test pages
    cancel_turn_s = 0.002


@pytest.mark.slow
class TestRemoteStorageOnMoto(ArchiveContract):
    pass
