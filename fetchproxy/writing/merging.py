"""Merges adjacent small segments into one, safely beside archivers, readers and other mergers.

The merger takes finished segments that follow each other without a gap, share no offset with
another segment, and are of one lineage whose epochs all stay known. It leaves alone segments that
an unclean election has cut, that DeleteRecords or retention reaches into, or that have no
timestamps: retention takes the time of their copy as their age.

A merged segment is a further copy of the same offsets. The rule for copies by two archivers
(`orphans`), not this plan, lets the replaced segments be deleted once everything there is old. To
keep that rule decisive, the merger takes no segments that overlap: a range whose replaced segments
still exist is planned again after they are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import zip_longest

import structlog

from fetchproxy.errors import (
    CopyOvertaken,
    CorruptSegment,
    ObjectNotFound,
    RemoteStorageError,
)
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import (
    AbortedTxn,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.segments import side_files
from fetchproxy.segments.check import clip_epochs
from fetchproxy.segments.contents import AccumulatedSegment, KafkaFiles
from fetchproxy.segments.leader_epochs import NOT_COUNTED, are_those_of
from fetchproxy.segments.log_end_check import agrees
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stored_segments import checked_batches
from fetchproxy.storage.stores.retries import each_object_alone
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.sources.segment_writer import SegmentWriter
from fetchproxy.writing.spool import Spool

_Segments = Sequence[RemoteLogSegmentMetadata]

# Offsets relative to a segment's start fit an int32, as in Kafka's own index files.
MERGED_OFFSETS_MAX = 2**31 - 1
# The largest segment of a group holds at most this share of its bytes. So a byte is copied again
# only if its segment grows by a third: a logarithmic number of times.
LARGEST_SHARE_MAX = 0.75
_NOT_ENCRYPTED = (
    "it is not encrypted: someone without a key may have put it there. Compare it with its "
    "source; --encrypt-plain then merges and encrypts it"
)
_CHUNK_BYTES = 4 * 1024 * 1024
MERGED_BYTES_MAX = 1024 * 1024 * 1024  # Kafka's default segment size (log.segment.bytes)

log = structlog.get_logger(__name__)


def plan_merges(
    segments: Iterable[RemoteLogSegmentMetadata],
    view: PartitionView,
    *,
    bytes_max: int,
    left_out: Collection[RemoteLogSegmentId] = (),
) -> list[_Segments]:
    """Groups of two or more segments, by offset, each of at most `bytes_max` bytes. `segments`:
    read with `view`; those in `left_out` stay as they are. Small segments have at most half of
    `bytes_max`, so a full group gives one that is not small. The same archive gives the same plan,
    also after a part of it has been carried out. A compacted log has none: it is copied anew.
    """
    if view.history.compacted is not None:
        return []
    groups: list[_Segments] = []
    group: list[RemoteLogSegmentMetadata] = []
    for segment in _mergeable(segments, view):
        if group and not (_continues(group[-1], segment) and _fits(group, segment, bytes_max)):
            groups.append(group)
            group = []
        if segment.segment_size_bytes <= bytes_max // 2 and segment.segment_id not in left_out:
            group.append(segment)
    groups.append(group)
    return [group for group in groups if _is_worth_it(group)]


def still_stand(
    sources: _Segments,
    segments: Iterable[RemoteLogSegmentMetadata],
    view: PartitionView,
) -> bool:
    """Whether each of `sources` is unchanged and no other segment has a copy of its offsets."""
    ids = {source.segment_id for source in sources}
    segment_by_id = {s.segment_id: s for s in _mergeable(segments, view) if s.segment_id in ids}
    return all(segment_by_id.get(source.segment_id) == source for source in sources)


def merged_epochs(sources: Iterable[RemoteLogSegmentMetadata]) -> tuple[EpochStart, ...]:
    """The sources' epochs, each with its first offset. Each source repeats its first epoch."""
    epochs: list[EpochStart] = []
    for source in sources:
        for entry in source.segment_leader_epochs:
            if not epochs or entry.epoch != epochs[-1].epoch:
                epochs.append(entry)
    return tuple(epochs)


