"""The contract where only pip is there: moto, a second opinion on the S3 protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from manager_contract import RemoteStorageManagerContract
from storage_contract import PART_BYTES, ObjectStoreContract

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
        bucket,
        endpoint_url=moto_server.endpoint_url,
        region=moto_server.region,
        part_bytes=PART_BYTES,
    ) as store:
        await (await store._opened()).create_bucket(Bucket=bucket)
        yield store


class TestS3ObjectStoreOnMoto(ObjectStoreContract):
    many_keys = 20  # moto is slow; pages are tested on the other backends
    cancel_turn_s = 0.002


class TestRemoteStorageManagerOnMoto(RemoteStorageManagerContract):
    pass
