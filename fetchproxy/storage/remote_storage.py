"""The remote storage of an archive: one object store, and the parts that keep the archive there.

Who opens it gives each part to those that need it: `rsm` copies, reads and deletes segments,
`objects` has all else that the store holds, `identity` says whose archive it is, `packed` opens
compressed and encrypted segments, `health` says what fails.
"""

from __future__ import annotations

from typing import Self

from fetchproxy.config.schema import StoreConfig
from fetchproxy.config.values import KeyRingPlace, parse_key_rings
from fetchproxy.runtime.core_dumps import prevent_core_dumps
from fetchproxy.segments import object_keys as keys
from fetchproxy.storage.archive_identity import OwnIdentity
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.key_rings import FileKeyRing, KeyRing, KeyRings
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest, PackedLogs
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.storage.stores.registry import open_object_store
from fetchproxy.storage.watched_store import WatchedObjectStore


class RemoteStorage:
    """`async with` opens and closes the store. `manager`, `must_exist`: see `OwnIdentity`.

    `store`: the objects as they are stored, with this archive's retries and health.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str = "",
        *,
        manager: str | None = None,
        must_exist: bool = False,
        at_rest: AtRest = NO_ENCRYPTION,
    ) -> None:
        prefix = keys.normal_prefix(prefix)
        self.store = watched = WatchedObjectStore(store, prefix + keys.LAYOUT_OBJECT)
        self.health = watched.health
        self.accounts = watched.accounts
        self.identity = OwnIdentity(watched, prefix, manager, must_exist=must_exist)
        self.objects = ArchiveObjects(watched, prefix, self.identity)
        self.at_rest = at_rest
        self.packed = PackedLogs(watched, prefix, at_rest)
        self.rsm = RemoteStorageManager(watched, prefix, self.identity, self.packed)

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.packed.close()
        await self.store.close()


def open_store(url: str, config: StoreConfig, *, create: bool = False) -> RemoteStorage:
    """The archive at `url`, not opened yet. Raises ConfigError.

    A mistyped place is an error, not an empty archive. `create`: the call that makes the archive
    (`OwnIdentity.state`) also makes the folder of a `file:` or HDFS store.
    """
    store, prefix = open_object_store(url, config, create=create)
    return RemoteStorage(store, prefix, must_exist=True, at_rest=at_rest_of(config))


def at_rest_of(config: StoreConfig) -> AtRest:
    """Raises ConfigError. A process that opens keys writes no core file."""
    compress = config.compression == "zstd"
    if config.encryption_keys is None:
        return AtRest(compress)
    prevent_core_dumps()
    places = parse_key_rings(config.encryption_keys)
    rings = [_opened_ring(place) for place in places]
    ring = rings[0] if len(rings) == 1 else KeyRings(rings)
    return AtRest(compress, ring, any(place.required for place in places))


def _opened_ring(place: KeyRingPlace) -> KeyRing:
    if place.path is not None:
        return FileKeyRing(place.path)
    # Imported late: the KMS client takes 30 MiB.
    from fetchproxy.storage.kms_keys import KmsKeyRing

    return KmsKeyRing(place)
