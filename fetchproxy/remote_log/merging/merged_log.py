"""Several segments' logs as one that is ready to be copied, as if it had been gathered at once.

Batches stay byte for byte what they are; each is checked again on its way. What the segments'
indexes say is put together, and held against the log before anybody may rely on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fetchproxy.errors import CorruptSegment, ObjectNotFound
from fetchproxy.index.kafka_index_files import joined_offset_index, joined_time_index
from fetchproxy.index.leader_epochs import decode_epochs
from fetchproxy.index.transaction_index import decode_aborted, merged_aborted
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.model import AbortedTxn, EpochStart, RemoteLogSegmentMetadata
from fetchproxy.remote_log.merging.merge_plan import merged_epochs
from fetchproxy.remote_log.sources.gathered_segment import GatheredSegment, KafkaFiles
from fetchproxy.remote_log.sources.segment_writer import SegmentWriter
from fetchproxy.remote_log.verification.segment_check import clip_epochs
from fetchproxy.remote_log.verification.segment_derivation import checked_batches
from fetchproxy.storage.layout import SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

Sources = Sequence[RemoteLogSegmentMetadata]


@dataclass(frozen=True, slots=True)
class MergedLog:
    """`lineage`: the log's epochs up to its end, also those that ended before it."""

    segment: GatheredSegment
    lineage: tuple[EpochStart, ...]


async def merged_log(
    rsm: RemoteStorageManager, sources: Sources, writer: SegmentWriter, chunk_bytes: int
) -> MergedLog:
    """`writer` is new and at the first one's start; it is the caller's to discard.

    Memory: two chunks, or the largest batch. Raises CorruptSegment or CompactedLog where segments
    are not what their metadata and indexes say; ObjectNotFound, RemoteStorageError; OSError.
    """
    aborted: list[tuple[AbortedTxn, ...]] = []
    for source in sources:
        aborted.append(decode_aborted(await rsm.fetch_index(source, SegmentFile.TXN)))
        await _append(rsm, source, aborted[-1], writer, chunk_bytes)
    gathered = writer.close()
    if _ends(merged_aborted(aborted)) != _ends(gathered.aborted):
        raise CorruptSegment(f"{_place(sources[0])}: transaction indexes and log disagree")
    epochs = merged_epochs(sources)
    if gathered.leader_epochs not in (epochs, ()):  # none: written without epochs
        raise CorruptSegment(
            f"{_place(sources[0])}: the log has {gathered.leader_epochs}, metadata have {epochs}"
        )
    before = decode_epochs(await rsm.fetch_index(sources[0], SegmentFile.EPOCHS))
    lineage = extend_lineage(before, epochs)
    shown = clip_epochs(lineage, gathered.start_offset, gathered.end_offset)
    if epochs and shown != epochs:
        raise CorruptSegment(
            f"{_place(sources[0])}: the lineage has {shown}, metadata have {epochs}"
        )
    files = await _kafka_files(rsm, sources)
    return MergedLog(replace(gathered, leader_epochs=epochs, kafka_files=files), lineage)


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
        raise CorruptSegment(f"{rsm.object_key(source, SegmentFile.LOG)}: {error}") from error
    size = writer.size_bytes - before
    found = (writer.position - 1, size)
    if found != (source.end_offset, source.segment_size_bytes):
        raise CorruptSegment(
            f"{_place(source)}: log ends at offset {found[0]} after {size} bytes, metadata say "
            f"{source.end_offset} after {source.segment_size_bytes}"
        )


async def _kafka_files(rsm: RemoteStorageManager, sources: Sources) -> KafkaFiles:
    """A broker's own indexes, where every segment has them; the snapshot is that of the end."""
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
    return KafkaFiles(joined_offset_index(offsets), joined_time_index(times), snapshot)


async def _kafka_file(
    rsm: RemoteStorageManager, source: RemoteLogSegmentMetadata, file: SegmentFile
) -> bytes | None:
    try:
        return await rsm.fetch_index(source, file)
    except ObjectNotFound:
        return None  # segments from the `broker` source have none


def _ends(entries: Sequence[AbortedTxn]) -> set[tuple[int, int, int]]:
    return {(e.producer_id, e.first_offset, e.last_offset) for e in entries}


def _place(source: RemoteLogSegmentMetadata) -> str:
    return f"{source.topic_id_partition}: segment at offset {source.start_offset}"
