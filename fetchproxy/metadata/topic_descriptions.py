"""Reads what the archive knows of its topics besides their records (`topic_description`)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotFound
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments.topic_description import TopicDescription, decode_topic
from fetchproxy.storage.archive_objects import ArchiveObjects

log = structlog.get_logger(__name__)

_READ_AT_ONCE = 16


class TopicDescriptions:
    """The archive's descriptions as last read. Only changed objects are read again."""

    def __init__(self, objects: ArchiveObjects) -> None:
        self._objects = objects
        self._read: dict[str, tuple[str, TopicDescription | None]] = {}  # by key: version
        self.by_id: Mapping[UUID, TopicDescription] = {}

    async def refresh(self) -> Mapping[UUID, TopicDescription]:
        """One listing. An object that cannot be read is logged and left out. Raises
        RemoteStorageError.
        """
        listed = [stored async for stored in self._objects.list_topic_descriptions()]
        read_before = self._read
        self._read = {
            stored.key: read_before[stored.key]
            for stored in listed
            if read_before.get(stored.key, ("", None))[0] == stored.version
        }

        async def read(key: str, version: str) -> None:
            try:
                raw = await self._objects.get_topic_description(key)
                self._read[key] = version, decode_topic(raw, key)
            except ObjectNotFound:
                return  # its topic was deleted meanwhile
            except CorruptSegment as error:
                log.warning("topic_description_unreadable", key=key, error=str(error))
                self._read[key] = version, None

        new = [stored for stored in listed if stored.key not in self._read]
        await for_each(new, lambda stored: read(stored.key, stored.version), _READ_AT_ONCE)
        descriptions = [
            description for _, description in self._read.values() if description is not None
        ]
        self.by_id = {description.topic_id: description for description in descriptions}
        return self.by_id

    def log_start(self, tp: TopicIdPartition) -> int:
        """Where the log of a partition without archived records begins; 0 if nobody knows."""
        description = self.by_id.get(tp.topic_id)
        return 0 if description is None else description.empty.get(tp.partition, 0)