def _mergeable(
    segments: Iterable[RemoteLogSegmentMetadata], view: PartitionView
) -> list[RemoteLogSegmentMetadata]:
    """The segments that may be merged with a neighbour at all, by offset."""
    finished = sorted(
        (s for s in segments if s.is_finished), key=lambda s: (s.start_offset, s.end_offset)
    )
    mergeable: list[RemoteLogSegmentMetadata] = []
    end_offset = -1
    for segment, after in zip_longest(finished, finished[1:]):
        overlaps = segment.start_offset <= end_offset or (
            after is not None and after.start_offset <= segment.end_offset
        )
        end_offset = max(end_offset, segment.end_offset)
        if not overlaps and _may_be_merged(segment, view):
            mergeable.append(segment)
    return mergeable


def _may_be_merged(segment: RemoteLogSegmentMetadata, view: PartitionView) -> bool:
    unreadable_inside = any(
        segment.start_offset <= base <= segment.end_offset for base in view.unreadable
    )
    return (
        segment.copied_end_offset is None
        and segment.start_offset >= view.raised_log_start
        and view.history.shows(segment)
        and segment.max_timestamp_ms >= 0
        and not unreadable_inside
    )


def _continues(before: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata) -> bool:
    """Whether there is no gap between the two, and no epoch is lost or falls."""
    if segment.start_offset != before.end_offset + 1:
        return False
    one, other = before.segment_leader_epochs, segment.segment_leader_epochs
    if not one or not other:
        return not one and not other
    highest = max(entry.epoch for entry in one)
    return other[0].epoch == NOT_COUNTED or highest <= other[0].epoch


def _fits(group: _Segments, segment: RemoteLogSegmentMetadata, bytes_max: int) -> bool:
    size = sum(s.segment_size_bytes for s in group) + segment.segment_size_bytes
    offset_count = segment.end_offset - group[0].start_offset + 1
    return size <= bytes_max and offset_count <= MERGED_OFFSETS_MAX


def _is_worth_it(group: _Segments) -> bool:
    sizes = [segment.segment_size_bytes for segment in group]
    return len(sizes) > 1 and max(sizes) <= LARGEST_SHARE_MAX * sum(sizes)


# Joins several segments' logs into one, as if accumulated at once. The batches stay byte for byte
# the same and are checked as they are read. The segments' indexes are joined and compared with the
# log before anything relies on them.


async def merged_log(
    rsm: RemoteStorageManager, sources: _Segments, writer: SegmentWriter, chunk_bytes: int
) -> tuple[AccumulatedSegment, tuple[EpochStart, ...]]:
    """(the merged log, the log's epochs up to its end, also those that ended before it). `writer`:
    new, at the start of the first source; the caller discards it.

    Memory: two chunks, or the largest batch. Raises CorruptSegment if the segments
    disagree with their metadata or indexes; ObjectNotFound, RemoteStorageError; OSError.
    """
    aborted: list[tuple[AbortedTxn, ...]] = []
    for source in sources:
        aborted.append(side_files.decode_aborted(await rsm.fetch_index(source, SegmentFile.TXN)))
        await _append(rsm, source, aborted[-1], writer, chunk_bytes)
    accumulated = writer.close()
    if _ends(side_files.merged_aborted(aborted)) != _ends(accumulated.aborted):
        raise CorruptSegment(f"{_place(sources[0])}: transaction indexes and log disagree")
    epochs = merged_epochs(sources)
    # (): written without epochs
    if accumulated.leader_epochs and not are_those_of(accumulated.leader_epochs, epochs):
        raise CorruptSegment(
            f"{_place(sources[0])}: the log has {accumulated.leader_epochs}, metadata have {epochs}"
        )
    before = side_files.decode_epochs(await rsm.fetch_index(sources[0], SegmentFile.EPOCHS))
    lineage = extend_lineage(before, epochs)
    own_epochs = clip_epochs(lineage, accumulated.start_offset, accumulated.end_offset)
    if epochs and not agrees(own_epochs, epochs):
        raise CorruptSegment(
            f"{_place(sources[0])}: the lineage has {own_epochs}, metadata have {epochs}"
        )
    files = await _kafka_files(rsm, sources)
    return replace(accumulated, leader_epochs=epochs, kafka_files=files), lineage


