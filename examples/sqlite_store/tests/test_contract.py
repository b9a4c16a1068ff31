"""The contract tests that every store must pass, run from outside fetchproxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fetchproxy.config.schema import StoreConfig
from fetchproxy.storage.contract import (
    AwayStoreContract,
    ObjectStoreContract,
    RemoteStorageManagerContract,
)
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.storage.stores.registry import open_object_store


async def opened(url: str, *, create: bool) -> AsyncIterator[ObjectStore]:
    """Opens the store by its URL, as fetchproxy does."""
    store, prefix = open_object_store(url, StoreConfig(), create=create)
    assert prefix == ""
    yield store
    await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    async for one in opened(f"sqlite://{tmp_path}/archive.db", create=True):
        yield one


@pytest.fixture
async def away_store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    async for one in opened(f"sqlite://{tmp_path}/nowhere.db", create=False):
        yield one


class TestSqliteStore(ObjectStoreContract):
    cancel_turn_s = 0.0005


class TestSqliteStoreThatIsAway(AwayStoreContract):
    pass


class TestArchiveInSqlite(RemoteStorageManagerContract):
    pass
