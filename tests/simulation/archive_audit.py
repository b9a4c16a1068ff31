"""Checks of an archive that two faulty archivers write: during the faults and after them."""

from __future__ import annotations

import asyncio
from uuid import UUID

from archive_world import ArchiveWorld
from broker_log import SimulatedLog
from planted_archive import gaps_of
from whole_archive import verify_archive

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import ObjectNotFound
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.deletion.orphans import find_orphans


class Audit:
    """`rlmm` reads without faults, as a proxy does when the store is well."""

    def __init__(self, world: ArchiveWorld, rlmm: RemoteLogMetadataManager) -> None:
        self._world = world
        self._rlmm = rlmm
        self._storage = RemoteStorage(world.store)
        self._compared: set[UUID] = set()

    async def archived_end(self, log: SimulatedLog) -> int | None:
        return (await self._view(log)).log_end_offset

    async def look(self) -> None:
        """At any time the archive has all that the broker deleted, and its data match the log."""
        for log in self._world.logs:
            # Taken before the read: the archive must have all offsets below it.
            forgotten_below = log.start_offset
            view = await self._view(log)
            self._check_nothing_lost(log, view, forgotten_below)
            self._check_retention(log, view)
            for segment in list(view.segments):
                await self._compare(log, segment)

    async def at_rest(self) -> None:
        """All is archived, once; both kinds of metadata agree; nothing is left over."""
        await self.look()
        async with StoreBackedRemoteLogMetadataManager(self._storage, MetadataConfig()) as in_store:
            report = await verify_archive(self._storage, in_store)
            assert report.clean, report.faults[:3]
            assert not gaps_of(report), gaps_of(report)
            assert not report.segments_overlapping, "offsets are archived twice"
            assert not report.segments_unfinished, "copies or deletions are left"
            for log in self._world.logs:
                view = await self._view(log)
                assert log.last_stable_offset == log.final_offset
                assert view.log_end_offset == log.final_offset, f"{log.tp}: {view}"
                now = asyncio.get_running_loop().time()
                stored = await in_store.refresh(log.tp, now)
                assert not await find_orphans(self._storage.objects, in_store, log.tp)
                assert list(view.segments) == list(stored.segments)
                assert view.raised_log_start == stored.raised_log_start
                assert not view.unfinished
                self._check_retained(view)

    async def _view(self, log: SimulatedLog) -> PartitionView:
        return await self._rlmm.refresh(log.tp, asyncio.get_running_loop().time())

    def _check_nothing_lost(
        self, log: SimulatedLog, view: PartitionView, forgotten_below: int
    ) -> None:
        start = max(log.first_offset, view.raised_log_start)
        if forgotten_below > start:
            assert view.log_end_offset is not None, f"{log.tp}: the archive is gone"
            assert view.log_start_offset is not None
            assert view.log_start_offset <= start, f"{log.tp} begins at {view.log_start_offset}"
            assert view.log_end_offset >= forgotten_below, f"{log.tp} ends too early"
        assert not view.gaps(), f"{log.tp}: {view.gaps()}"

    def _check_retention(self, log: SimulatedLog, view: PartitionView) -> None:
        if self._world.config.archive.remote_log_retention_bytes < 0:
            assert view.raised_log_start <= log.first_offset

    def _check_retained(self, view: PartitionView) -> None:
        """The archive keeps at least the configured size and not one whole segment more."""
        kept_bytes = self._world.config.archive.remote_log_retention_bytes
        if kept_bytes < 0 or not view.segments:
            return
        sizes = [segment.segment_size_bytes for segment in view.segments]
        assert sum(sizes[1:]) < kept_bytes, "retention has deleted too little"
        if view.raised_log_start > 0:
            assert sum(sizes) >= kept_bytes, "retention has deleted too much"

    async def _compare(self, log: SimulatedLog, segment: RemoteLogSegmentMetadata) -> None:
        """Compare each segment once, byte for byte, with the batches of its offsets."""
        if segment.segment_id.id in self._compared:
            return
        first, last = log.index_of(segment.start_offset), log.index_of(segment.end_offset)
        expected = b"".join(batch.content for batch in log.batches[first : last + 1])
        whole = ByteRange(0, segment.segment_size_bytes + 1)
        try:
            content = await self._storage.rsm.fetch_log_segment(segment, whole)
        except ObjectNotFound:
            view = await self._view(log)
            assert segment not in list(view.segments), f"{segment} is shown without its objects"
            return
        assert content == expected, f"{segment} is not what the log had"
        self._compared.add(segment.segment_id.id)
        self._world.segments_seen += 1
