"""A small sound archive in memory, made without the archiver, to plant faults in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from uuid import UUID

from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.record_batch import walk
from memory_object_store import MemoryObjectStore
from whole_archive import verify_archive

from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.config.schema import MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    AbortedTxn,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability.health import Kind
from fetchproxy.segments.description import (
    FinishedOffsets,
    encode_archive_gap,
    encode_finished_offsets,
    encode_segment,
)
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.segments.side_files import encode_aborted, encode_epochs
from fetchproxy.storage.remote_storage import RemoteStorage

TP = TopicIdPartition(UUID(int=1), "orders", 0)
ABORT, COMMIT = 0, 1
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def batch(
    base: int,
    records: int = 10,
    *,
    epoch: int = 0,
    timestamp: int | None = None,
    txn: int | None = None,
    control: int | None = None,
) -> bytes:
    """Ten records of nothing: only a control batch has a body that anybody reads."""
    attributes = (0x10 if txn is not None else 0) | (0x20 if control is not None else 0)
    body = bytes(range(100)) + base.to_bytes(8, "big")
    if control is not None:
        records = 1
        body = bytes([32, 0, 0, 0, 8]) + struct.pack(">hh", 0, control) + b"\x0c" + bytes(7)
    at_ms = base if timestamp is None else timestamp
    sealed = struct.pack(
        ">hiqqqhii", attributes, records - 1, at_ms, at_ms + 9, txn or -1, 0, 0, records
    )
    crc = crc32c(sealed + body)
    inner = struct.pack(">ibI", epoch, 2, crc) + sealed + body
    return struct.pack(">qi", base, len(inner)) + inner


def gaps_of(report: VerifyReport) -> list[tuple[int | None, int | None]]:
    """On record: offsets that were lost before they could be copied."""
    gaps = [one for one in report.published_conditions if one.kind == Kind.ARCHIVE_GAP]
    return [(gap.first_offset, gap.last_offset) for gap in gaps]


@dataclass
class PlantedArchive:
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    chunk_bytes: int = 1_000
    recorded: bool = True  # False: as it was written before archivers put it on record

    def __post_init__(self) -> None:
        self.storage = RemoteStorage(self.store, "archive")
        self.segments: list[RemoteLogSegmentMetadata] = []

    async def add(
        self,
        batches: Iterable[bytes],
        *,
        start: int | None = None,
        aborted: tuple[AbortedTxn, ...] = (),
        lineage: tuple[EpochStart, ...] = (EpochStart(0, 0),),
        epochs: tuple[EpochStart, ...] | None = None,
        tp: TopicIdPartition = TP,
        index_interval_bytes: int = 300,
    ) -> RemoteLogSegmentMetadata:
        """A finished segment; whatever is not given is what is true."""
        log = b"".join(batches)
        headers = list(walk(log))
        first = headers[0].base_offset if start is None else start
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(tp, UUID(int=len(self.segments) + 1)),
            start_offset=first,
            end_offset=headers[-1].last_offset,
            max_timestamp_ms=max(header.max_timestamp for header in headers),
            event_timestamp_ms=0,
            segment_leader_epochs=(EpochStart(lineage[-1].epoch, first),)
            if epochs is None
            else epochs,
            segment_size_bytes=len(log),
            state=FINISHED,
            has_aborted_txns=bool(aborted),
        )
        key = self.key(metadata, SegmentFile.LOG)
        index = RemoteLogIndex()
        for header in headers:
            index.add(header, index_interval_bytes)
        await self.store.put(key, log)
        await self.store.put(self.key(metadata, SegmentFile.INDEX), index.encoded(key))
        await self.store.put(self.key(metadata, SegmentFile.EPOCHS), encode_epochs(lineage))
        if aborted:
            await self.store.put(self.key(metadata, SegmentFile.TXN), encode_aborted(aborted))
        await self.storage.objects.put_segment_metadata(metadata, encode_segment(metadata))
        self.segments.append(metadata)
        if self.recorded:
            await self.state(tp)
        return metadata

    async def state(self, tp: TopicIdPartition = TP, **changes: int) -> None:
        """All segments of the partition are on record, as an archiver leaves it."""
        own_segments = [s for s in self.segments if s.topic_id_partition == tp]
        last = max(own_segments, key=lambda s: s.end_offset)
        stated = FinishedOffsets(
            tp,
            recorded_from=min(s.start_offset for s in own_segments),
            end_offset=last.end_offset,
            leader_epoch=max(
                (e.epoch for s in own_segments for e in s.segment_leader_epochs), default=-1
            ),
        )
        await self.storage.objects.put_finished_offsets(
            tp, encode_finished_offsets(replace(stated, **changes))
        )

    async def record_gap(self, first: int, last: int, tp: TopicIdPartition = TP) -> None:
        content = encode_archive_gap(tp, first, last)
        await self.storage.objects.put_archive_gap(tp, first, last, content)

    def key(self, metadata: RemoteLogSegmentMetadata, file: SegmentFile) -> str:
        return self.storage.rsm.object_key(metadata, file)

    async def change(
        self, metadata: RemoteLogSegmentMetadata, file: SegmentFile, edit: Callable[[bytes], bytes]
    ) -> None:
        key = self.key(metadata, file)
        await self.store.put(key, edit(await self.store.get(key)))

    async def restate(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Put other metadata for a segment that is there."""
        await self.storage.objects.put_segment_metadata(metadata, encode_segment(metadata))

    async def verify(self, **more: object) -> VerifyReport:
        manager = StoreBackedRemoteLogMetadataManager(self.storage, MetadataConfig())
        options = {"chunk_bytes": self.chunk_bytes} | more
        async with manager as rlmm:
            return await verify_archive(self.storage, rlmm, **options)  # type: ignore[arg-type]


def flip(position: int, mask: int = 0xFF) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        at = position % len(content)
        return content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]

    return edit
