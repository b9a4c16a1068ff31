from __future__ import annotations

import pytest
from manager_contract import RemoteStorageManagerContract
from storage_contract import ObjectStoreContract

from fetchproxy.storage.stores.memory import MemoryObjectStore


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


class TestMemoryObjectStore(ObjectStoreContract):
    pass


class TestRemoteStorageManagerOnMemory(RemoteStorageManagerContract):
    pass
