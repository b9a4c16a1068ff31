"""An archive in a folder, of given batches, without brokers or archiver. Not a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID, uuid5

from fetchproxy_protocol.record_batch import walk

from fetchproxy.model import (
    AbortedTxn,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.segments.side_files import encode_aborted, encode_epochs
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest, LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore

TP = TopicIdPartition(UUID(int=1), "orders", 0)


class WrittenArchive:
    def __init__(self, folder: Path, at_rest: AtRest = NO_ENCRYPTION) -> None:
        self.folder = folder
        self.at_rest = at_rest
        self.url = folder.as_uri()
        self.segments: list[RemoteLogSegmentMetadata] = []

    def add(
        self,
        batches: Iterable[bytes],
        *,
        tp: TopicIdPartition = TP,
        start: int | None = None,
        aborted: Sequence[AbortedTxn] = (),
        interval_bytes: int = 300,
        event_timestamp_ms: int = 0,
    ) -> RemoteLogSegmentMetadata:
        """A finished segment."""
        return asyncio.run(
            self._add(b"".join(batches), tp, start, aborted, interval_bytes, event_timestamp_ms)
        )

    async def _add(
        self,
        log: bytes,
        tp: TopicIdPartition,
        start: int | None,
        aborted: Sequence[AbortedTxn],
        interval_bytes: int,
        event_timestamp_ms: int,
    ) -> RemoteLogSegmentMetadata:
        headers = list(walk(log))
        first = headers[0].base_offset if start is None else start
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(tp, uuid5(tp.topic_id, f"{len(self.segments)}")),
            start_offset=first,
            end_offset=headers[-1].last_offset,
            max_timestamp_ms=max(-1, *(header.max_timestamp for header in headers)),
            event_timestamp_ms=event_timestamp_ms,
            segment_leader_epochs=(EpochStart(0, first),),
            segment_size_bytes=len(log),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            has_aborted_txns=bool(aborted),
            packed=self.at_rest != NO_ENCRYPTION,
        )
        store = FilesystemObjectStore(self.folder, create=True)
        async with RemoteStorage(store, at_rest=self.at_rest) as storage:
            index = RemoteLogIndex()
            for header in headers:
                index.add(header, interval_bytes)
            objects = {
                SegmentFile.LOG: log,
                SegmentFile.INDEX: index.encoded(storage.rsm.object_key(metadata, SegmentFile.LOG)),
                SegmentFile.EPOCHS: encode_epochs(metadata.segment_leader_epochs),
            }
            if aborted:
                objects[SegmentFile.TXN] = encode_aborted(aborted)
            if metadata.packed:
                await self._pack(storage, metadata, objects)
                objects = {}
            for file, content in objects.items():
                await store.put(storage.rsm.object_key(metadata, file), content)
            await storage.objects.put_segment_metadata(metadata, encode_segment(metadata))
        self.segments.append(metadata)
        return metadata

    async def _pack(
        self,
        storage: RemoteStorage,
        metadata: RemoteLogSegmentMetadata,
        objects: Mapping[SegmentFile, bytes],
    ) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        spooled = self.folder.with_name("spooled.log")
        spooled.write_bytes(objects[SegmentFile.LOG])
        data = LogSegmentData(
            spooled,
            objects[SegmentFile.INDEX],
            objects.get(SegmentFile.TXN),
            objects[SegmentFile.EPOCHS],
            log_compressible=True,
        )
        await storage.rsm.copy_log_segment_data(metadata, data)

    def path(self, metadata: RemoteLogSegmentMetadata, file: SegmentFile) -> Path:
        storage = RemoteStorage(FilesystemObjectStore(self.folder))
        return self.folder / storage.rsm.object_key(metadata, file)
