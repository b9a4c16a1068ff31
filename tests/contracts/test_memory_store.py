from __future__ import annotations

import pytest
from storage_contract import ObjectStoreContract, RemoteStorageManagerContract

from fetchproxy.storage.memory import MemoryObjectStore


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


class TestMemoryObjectStore(ObjectStoreContract):
    pass


class TestRemoteStorageManagerOnMemory(RemoteStorageManagerContract):
    pass
