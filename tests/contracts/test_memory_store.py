from __future__ import annotations

import pytest
from memory_object_store import MemoryObjectStore

from fetchproxy.storage.contract import ObjectStoreContract, RemoteStorageManagerContract


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


class TestMemoryObjectStore(ObjectStoreContract):
    pass


class TestRemoteStorageManagerOnMemory(RemoteStorageManagerContract):
    pass
