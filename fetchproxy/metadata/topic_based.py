"""The second RemoteLogMetadataManager: it follows the events of `__remote_log_metadata`.

Strongly consistent: a put returns when its own event was read back, and of two that raced the one
that came second in the log is refused, to all readers alike. What a partition looks like costs no
listing of the store, and 100 bytes of memory per segment.

The store has every segment's state too, so that it describes itself. What is written first is
chosen so that a crash between both leaves an unfinished copy or a deletion to be repeated, and
never a segment that is served while its objects are not all there (docs/adr/0015).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog

from fetchproxy.config.sections import MetadataConfig
from fetchproxy.errors import RemoteStorageError, StorageUnavailable
from fetchproxy.many_items import pieces
from fetchproxy.metadata.api import MetadataProblem, RemoteLogMetadataManager
from fetchproxy.metadata.fresh_reads import FreshReads
from fetchproxy.metadata.log_history_json import encode_log_history
from fetchproxy.metadata.log_start_json import encode_log_start
from fetchproxy.metadata.metadata_log import MetadataLog
from fetchproxy.metadata.partition_deletion_json import encode_partition_deletion
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.records import LogHistorySaid, LogStartOffset, MetadataEvent
from fetchproxy.metadata.segment_json import encode_segment
from fetchproxy.metadata.segment_table import SegmentTable
from fetchproxy.metadata.states import check_deletion, check_update
from fetchproxy.metadata.topic_follower import TopicFollower
from fetchproxy.model import (
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.storage.layout import PartitionNote
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager, SegmentMetadataObject

log = structlog.get_logger(__name__)

State = RemoteLogSegmentState

# Making a view of a few segments takes some 50 µs.
VIEWS_AT_ONCE = 50
# So long the first list of archived topics waits for a store that is slow.
IN_STORE_WAIT_MAX_S = 1.0


@dataclass(frozen=True, slots=True)
class _Shown:
    """A view and what it was made from; it is made anew when that changes."""

    made_from: tuple[float, int, int]
    view: PartitionView


class TopicBasedRemoteLogMetadataManager(RemoteLogMetadataManager):
    """`async with` owns the reads; `rsm` and what `metadata_log` needs belong to the caller.

    `wall_clock_ms` stamps the events of log starts.
    """

    def __init__(
        self,
        metadata_log: MetadataLog,
        rsm: RemoteStorageManager,
        config: MetadataConfig,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._rsm = rsm
        self._config = config
        self._wall_clock_ms = wall_clock_ms
        self._follower = TopicFollower(metadata_log, config)
        self._shown: dict[TopicIdPartition, _Shown] = {}
        self._in_store_checked: set[TopicIdPartition] = set()
        self._archived = FreshReads(self._read_archived_topics)
        self._in_store = FreshReads(self._list_store_topics)
        self._put_topics: set[UUID] = set()  # by this process, ever
        self._owned = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises ConfigError where the topic has settings that would lose events."""
        async with AsyncExitStack() as opened:
            for part in (self._follower, self._archived, self._in_store):
                await opened.enter_async_context(part)
            self._owned = opened.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._owned.aclose()

    # --- reading ---
    def view(self, tip: TopicIdPartition) -> PartitionView | None:
        """As the interface says. One older than `view_age_max_ms` is read again meanwhile."""
        if tip not in self._shown:
            return None
        age_max_s = self._config.view_age_max_ms / 1000
        now = asyncio.get_running_loop().time()
        self._follower.renew(tip, now - age_max_s, age_max_s)
        return self._show(tip)

    async def refresh(self, tip: TopicIdPartition, not_older_than: float) -> PartitionView:
        """As the interface says; `read_at` is when the topic's end was asked for.

        Raises RemoteStorageError also where the store has segments of a partition of which the
        topic knows nothing: whoever took that for an empty archive would skip or copy all of it.
        And of a partition that is being restored, or of which a restore has not ended.
        """
        table = await self._restored_table(tip, not_older_than)
        if table.is_empty and tip not in self._in_store_checked:
            await self._check_not_in_store(tip)
        self._in_store_checked.add(tip)
        return self._show(tip)

    async def partition_deletion(
        self, tip: TopicIdPartition, not_older_than: float
    ) -> RemotePartitionDeleteMetadata | None:
        return (await self._restored_table(tip, not_older_than)).deletion

    async def _restored_table(self, tip: TopicIdPartition, not_older_than: float) -> SegmentTable:
        table = await self._follower.table(tip, not_older_than)
        if table.restoring:
            raise RemoteStorageError(
                f"the metadata topic is being restored, and does not know all of {tip} yet; if no "
                "restore is running, one was interrupted: run `fetchproxy restore` again"
            )
        return table

    async def list_partitions(self) -> Iterable[TopicIdPartition]:
        return sorted(await self._follower.partitions(asyncio.get_running_loop().time()))

    async def refresh_topic(
        self, topic_id: UUID, not_older_than: float
    ) -> Mapping[int, PartitionView]:
        """As the interface says. Reads all of the metadata topic, as far as it was not read yet."""
        # One time for all partitions: a later one would make each of them read again.
        oldest = min(not_older_than, asyncio.get_running_loop().time())
        known = [t for t in await self._follower.partitions(oldest) if t.topic_id == topic_id]
        if not known and topic_id in (self._in_store.cached(None) or ()):
            # Deleted since the store was listed, or the metadata topic was lost: `refresh` tells.
            known = await self._rsm.list_topic(topic_id)
        views: dict[int, PartitionView] = {}
        for piece in pieces(known, VIEWS_AT_ONCE):
            for tip in piece:
                views[tip.partition] = await self.refresh(tip, oldest)
            await asyncio.sleep(0)
        return views

    def renew_topic(self, topic_id: UUID, age_max_s: float) -> None:
        """What follows the log has read it lately, or begins to: nothing is read for one topic."""
        oldest = asyncio.get_running_loop().time() - age_max_s
        for tip in [tip for tip in self._shown if tip.topic_id == topic_id]:
            self._follower.renew(tip, oldest, age_max_s)

    async def archived_topics(self, not_older_than: float) -> frozenset[UUID]:
        """As the interface says, by the metadata topic.

        The store is listed once, if it answers: a metadata topic that was lost must not look as if
        nothing had ever been archived.
        """
        return await self._archived.get(None, not_older_than)

    def known_archived_topics(self) -> tuple[frozenset[UUID], float] | None:
        entry = self._archived.entry(None)
        return None if entry is None else (entry[1], entry[0])

    async def _read_archived_topics(self, _: None, began_at: float) -> frozenset[UUID]:
        known = {tip.topic_id for tip in await self._follower.partitions(began_at)}
        with suppress(RemoteStorageError, TimeoutError):
            async with asyncio.timeout(IN_STORE_WAIT_MAX_S):
                await self._in_store.get(None, float("-inf"))
        in_store = self._in_store.cached(None) or frozenset()
        return frozenset(known | in_store | self._put_topics)

    async def _list_store_topics(self, _: None, __: float) -> frozenset[UUID]:
        return frozenset(topic_id for _, topic_id in await self._rsm.list_topics())

    def list_remote_log_segments(
        self, tip: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        table = self._follower.loaded(tip)
        return () if table is None else tuple(table.segments())

    def problems(self, tip: TopicIdPartition) -> tuple[MetadataProblem, ...]:
        return self._follower.problems(tip)

    def _show(self, tip: TopicIdPartition) -> PartitionView:
        """Made from what is in memory, after it was read once."""
        table, read_at = self._follower.loaded(tip), self._follower.read_at(tip)
        assert table is not None  # `refresh` came first
        assert read_at is not None
        problems = self._follower.problems(tip)
        made_from = (read_at, self._follower.changes(tip), len(problems))
        shown = self._shown.get(tip)
        if shown is not None and table.restoring:
            return shown.view  # as it was before: `refresh` says that nothing newer is known
        if shown is None or shown.made_from != made_from:
            view = table.view(read_at)
            if problems:
                # About any offset: whatever no segment covers may be what they speak of.
                view = table.view(read_at, (0, *(end + 1 for end in view.end_offsets)))
            shown = _Shown(made_from, view)
            self._shown[tip] = shown
        return shown.view

    async def _check_not_in_store(self, tip: TopicIdPartition) -> None:
        if not await self._is_in_store(tip):
            return
        # A copy that another instance has begun meanwhile is in the topic before it is there.
        table = await self._follower.table(tip, asyncio.get_running_loop().time())
        if table.is_empty:
            raise RemoteStorageError(
                f"the store has segments of {tip} of which the metadata topic knows nothing: "
                f"rebuild it with `fetchproxy restore`, or set metadata.manager=store"
            )

    async def _is_in_store(self, tip: TopicIdPartition) -> bool:
        read_max_ms = self._config.metadata_read_max_ms
        try:
            async with asyncio.timeout(read_max_ms / 1000):
                async for found in self._rsm.list_partition(tip):
                    if isinstance(found, SegmentMetadataObject):
                        return True
        except TimeoutError:
            raise StorageUnavailable(
                f"segments of {tip} in the store: not listed within {read_max_ms} ms"
            ) from None
        return False

    # --- writing ---
    async def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Write the event and the segment's object in the store; returns when it was read back.

        A finished copy goes to the store first: what a crash leaves then is a copy that was begun.
        Everything else goes to the topic first. DELETE_SEGMENT_FINISHED is in the topic alone: the
        object went with `RemoteStorageManager.delete_log_segment_data`.
        Raises ValueError on an illegal transition, also where another writer was first, and
        RemoteStorageError: then it may have happened or not, and may be repeated.
        """
        tip = metadata.topic_id_partition
        table = await self._fresh(tip)
        check_update(table.known(metadata), metadata)
        if metadata.state is State.COPY_SEGMENT_FINISHED:
            await self._put_finished(metadata, table)
            return
        await self._append(metadata)
        if metadata.state is not State.DELETE_SEGMENT_FINISHED:
            await self._rsm.put_segment_metadata(metadata, encode_segment(metadata))

    async def _put_finished(self, metadata: RemoteLogSegmentMetadata, table: SegmentTable) -> None:
        await self._rsm.put_segment_metadata(metadata, encode_segment(metadata))
        try:
            await self._append(metadata)
        except ValueError:
            # Somebody has begun to delete it meanwhile: the store must not say otherwise.
            known = table.known(metadata)
            if known is None:
                await self._rsm.delete_log_segment_data(metadata)
            else:
                await self._rsm.put_segment_metadata(known, encode_segment(known))
            raise

    async def raise_log_start_offset(self, tip: TopicIdPartition, offset: int) -> PartitionView:
        """As the interface says. To the store first: a topic lost later may be rebuilt from it."""
        table = await self._fresh(tip)
        before = table.raised_log_start
        if offset > before:
            after_epoch = table.history.after_epoch
            content = encode_log_start(tip, offset)
            await self._rsm.put_log_start_offset(tip, offset, content, after_epoch)
            await self._append(LogStartOffset(tip, offset, self._wall_clock_ms(), after_epoch))
            await self._tidy_log_start(tip, before, after_epoch)
        return self._show(tip)

    async def put_log_history(self, tip: TopicIdPartition, history: LogHistory) -> PartitionView:
        """As the interface says. To the store first, as a log start."""
        await self._fresh(tip)
        content = encode_log_history(tip, history)
        await self._rsm.notes.put_partition_note(tip, PartitionNote.LOG_HISTORY, content)
        await self._append(LogHistorySaid(tip, history, self._wall_clock_ms()))
        return self._show(tip)

    async def put_partition_deletion(self, deletion: RemotePartitionDeleteMetadata) -> None:
        """As the interface says. The last state goes to the store first, the others to the topic.

        So a crash between both leaves a deletion that is repeated.
        """
        tip = deletion.topic_id_partition
        known = (await self._fresh(tip)).deletion
        check_deletion(None if known is None else known.state, deletion.state)
        if deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            await self._rsm.forget_partition(tip)
            await self._append(deletion)
        else:
            await self._append(deletion)
            await self._rsm.put_partition_deletion(tip, encode_partition_deletion(deletion))

    async def _fresh(self, tip: TopicIdPartition) -> SegmentTable:
        """As of now: what another instance has put counts for what may follow."""
        await self.refresh(tip, asyncio.get_running_loop().time())
        table = self._follower.loaded(tip)
        assert table is not None
        return table

    async def _append(
        self,
        event: MetadataEvent,
    ) -> None:
        refusal = await self._follower.append(event)
        if refusal is not None:
            raise ValueError(f"another writer was first: {refusal}")
        topic_id = event.topic_id_partition.topic_id
        self._put_topics.add(topic_id)
        if (archived := self._archived.cached(None)) is not None and topic_id not in archived:
            self._archived.replace(None, archived | {topic_id})

    async def _tidy_log_start(self, tip: TopicIdPartition, lower: int, after_epoch: int) -> None:
        """It says nothing any more; where it stays it does no harm."""
        if lower == 0:
            return
        try:
            await self._rsm.delete_log_start_offset(
                self._rsm.log_start_object(tip, lower, after_epoch)
            )
        except RemoteStorageError as error:
            log.warning(
                "lower_log_start_kept", topic=tip.topic, partition=tip.partition, error=str(error)
            )
