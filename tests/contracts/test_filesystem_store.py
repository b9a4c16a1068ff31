from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from archive_contract import ArchiveContract

from fetchproxy.storage.contract import (
    CONTRACT_PART_BYTES,
    AwayStoreContract,
    ObjectStoreContract,
)
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FilesystemObjectStore]:
    async with FilesystemObjectStore(
        tmp_path / "a" / "s", create=True, part_bytes=CONTRACT_PART_BYTES
    ) as store:
        yield store


class TestFilesystemObjectStore(ObjectStoreContract):
    cancel_turn_s = 0.0005


@pytest.fixture
async def away_store(tmp_path: Path) -> AsyncIterator[FilesystemObjectStore]:
    async with FilesystemObjectStore(tmp_path / "nowhere") as store:
        yield store


class TestFilesystemThatIsAway(AwayStoreContract):
    pass


class TestRemoteStorageOnFiles(ArchiveContract):
    pass