async def _append(
    rsm: RemoteStorageManager,
    source: RemoteLogSegmentMetadata,
    aborted: Sequence[AbortedTxn],
    writer: SegmentWriter,
    chunk_bytes: int,
) -> None:
    before = writer.size_bytes
    report = [(entry.producer_id, entry.first_offset) for entry in aborted]
    try:
        async for data, headers in checked_batches(rsm, source, chunk_bytes):
            await writer.append(memoryview(data), headers, report)
            report = []
    except CorruptSegment as error:
        if error.retriable:
            raise
        raise CorruptSegment(f"{rsm.object_key(source, SegmentFile.LOG)}: {error}") from error
    size = writer.size_bytes - before
    end_and_size = (writer.position - 1, size)
    if end_and_size != (source.end_offset, source.segment_size_bytes):
        raise CorruptSegment(
            f"{_place(source)}: log ends at offset {end_and_size[0]} after {size} bytes, "
            f"metadata say {source.end_offset} after {source.segment_size_bytes}"
        )


async def _kafka_files(rsm: RemoteStorageManager, sources: _Segments) -> KafkaFiles:
    """The broker's own indexes, if every segment has them. The snapshot is the last segment's."""
    snapshot = await _kafka_file(rsm, sources[-1], SegmentFile.PRODUCER_SNAPSHOT)
    offsets: list[tuple[bytes, int, int]] = []
    times: list[tuple[bytes, int]] = []
    position = 0
    for source in sources:
        relative = source.start_offset - sources[0].start_offset
        offset_index = await _kafka_file(rsm, source, SegmentFile.OFFSET_INDEX)
        time_index = await _kafka_file(rsm, source, SegmentFile.TIME_INDEX)
        if offset_index is None or time_index is None:
            return KafkaFiles(producer_snapshot=snapshot)
        offsets.append((offset_index, relative, position))
        times.append((time_index, relative))
        position += source.segment_size_bytes
    return KafkaFiles(
        side_files.joined_offset_index(offsets), side_files.joined_time_index(times), snapshot
    )


async def _kafka_file(
    rsm: RemoteStorageManager, source: RemoteLogSegmentMetadata, file: SegmentFile
) -> bytes | None:
    try:
        return await rsm.fetch_index(source, file)
    except ObjectNotFound:
        return None  # segments from the `broker` source have no such file


def _ends(entries: Sequence[AbortedTxn]) -> set[tuple[int, int, int]]:
    return {(e.producer_id, e.first_offset, e.last_offset) for e in entries}


def _place(source: RemoteLogSegmentMetadata) -> str:
    return f"{source.topic_id_partition}: segment at offset {source.start_offset}"


