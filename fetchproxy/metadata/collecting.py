"""Reads what was collected of a topic's metadata, and collects it anew when it has become too old.

`collected_metadata` says what that is for. Whatever goes wrong here costs time, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, RemoteStorageError, StorageDenied
from fetchproxy.metadata.collected_metadata import (
    COLLECTED_MAX,
    NOTHING,
    PUT_INTERVAL_S,
    READ_ALONE_MIN,
    READ_ALONE_SHARE_MIN,
    Collected,
    Read,
    decode_collected,
    encode_collected,
)
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)


# Of topics that are read partition by partition. They come one after the other, and what was
# collected of a large one takes 80 MB.
TOPICS_KEPT_MAX = 4


async def read_collected(rsm: RemoteStorageManager, topic_id: UUID) -> Collected:
    try:
        raw = await rsm.collected.get_collected_metadata(topic_id)
        return NOTHING if raw is None else await decode_collected(raw)
    except (RemoteStorageError, CorruptSegment) as error:
        # A store that is away is reported by whoever reads the objects themselves.
        log.info("collected_metadata_not_read", topic_id=str(topic_id), error=str(error))
        return NOTHING


class CollectedOnce:
    """For whoever reads the archive partition by partition: those of a topic share one read."""

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self._rsm = rsm
        self._topics: dict[UUID, _OneTopic] = {}  # the one that was asked for last is last

    async def read(self, topic_id: UUID) -> Collected:
        topic = self._topics.pop(topic_id, None) or _OneTopic()
        self._topics[topic_id] = topic
        if len(self._topics) > TOPICS_KEPT_MAX:
            del self._topics[next(iter(self._topics))]
        async with topic.reading:
            if topic.found is None:
                topic.found = await read_collected(self._rsm, topic_id)
        return topic.found


class _OneTopic:
    def __init__(self) -> None:
        self.reading = asyncio.Lock()
        self.found: Collected | None = None


class Collecting:
    """An async context manager that owns its writes; closing it gives them up."""

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self._rsm = rsm
        self._alone: dict[UUID, int] = {}  # objects read by themselves since they were collected
        self._put_at: dict[UUID, float] = {}  # loop time of the last attempt
        self._denied = False  # whoever may only read tries it once
        self._puts: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tasks, self._tasks = self._tasks, None
        for put in self._puts:
            put.cancel()
        if tasks is not None:
            # Not the error of the body: the group would wrap it. The tasks themselves never raise.
            await tasks.__aexit__(None, None, None)

    def read_alone(
        self, topic_id: UUID, alone: int, known: int, every: Callable[[], Iterable[Read]]
    ) -> None:
        """So many objects of the topic were read by themselves, of `known` ones.

        Where that was too much, `every` one is collected while nobody waits.
        """
        alone += self._alone.get(topic_id, 0)
        self._alone[topic_id] = alone
        now = asyncio.get_running_loop().time()
        if alone < max(READ_ALONE_MIN, known * READ_ALONE_SHARE_MIN):
            return
        due_at = self._put_at.get(topic_id, float("-inf")) + PUT_INTERVAL_S
        if self._tasks is None or self._denied or now < due_at:
            return
        self._put_at[topic_id] = now
        put = self._tasks.create_task(self._put(topic_id, every()), name=f"collect {topic_id}")
        self._puts.add(put)
        put.add_done_callback(self._puts.discard)

    async def _put(self, topic_id: UUID, every: Iterable[Read]) -> None:
        alone = self._alone[topic_id]
        first = [read for _, read in zip(range(COLLECTED_MAX), every, strict=False)]
        try:
            content = await encode_collected(first)
            await self._rsm.collected.put_collected_metadata(topic_id, content)
        except RemoteStorageError as error:
            if isinstance(error, StorageDenied):
                self._denied = True
            log.info("metadata_not_collected", topic_id=str(topic_id), error=str(error))
            return
        self._alone[topic_id] -= alone
        log.info(
            "metadata_collected",
            topic_id=str(topic_id),
            segments=len(first),
            size_bytes=len(content),
        )
