"""An archive in memory that is merged, with a snapshot at each step of the merge. Not a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from archive_harness import Archive
from labelled_store import LabelledStore
from planted_archive import TP
from retention_world import QUICK, World
from two_archivers import readable

from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentState
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.deletion.expirer import Expirer
from fetchproxy.writing.merging import MergedPartition, PartitionMerger
from fetchproxy.writing.spool import Spool

MINUTE_MS = 60_000
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
Snapshot = tuple[dict[str, tuple[bytes, int]], list[list[bytes]], int]
Reached = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    label: str
    then: Snapshot


class LabelledArchive(LabelledStore):
    """Labels for the keys of planted archives, which have the prefix `archive/`."""

    @staticmethod
    def _step(verb: str, key: str, content: bytes | None = None) -> str | None:
        return LabelledStore._step(verb, key.removeprefix("archive/"), content)


@dataclass
class MergingWorld(World):
    """An archive to merge; each call opens it as a new process would."""

    spool: Path = field(default_factory=Path)
    bytes_max: int = 2_000
    steps: list[Step] = field(default_factory=list)
    done: MergedPartition | None = None

    def snapshot(self) -> Snapshot:
        return dict(self.store._objects), [list(part) for part in self.log.logs], self.skew_ms

    def as_it_was(self, step: Step) -> MergingWorld:
        """Another world that continues from `step`, as after a crash there."""
        other = MergingWorld(self.manager, spool=self.spool, bytes_max=self.bytes_max)
        objects, logs, skew_ms = step.then
        other.store._objects.update(objects)
        other.store._writes = 1 + max((version for _, version in objects.values()), default=0)
        other.log.logs = [list(part) for part in logs]
        other.skew_ms = skew_ms
        return other

    async def plant_small(self, count: int) -> None:
        """Plant segments of one batch with ten offsets each."""
        for number in range(count):
            await self.add(10 * number, timestamp=1_000 + number)

    async def merge(self, reached: Reached | None = None) -> MergedPartition:
        """`reached`: called at each step; None: each step is kept with a snapshot."""
        note = reached or (lambda label: self.steps.append(Step(label, self.snapshot())))
        store = LabelledArchive(self.store, note)
        async with AsyncExitStack() as opened:
            _, rlmm = await self.start(opened, store=store)
            spool = await opened.enter_async_context(Spool(self.spool))
            return await self.merger(store, rlmm, spool).merge(TP)

    def merger(
        self, store: ObjectStore, rlmm: RemoteLogMetadataManager, spool: Spool, **changes: Any
    ) -> PartitionMerger:
        storage = RemoteStorage(store, "archive")
        copier = SegmentCopier(
            storage.rsm,
            rlmm,
            copy_max_ms=QUICK["copy_max_ms"],
            wall_clock_ms=self.wall_clock_ms,
            uuid_factory=uuid4,
        )
        return PartitionMerger(
            storage.rsm, rlmm, copier, spool, bytes_max=self.bytes_max, **changes
        )

    async def tidy_until_settled(self) -> None:
        for _ in range(4):
            self.skew_ms += 10 * MINUTE_MS
            async with AsyncExitStack() as opened:
                expirer, _ = await self.start(opened)
                assert isinstance(expirer, Expirer)
                await expirer.delete_all_due(TP)

    async def read(self) -> bytes:
        """The bytes that readers get from the archive's beginning to its end."""
        async with AsyncExitStack() as opened:
            _, rlmm = await self.start(opened)
            return await readable(Archive(self.planted.storage, rlmm), TP)  # type: ignore[arg-type]

    async def finished(self) -> list[tuple[Any, ...]]:
        """Every finished segment without its random parts: its id and its times."""
        async with AsyncExitStack() as opened:
            _, rlmm = await self.start(opened)
            await rlmm.refresh(TP, asyncio.get_running_loop().time())
            archive = Archive(self.planted.storage, rlmm)  # type: ignore[arg-type]
            segments = []
            for s in rlmm.list_remote_log_segments(TP):
                assert s.state is FINISHED, s
                files = [
                    await archive.object(s, file)
                    for file in (SegmentFile.LOG, SegmentFile.TXN, SegmentFile.EPOCHS)
                ]
                range_ = (s.start_offset, s.end_offset)
                segments.append((*range_, s.max_timestamp_ms, s.segment_leader_epochs, *files))
            return segments

    async def ranges(self) -> list[tuple[int, int]]:
        return [(start, end) for start, end, *_ in await self.finished()]
