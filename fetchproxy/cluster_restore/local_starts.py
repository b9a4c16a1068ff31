"""Reads from the archive where the local history of each partition begins: of most partitions the
index of one segment.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import walk

from fetchproxy.cluster_restore.local_history import (
    LocalAmount,
    epochs_from,
    first_segment,
    reaches_below,
    start_in_segment,
    usable_segments,
)
from fetchproxy.cluster_restore.plan import EPOCHS_RAISED_MAX, LocalHistory, LostPartition
from fetchproxy.errors import CorruptSegment, RemoteStorageError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager


async def with_local_history(
    partition: LostPartition, view: PartitionView, rsm: RemoteStorageManager, amount: LocalAmount
) -> LostPartition:
    """The partition with the last `amount` of its records. Raises RemoteStorageError if the store
    does not respond; what is damaged is in `why_not_local`.
    """
    if partition.leader_epoch > EPOCHS_RAISED_MAX:
        return replace(
            partition,
            why_not_local=f"no local history: its leader epoch {partition.leader_epoch} is above "
            f"{EPOCHS_RAISED_MAX}, the highest that a restore sets",
        )
    try:
        return await _with_start(partition, view.up_to(partition.end_offset), rsm, amount)
    except (RemoteStorageError, CorruptSegment) as error:
        if isinstance(error, RemoteStorageError) and not error.may_be_of_object:
            raise
        return replace(partition, why_not_local=f"no local history: {error}")


async def _with_start(
    partition: LostPartition, view: PartitionView, rsm: RemoteStorageManager, amount: LocalAmount
) -> LostPartition:
    usable = usable_segments(view)
    why = usable.why if reaches_below(view, amount, usable.first) else ""
    if view.log_end_offset != partition.end_offset or not view.segments:
        return partition  # nothing was archived, or all of it was deleted
    if partition.record_epoch < 0:
        return replace(partition, why_not_local="no local history: its last records have no epoch")
    number = first_segment(view, amount, usable.first)
    while number < len(view.segments):
        index = await _index(rsm, view.segments[number])
        start = start_in_segment(view, number, index, amount)
        if start is not None:
            await _check_end(rsm, view)
            epochs = epochs_from(view, start, number)
            return replace(partition, local=LocalHistory(start, epochs), why_not_local=why)
        number += 1
    return replace(partition, why_not_local=why)


async def _index(rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> RemoteLogIndex:
    raw = await rsm.fetch_index(segment, SegmentFile.INDEX)
    # In a thread: the index of a large segment takes milliseconds.
    index = await asyncio.to_thread(RemoteLogIndex.parse, raw)
    index.check_covers(segment.stored_end_offset, segment.segment_size_bytes)
    return index


async def _check_end(rsm: RemoteStorageManager, view: PartitionView) -> None:
    """Followers take whole batches, so a batch has to end where the new records begin. Only a
    segment that was clipped may be cut elsewhere. Raises CorruptSegment.
    """
    last = view.segments[-1]
    if last.copied_end_offset is None:
        return
    spans = (await _index(rsm, last)).spans()
    span = next(one for one in spans if one.last_offset >= last.end_offset)
    if span.last_offset == last.end_offset:
        return
    content = await rsm.fetch_log_segment(last, ByteRange(span.position, span.end))
    try:
        is_whole = any(
            header.last_offset == last.end_offset for header in walk(memoryview(content))
        )
    except WireError as error:
        raise CorruptSegment(f"the batches around offset {last.end_offset}: {error}") from None
    if not is_whole:
        raise CorruptSegment(f"no batch ends at offset {last.end_offset}")
