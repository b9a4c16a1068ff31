"""The faulty store passes the storage contract, and its seed decides its faults."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from archive_contract import ArchiveContract
from faulty_store import HANG, NO_FAULTS, OUTAGE, Faults, FaultyObjectStore
from memory_object_store import MemoryObjectStore
from virtual_loop import run_virtual

from fetchproxy.errors import RemoteStorageError
from fetchproxy.storage.contract import ObjectStoreContract


@pytest.fixture
def store() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore(), Random(1), NO_FAULTS)


class TestFaultyObjectStore(ObjectStoreContract):
    pass


class TestRemoteStorageOnFaultyStore(ArchiveContract):
    pass


def fates(seed: int) -> list[str]:
    async def main() -> list[str]:
        store = FaultyObjectStore(MemoryObjectStore(), Random(seed))
        await store.put("k", bytes(100))
        store.faults = Faults(0.01, 0.2, 0.3, 0.1, 0.3)
        outcomes = []
        for _ in range(50):
            try:
                async with asyncio.timeout(1):
                    content = await store.get("k")
                outcomes.append("right" if content == bytes(100) else "damaged")
            except TimeoutError:
                outcomes.append("hung")
            except RemoteStorageError as error:
                outcomes.append(type(error).__name__)
        return [*outcomes, f"{asyncio.get_running_loop().time():.6f}"]

    return run_virtual(main)


def test_every_fault_occurs_and_the_seed_decides_which() -> None:
    first = fates(1)
    expected = {"right", "damaged", "hung", "StorageUnavailable", "StorageThrottled"}
    assert set(first[:-1]) == expected
    assert fates(1) == first
    assert fates(2) != first


def test_outage_and_hang_let_nothing_through() -> None:
    async def main() -> None:
        store = FaultyObjectStore(MemoryObjectStore(), Random(1))
        await store.put("k", b"v")
        store.faults = OUTAGE
        for _ in range(20):
            with pytest.raises(RemoteStorageError):
                await store.get("k")
        store.faults = HANG
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await store.get("k")
        assert store.in_flight == 0
        assert await store.inner.get("k") == b"v"

    run_virtual(main)
