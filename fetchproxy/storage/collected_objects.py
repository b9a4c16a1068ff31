"""The object that repeats the metadata of a topic's segments; bytes, no meaning."""

from __future__ import annotations

from uuid import UUID

from fetchproxy.errors import ObjectNotFound
from fetchproxy.storage.api import ObjectStore
from fetchproxy.storage.layout import collected_metadata_key
from fetchproxy.storage.measured import measured


class CollectedObjects:
    """`prefix` is one of `layout.normal_prefix`. Raises RemoteStorageError and subclasses."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @measured
    async def put_collected_metadata(self, topic_id: UUID, content: bytes) -> None:
        """Create or replace, atomically."""
        await self._store.put(collected_metadata_key(self._prefix, topic_id), content)

    @measured
    async def get_collected_metadata(self, topic_id: UUID) -> bytes | None:
        """None: nobody has collected them."""
        try:
            return await self._store.get(collected_metadata_key(self._prefix, topic_id))
        except ObjectNotFound:
            return None
