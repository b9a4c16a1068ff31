from __future__ import annotations

import pytest
from archive_contract import ArchiveContract
from memory_object_store import MemoryObjectStore

from fetchproxy.storage.contract import ObjectStoreContract


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


class TestMemoryObjectStore(ObjectStoreContract):
    pass


class TestRemoteStorageOnMemory(ArchiveContract):
    pass
