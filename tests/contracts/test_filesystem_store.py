from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from manager_contract import RemoteStorageManagerContract
from storage_contract import PART_BYTES, ObjectStoreContract

from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FilesystemObjectStore]:
    async with FilesystemObjectStore(
        tmp_path / "a" / "s", create=True, part_bytes=PART_BYTES
    ) as store:
        yield store


class TestFilesystemObjectStore(ObjectStoreContract):
    cancel_turn_s = 0.0005


class TestRemoteStorageManagerOnFiles(RemoteStorageManagerContract):
    pass
