from __future__ import annotations

import pytest
from manager_contract import RemoteStorageManagerContract
from memory_object_store import MemoryObjectStore
from storage_contract import ObjectStoreContract


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


class TestMemoryObjectStore(ObjectStoreContract):
    pass


class TestRemoteStorageManagerOnMemory(RemoteStorageManagerContract):
    pass