@dataclass(slots=True)
class MergedPartition:
    """`replaced` segments became `merged` ones of `size_bytes` in all (dry run: would become)."""

    tp: TopicIdPartition
    merged: int = 0
    replaced: int = 0
    size_bytes: int = 0
    overtaken: int = 0  # merges given up because their sources changed
    refused: list[str] = field(default_factory=list)  # merges that failed, and why
    # Merges of segments that could not be read at two tries, while all others could.
    unread: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class PartitionMerger:
    """Merges adjacent small segments of a partition into one. One for any number of partitions, one
    task at a time for each.

    The archiver's own copier copies the merged segment. Until FINISHED is recorded nothing changes
    for others. Then the view has the merged segment after the first one that it replaces, and
    readers get each offset once. The replaced segments stay until the rule for spare copies deletes
    them. A merger that is killed leaves a dangling attempt, which is removed like any other, or a
    finished merge.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    copier: SegmentCopier
    spool: Spool
    _: KW_ONLY
    bytes_max: int = MERGED_BYTES_MAX
    chunk_bytes: int = _CHUNK_BYTES
    # Also take over segments that are not encrypted.
    encrypt_plain: bool = False

    async def plan(self, tp: TopicIdPartition) -> list[_Segments]:
        """The groups to merge; none for a partition being deleted. Raises RemoteStorageError."""
        return (await self._plan(tp))[0]

    async def dry_run(self, tp: TopicIdPartition) -> MergedPartition:
        """Raises RemoteStorageError."""
        groups, refused = await self._plan(tp)
        size = sum(segment.segment_size_bytes for group in groups for segment in group)
        replaced = sum(map(len, groups))
        return MergedPartition(tp, len(groups), replaced, size, refused=refused)

    async def _plan(self, tp: TopicIdPartition) -> tuple[list[_Segments], list[str]]:
        """The groups to merge, and why segments are left out.

        A merged segment is encrypted, and so proven to be of a holder of the key ring. A segment
        that is not encrypted may be of anybody who can write to the store.
        """
        look = await self._look(tp)
        if look is None:
            return [], []
        groups = plan_merges(*look, bytes_max=self.bytes_max)
        key_by_segment: dict[RemoteLogSegmentId, str] = {}
        if not self.rsm.encrypts or self.encrypt_plain:
            return groups, []
        planned: set[RemoteLogSegmentId] = set()
        while new := [s for group in groups for s in group if s.segment_id not in planned]:
            planned.update(segment.segment_id for segment in new)
            for segment in new:
                if not await self._is_encrypted(segment):
                    key_by_segment[segment.segment_id] = f"{_place(segment)}: {_NOT_ENCRYPTED}"
            groups = plan_merges(*look, bytes_max=self.bytes_max, left_out=key_by_segment)
        return groups, list(key_by_segment.values())

    async def _is_encrypted(self, segment: RemoteLogSegmentMetadata) -> bool:
        """True also if its packing is missing or does not open: then the merge fails and says
        why.
        """
        try:
            return await self.rsm.check_metadata(segment)
        except (CorruptSegment, ObjectNotFound):
            return True

    async def _look(self, tp: TopicIdPartition) -> tuple[_Segments, PartitionView] | None:
        """The current segments and view. None: the partition is being deleted."""
        now = asyncio.get_running_loop().time()
        if await self.rlmm.partition_deletion(tp, now) is not None:
            return None
        view = await self.rlmm.refresh(tp, now)
        return self.rlmm.list_remote_log_segments(tp), view

    async def merge(self, tp: TopicIdPartition) -> MergedPartition:
        """Carry out the plan; finished merges count. What could not be read is tried once more at
        the end. Raises RemoteStorageError, OSError (disk).
        """
        done = MergedPartition(tp)
        with each_object_alone():
            await self._carry_out(done)
            if before := done.unread:
                done.unread = []
                try:
                    await self._carry_out(done)
                except RemoteStorageError as error:
                    if not error.retriable:
                        raise
                    done.unread = before  # now the store fails: the finished merges stay
        return done

    async def _carry_out(self, done: MergedPartition) -> None:
        tp = done.tp
        groups, refused = await self._plan(tp)
        done.refused += [reason for reason in refused if reason not in done.refused]
        for sources in groups:
            try:
                finished = await self._merge(sources)
            except CopyOvertaken as error:
                done.overtaken += 1
                self._note("merge_overtaken", sources, error)
                continue
            except (CorruptSegment, ObjectNotFound) as error:
                if await self._stand(sources):
                    offsets = f"{sources[0].start_offset} to {sources[-1].end_offset}"
                    reason = f"{tp}, offsets {offsets}: {error}"
                    to = done.unread if error.retriable else done.refused
                    to += [] if reason in to else [reason]
                    self._note("merge_refused", sources, error, hint="run fetchproxy verify")
                else:
                    done.overtaken += 1  # a source was deleted during the read
                continue
            done.merged += 1
            done.replaced += len(sources)
            done.size_bytes += finished.segment_size_bytes

    async def _merge(self, sources: _Segments) -> RemoteLogSegmentMetadata:
        tp = sources[0].topic_id_partition
        writer = SegmentWriter(tp, sources[0].start_offset, self.spool)
        try:
            whole_log, lineage = await merged_log(self.rsm, sources, writer, self.chunk_bytes)
            finished = await self.copier.copy(whole_log, lineage, lambda: self._confirm(sources))
        finally:
            await writer.discard()
        log.info(
            "segments_merged",
            **finished.logged,
            end_offset=finished.end_offset,
            size_bytes=finished.segment_size_bytes,
            segments=len(sources),
        )
        return finished

    async def _confirm(self, sources: _Segments) -> None:
        """The last check before the merged segment counts: see `SegmentCopier.copy`."""
        if not await self._stand(sources):
            raise CopyOvertaken(
                f"{sources[0].topic_id_partition}: the segments from offset "
                f"{sources[0].start_offset} to {sources[-1].end_offset} have changed meanwhile"
            )

    async def _stand(self, sources: _Segments) -> bool:
        look = await self._look(sources[0].topic_id_partition)
        return look is not None and still_stand(sources, *look)

    @staticmethod
    def _note(event: str, sources: _Segments, error: Exception, **hint: str) -> None:
        tp = sources[0].topic_id_partition
        log.warning(
            event,
            **tp.logged,
            base_offset=sources[0].start_offset,
            end_offset=sources[-1].end_offset,
            error=str(error),
            **hint,
        )
