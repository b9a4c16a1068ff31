"""An ObjectStore that shows topics of other archives in this archive, under other names.

To its callers an attached topic looks like a topic of this archive: its metadata has the new name.
It also has another topic id, so that an archive can be attached to itself. The store refuses every
put and delete in an attached topic.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from uuid import UUID, uuid5

import structlog

from fetchproxy.config.schema import Config
from fetchproxy.config.values import parse_attachments
from fetchproxy.errors import ConfigError, CorruptSegment, ObjectNotFound, StorageDenied
from fetchproxy.model import ByteRange, RemoteLogSegmentId, TopicIdPartition
from fetchproxy.runtime.drills import DRILL
from fetchproxy.segments import object_keys as keys
from fetchproxy.segments.description import decode_segment, encode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.topic_description import decode_topic, encode_topic_description
from fetchproxy.storage.archive_identity import read_identity
from fetchproxy.storage.drilled_store import DrilledObjectStore
from fetchproxy.storage.remote_storage import RemoteStorage, at_rest_of
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    Content,
    Hazard,
    ObjectStore,
    StoredObject,
)
from fetchproxy.storage.stores.registry import open_object_store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AttachedTopic:
    """The proxy serves `topic` of the archive in `store` below `prefix` as `name`."""

    name: str
    store: ObjectStore
    prefix: str
    topic: str


@dataclass(frozen=True, slots=True)
class _Mount:
    """`topic_id`: the id in the other archive. `here`, `there`: the topic's folders. `hidden`: the
    key of an object that is not shown. `description_here`, `description_there`: the keys of its
    description.
    """

    attached: AttachedTopic
    topic_id: UUID
    here: str
    there: str
    hidden: str
    description_here: str
    description_there: str

    def key_there(self, key: str) -> str:
        return self.there + key[len(self.here) :]


class AttachedObjectStore(ObjectStore):
    """The archive in `archive_store` below `prefix`, and the attached topics as folders of it.

    `async with` opens and closes all stores. An attached topic is known after a listing of the
    folders, which every reader of an archive does first. It hides an own topic of the same name.
    """

    def __init__(
        self, archive_store: ObjectStore, prefix: str, attached: Sequence[AttachedTopic]
    ) -> None:
        self._archive_store = archive_store
        self._prefix = prefix
        self._attached = attached
        self._mounts: dict[str, _Mount] = {}  # by the folder here
        self._names_not_found: set[str] = set()  # names that were logged as not found

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for store in self._stores():
                await stack.enter_async_context(store)
            stack.pop_all()  # `close` closes them
        return self

    async def put(self, key: str, content: bytes) -> str | None:
        return await self._writable(key).put(key, content)

    async def put_new(self, key: str, content: bytes) -> bool:
        return await self._writable(key).put_new(key, content)

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        await self._writable(key).put_file(key, path, settled=settled)

    async def delete(self, key: str) -> None:
        await self._writable(key).delete(key)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        mount = self._mount(key)
        if mount is None:
            return await self._archive_store.get(key, bytes_max)
        if key == mount.hidden:
            raise ObjectNotFound(key)
        if key == mount.description_here:
            return await self._description(mount, bytes_max)
        key_there = await mount.attached.store.get(mount.key_there(key), bytes_max)
        return self._renamed(key, mount, key_there)

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        mount = self._mount(key)
        if mount is None:
            return await self._archive_store.get_range(key, byte_range)
        return await mount.attached.store.get_range(mount.key_there(key), byte_range)

    def origin(self, tp: TopicIdPartition) -> TopicIdPartition:
        mount = self._mount(keys.partition_folder(self._prefix, tp))
        if mount is None:
            return tp
        return TopicIdPartition(mount.topic_id, mount.attached.topic, tp.partition)

    @property
    def page_objects(self) -> int | None:
        return next((s.page_objects for s in self._stores() if s.page_objects), None)

    @property
    def part_bytes_max(self) -> int:
        return self._archive_store.part_bytes_max

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        """Includes an attached topic only if `prefix` lies in it: no caller lists across topics.

        Metadata objects have their sizes in the other archive.
        """
        mount = self._mount(prefix)
        if mount is None:
            async for stored in self._archive_store.list(prefix, start_after):
                yield stored
            if prefix == keys.topics_folder(self._prefix):
                for mount in self._mounts.values():
                    async for stored in mount.attached.store.list(mount.description_there):
                        yield replace(stored, key=mount.description_here)
            return
        key_there = mount.key_there(start_after) if start_after.startswith(mount.here) else ""
        if not key_there and start_after > mount.here:
            return
        async for stored in mount.attached.store.list(mount.key_there(prefix), key_there):
            key = mount.here + stored.key[len(mount.there) :]
            if key != mount.hidden:
                yield replace(stored, key=key)

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        mount = self._mount(prefix)
        if mount is not None:
            async for name in mount.attached.store.list_folders(mount.key_there(prefix)):
                yield name
            return
        names = [name async for name in self._archive_store.list_folders(prefix)]
        if prefix == self._prefix:
            names_in_use = {attached.name for attached in self._attached}
            topics = {name: keys.parse_topic_folder(name) for name in names}
            names = [
                name for name, topic in topics.items() if not topic or topic[0] not in names_in_use
            ]
            for attached in self._attached:
                names += [mount.here[len(prefix) : -1] for mount in await self._look(attached)]
            names.sort(key=lambda name: f"{name}/")
        for name in names:
            yield name

    async def hazards(self, prefix: str) -> Sequence[Hazard]:
        return await self._archive_store.hazards(prefix)

    async def close(self) -> None:
        for store in self._stores():
            await store.close()

    async def _look(self, attached: AttachedTopic) -> Sequence[_Mount]:
        """Every incarnation of the topic that the other archive has now."""
        await read_identity(attached.store, attached.prefix)  # raises for an unknown layout
        topics = []
        async for name in attached.store.list_folders(attached.prefix):
            topic = keys.parse_topic_folder(name)
            if topic is not None and topic[0] == attached.topic:
                own_id = uuid5(topic[1], attached.name)
                own_folder = keys.topic_folder(self._prefix, attached.name, own_id)
                topics.append(
                    _Mount(
                        attached,
                        topic[1],
                        own_folder,
                        there=f"{attached.prefix}{name}/",
                        # It names the topic's cluster there; here it would be wrong.
                        hidden=keys.topic_cluster_key(self._prefix, attached.name, own_id),
                        description_here=keys.topic_description_key(self._prefix, own_id),
                        description_there=keys.topic_description_key(attached.prefix, topic[1]),
                    )
                )
        self._mounts.update((mount.here, mount) for mount in topics)
        if not topics and attached.name not in self._names_not_found:
            self._names_not_found.add(attached.name)
            log.warning(
                "attached_topic_not_found",
                name=attached.name,
                topic=attached.topic,
                hint="correct the topic in attach.archives",
            )
        return topics

    def _mount(self, key: str) -> _Mount | None:
        if not key.startswith(self._prefix):
            return None
        if (topic_id := keys.parse_topic_description_key(self._prefix, key)) is not None:
            description_here = keys.topic_description_key(self._prefix, topic_id)
            return next(
                (m for m in self._mounts.values() if m.description_here == description_here), None
            )
        folder, slash, _ = key[len(self._prefix) :].partition("/")
        return self._mounts.get(f"{self._prefix}{folder}{slash}")

    def _writable(self, key: str) -> ObjectStore:
        mount = self._mount(key)
        if mount is not None:
            raise StorageDenied(f"{key}: the attached topic {mount.attached.name} is read-only")
        return self._archive_store

    async def _description(self, mount: _Mount, bytes_max: int) -> bytes:
        """With the topic's id and name here."""
        raw = await mount.attached.store.get(mount.description_there, bytes_max)
        own_id = uuid5(mount.topic_id, mount.attached.name)
        try:
            description = decode_topic(raw, mount.description_there)
        except CorruptSegment:
            return raw  # the reader reports it
        return encode_topic_description(
            replace(description, topic=mount.attached.name, topic_id=own_id)
        )

    def _renamed(self, key: str, mount: _Mount, content: bytes) -> bytes:
        """Metadata with the segment's topic id and name here. Other content is left as it is."""
        segment_key = keys.parse_segment_key(self._prefix, key)
        if segment_key is None or segment_key.file is not SegmentFile.METADATA:
            return content
        try:
            metadata = decode_segment(content, key)
        except CorruptSegment:
            return content
        attached_key = keys.parse_segment_key(mount.attached.prefix, mount.key_there(key))
        if attached_key is None or metadata.segment_id != attached_key.segment_id:
            return content  # another segment's metadata must not pass for this segment's
        tp = segment_key.segment_id.topic_id_partition
        renamed = RemoteLogSegmentId(tp, metadata.segment_id.id)
        return encode_segment(replace(metadata, segment_id=renamed))

    def _stores(self) -> Sequence[ObjectStore]:
        return (self._archive_store, *(attached.store for attached in self._attached))


def open_archive(config: Config, *, create: bool = False, must_exist: bool = True) -> RemoteStorage:
    """The configured archive with its attached topics, not opened yet. Raises ConfigError.

    Its metadata manager must be the configured one, except in archive-only mode. In that mode the
    archive may be missing: the process then knows no topic, so no reader skips records.
    """
    if config.store.url is None:
        raise ConfigError("store.url is not set")
    archive_store, prefix = open_object_store(config.store.url, config.store, create=create)
    manager = None if config.archive_only.enabled else config.metadata.recorded_name
    at_rest = at_rest_of(config.store)
    must_exist = must_exist and not config.archive_only.enabled
    attached = [
        AttachedTopic(
            attachment.name,
            *open_object_store(attachment.store_url, config.store),
            attachment.topic,
        )
        for attachment in parse_attachments(config.attach.archives or "")
    ]
    store: ObjectStore = archive_store
    if attached:
        store = AttachedObjectStore(archive_store, prefix, attached)
    if config.drills.enabled:
        store = DrilledObjectStore(store, DRILL)
    return RemoteStorage(store, prefix, manager=manager, must_exist=must_exist, at_rest=at_rest)
