"""Archives made up by seed, with the truth beside them: batches, gaps and aborted transactions.

Batches have true headers and CRCs; their records are noise, as nothing on the read side looks into
records. Offsets have holes inside segments (compaction) and gaps between them (lost data).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.record_batch import CONTROL_MASK, TRANSACTIONAL_MASK, walk

from fetchproxy.model import (
    AbortedTxn,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, SegmentFile, layout_text
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.segments.side_files import encode_aborted
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.object_store import ObjectStore

_AFTER_CRC = struct.Struct(">hiqqqhii")


@dataclass(frozen=True, slots=True)
class Batch:
    base_offset: int
    last_offset: int
    content: bytes
    timestamp_ms: int


@dataclass(slots=True)
class GeneratedPartition:
    """`aborted` are (producer id, first offset, offset of the marker)."""

    tip: TopicIdPartition
    batches: list[Batch] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    @property
    def start_offset(self) -> int:
        return self.segments[0].start_offset

    @property
    def end_offset(self) -> int:
        """One past the last one."""
        return self.segments[-1].end_offset + 1

    def is_archived(self, offset: int) -> bool:
        return any(s.start_offset <= offset <= s.end_offset for s in self.segments)

    def next_archived(self, offset: int) -> int | None:
        return min((s.start_offset for s in self.segments if s.start_offset > offset), default=None)

    def batches_from(self, offset: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.last_offset >= offset]


def make_batch(
    base_offset: int,
    count: int,
    noise: bytes,
    *,
    timestamp_ms: int = 0,
    producer_id: int = -1,
    attributes: int = 0,
    leader_epoch: int = 0,
) -> Batch:
    covered = (
        _AFTER_CRC.pack(
            attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, 0, -1, count
        )
        + noise
    )
    head = struct.pack(">qiibI", base_offset, len(covered) + 9, leader_epoch, 2, crc32c(covered))
    return Batch(base_offset, base_offset + count - 1, head + covered, timestamp_ms)


class PartitionGenerator:
    def __init__(
        self, rng: Random, tip: TopicIdPartition, *, noise_bytes_max: int, gaps: bool = True
    ) -> None:
        self._random = rng
        self._noise_bytes_max = noise_bytes_max
        self._gaps = gaps
        self._made = GeneratedPartition(tip)
        self._open: dict[int, int] = {}  # producer id -> first offset of its transaction
        self._next = 0

    def generate(self, segments: int, batches_max: int) -> tuple[GeneratedPartition, list[int]]:
        """The partition without its segments, and where each segment ends (index of batch)."""
        ends = []
        self._next = self._random.choice([0, 0, 7, 10_000])
        for _ in range(segments):
            for _ in range(self._random.randint(1, batches_max)):
                self._batch()
            ends.append(len(self._made.batches))
        for producer_id in list(self._open):
            self._marker(producer_id)  # offsets above the LSO are never archived
        ends[-1] = len(self._made.batches)
        return self._made, ends

    def _batch(self) -> None:
        fate = self._random.random()
        if fate < 0.15 and self._open:
            self._marker(self._random.choice(sorted(self._open)))
            return
        if self._random.random() < 0.05:
            self._next += self._random.randint(1, 20)
        noise = self._random.randbytes(self._random.randint(1, self._noise_bytes_max))
        if fate < 0.5:
            producer_id = self._random.randint(1, 3)
            self._open.setdefault(producer_id, self._next)
            self._add(self._random.randint(1, 9), noise, producer_id, TRANSACTIONAL_MASK)
        else:
            self._add(self._random.randint(1, 9), noise, -1, 0)

    def _marker(self, producer_id: int) -> None:
        first = self._open.pop(producer_id)
        aborted = self._random.random() < 0.5
        if aborted:
            self._made.aborted.append((producer_id, first, self._next))
        noise = struct.pack(">hh", 0, 0 if aborted else 1)
        self._add(1, noise, producer_id, TRANSACTIONAL_MASK | CONTROL_MASK)

    def _add(self, count: int, noise: bytes, producer_id: int, attributes: int) -> None:
        timestamp_ms = 1_000 + self._next + self._random.randint(-50, 50)
        batch = make_batch(
            self._next,
            count,
            noise,
            timestamp_ms=timestamp_ms,
            producer_id=producer_id,
            attributes=attributes,
        )
        self._made.batches.append(batch)
        self._next = batch.last_offset + 1


def random_uuid(rng: Random) -> UUID:
    return UUID(bytes=rng.randbytes(16), version=4)


def random_tip(rng: Random, topic: str = "weather", partition: int = 0) -> TopicIdPartition:
    return TopicIdPartition(random_uuid(rng), topic, partition)


async def store_partition(
    store: ObjectStore,
    rng: Random,
    made: GeneratedPartition,
    ends: list[int],
    *,
    gap_before: frozenset[int] = frozenset(),
    index_interval_bytes: int = 2_000,
) -> None:
    """Write the segments that end at `ends`; those in `gap_before` (their numbers) record a gap.

    A recorded gap lies between two segments that are not neighbours in offsets, so the batches of
    the segment before are simply never archived.
    """
    begin, start_offset = 0, made.batches[0].base_offset
    kept: list[Batch] = []
    for number, end in enumerate(ends):
        batches = made.batches[begin:end]
        begin = end
        if number in gap_before:
            start_offset = batches[-1].last_offset + 1  # lost: the copier went on above them
            continue
        metadata = await store_segment(
            store, rng, made.tip, batches, made.aborted, start_offset, index_interval_bytes
        )
        made.segments.append(metadata)
        kept += batches
        start_offset = metadata.end_offset + 1
    made.batches = kept


async def store_segment(
    store: ObjectStore,
    rng: Random,
    tip: TopicIdPartition,
    batches: list[Batch],
    aborted: list[tuple[int, int, int]] | tuple[()] = (),
    start_offset: int | None = None,
    index_interval_bytes: int = 2_000,
) -> RemoteLogSegmentMetadata:
    content = b"".join(batch.content for batch in batches)
    start = batches[0].base_offset if start_offset is None else start_offset
    entries = _aborted_entries(aborted, start, batches[-1].last_offset)
    metadata = RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(tip, random_uuid(rng)),
        start_offset=start,
        end_offset=batches[-1].last_offset,
        max_timestamp_ms=max(batch.timestamp_ms for batch in batches),
        event_timestamp_ms=1,
        segment_leader_epochs=(EpochStart(0, start),),
        segment_size_bytes=len(content),
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        has_aborted_txns=bool(entries),
    )
    rsm = RemoteStorageManager(store)
    index = RemoteLogIndex()
    for header in walk(content):
        index.add(header, index_interval_bytes)
    await store.put(LAYOUT_OBJECT, layout_text())
    key = rsm.object_key(metadata, SegmentFile.LOG)
    await store.put(key, content)
    await store.put(rsm.object_key(metadata, SegmentFile.INDEX), index.encoded(key))
    if entries:
        await store.put(rsm.object_key(metadata, SegmentFile.TXN), encode_aborted(entries))
    await rsm.put_segment_metadata(metadata, encode_segment(metadata))
    return metadata


def _aborted_entries(
    aborted: list[tuple[int, int, int]] | tuple[()], start: int, end: int
) -> tuple[AbortedTxn, ...]:
    """All that overlap the segment; one whose marker lies behind the segment ends with it."""
    found = sorted(
        (min(marker, end), first, producer_id)
        for producer_id, first, marker in aborted
        if first <= end and marker >= start
    )
    entries: list[AbortedTxn] = []
    undecided = end + 1  # the lowest first offset of those that end later
    for last, first, producer_id in reversed(found):
        entries.append(AbortedTxn(first, last, producer_id, min(last + 1, undecided)))
        undecided = min(undecided, first)
    return tuple(reversed(entries))
