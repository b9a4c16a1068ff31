"""A store whose listings do not show what was just written is refused before the first write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from memory_object_store import MemoryObjectStore

from fetchproxy.errors import ArchiveMismatch, StorageDenied
from fetchproxy.storage.archive_identity import ArchiveIdentity
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import StoredObject

IDENTITY = ArchiveIdentity(UUID(int=7), "c", "store")


class NoFolders(MemoryObjectStore):
    """As s3rver: no CommonPrefixes."""

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        for name in ():
            yield name


class Late(MemoryObjectStore):
    """A listing shows nothing new."""

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        for stored_object in ():
            yield stored_object


@pytest.mark.parametrize(("store", "by"), [(NoFolders(), "with"), (Late(), "without")])
async def test_it_is_refused_and_nothing_is_left(store: MemoryObjectStore, by: str) -> None:
    identity = RemoteStorage(store, "p").identity
    with pytest.raises(ArchiveMismatch, match=f"listing {by} a delimiter does not show"):
        await identity.create(IDENTITY)
    with pytest.raises(ArchiveMismatch):
        await identity.state(IDENTITY)
    assert not store._objects


async def test_a_whole_listing_is_taken_and_the_check_leaves_nothing() -> None:
    store = MemoryObjectStore()
    storage = RemoteStorage(store, "p")
    assert await storage.identity.create(IDENTITY) == IDENTITY
    assert [stored_object.key async for stored_object in store.list("")] == ["p/remote-log-layout"]


async def test_an_archiver_needs_no_right_to_delete() -> None:
    class NeverDeleting(MemoryObjectStore):
        async def delete(self, key: str) -> None:
            raise StorageDenied(f"delete {key}")

    storage = RemoteStorage(NeverDeleting(), "p")
    assert await storage.identity.create(IDENTITY) == IDENTITY
    assert await storage.objects.list_topics() == []
