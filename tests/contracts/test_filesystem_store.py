from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from manager_contract import RemoteStorageManagerContract
from storage_contract import PART_BYTES, ObjectStoreContract

from fetchproxy.config.schema import StoreConfig
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FilesystemObjectStore]:
    config = StoreConfig(part_bytes=PART_BYTES)
    async with FilesystemObjectStore(tmp_path / "a" / "s", create=True, config=config) as store:
        yield store


class TestFilesystemObjectStore(ObjectStoreContract):
    cancel_turn_s = 0.0005


class TestRemoteStorageManagerOnFiles(RemoteStorageManagerContract):
    pass
