"""The contract on a second real S3 server, which shares no code with the first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest
from archive_contract import ArchiveContract

from fetchproxy.errors import StorageDenied, StorageUnavailable
from fetchproxy.storage.contract import (
    CONTRACT_PART_BYTES,
    ObjectStoreContract,
)
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore
from lab.s3 import RcloneServer

pytestmark = [pytest.mark.s3, pytest.mark.slow]

_numbers = count()


@pytest.fixture
async def store(
    rclone_server: RcloneServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[S3ObjectStore]:
    for name, value in rclone_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = rclone_server.create_bucket(f"contract-{next(_numbers)}")
    async with S3ObjectStore(
        S3Location(bucket, endpoint_url=rclone_server.endpoint_url, region=rclone_server.region),
        part_bytes=CONTRACT_PART_BYTES,
    ) as store:
        yield store


class TestS3ObjectStoreOnRclone(ObjectStoreContract):
    cancel_turn_s = 0.001
    while_replaced = (StorageUnavailable,)

    async def test_more_keys_than_a_page_holds(self, store: S3ObjectStore) -> None:
        """rclone sometimes answers 500 to concurrent puts into a new folder."""
        for n in range(-(-self.many_keys // 100)):
            await store.put(f"many/{n}/{100 * n:020d}", b".")
        await super().test_more_keys_than_a_page_holds(store)


class TestRemoteStorageOnRclone(ArchiveContract):
    pass


async def test_a_wrong_secret_is_denied(
    store: S3ObjectStore, rclone_server: RcloneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both reads and writes are denied; two clients sign them."""
    await store.put("k", b"x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with S3ObjectStore(
        S3Location(
            store._bucket, endpoint_url=rclone_server.endpoint_url, region=rclone_server.region
        )
    ) as stranger:
        with pytest.raises(StorageDenied):
            await stranger.get("k")
        with pytest.raises(StorageDenied):
            await stranger.put("k", b"y")
    assert await store.get("k") == b"x"
