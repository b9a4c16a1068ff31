"""A read side over a store in memory, for tests on the virtual-time loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from faulty_store import Faults, FaultyObjectStore
from generated_archive import Batch, make_batch, random_tp, store_segment
from memory_object_store import MemoryObjectStore
from reads_under_way import NOTHING, under_way

from fetchproxy.config.schema import KiB, MetadataConfig, RemoteFetchConfig
from fetchproxy.metadata.partition_ends import EndsLimits
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import IsolationLevel, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import DelayedRemoteFetch, RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import RemoteReadRequest, RemoteReadResult
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.remote_storage import RemoteStorage

BATCH_BYTES = 1000
BATCH_OFFSETS = 10

# One batch is one index span; four make a chunk.
SMALL = RemoteFetchConfig(chunk_cache_bytes_max=1024 * KiB)
QUICK = ReadingLimits(
    chunk_bytes=4 * KiB, read_ahead_chunks_max=0, backoff_max_ms=1_000, hedged_reads_share_max=0
)


def now() -> float:
    return asyncio.get_running_loop().time()


def batches(rng: Random, base_offset: int, count: int) -> list[Batch]:
    """Batches without holes: each has BATCH_OFFSETS offsets and BATCH_BYTES bytes."""
    return [
        make_batch(base_offset + BATCH_OFFSETS * i, BATCH_OFFSETS, rng.randbytes(BATCH_BYTES - 61))
        for i in range(count)
    ]


@dataclass(slots=True)
class ReadSide:
    rng: Random
    store: FaultyObjectStore
    storage: RemoteStorage
    rlmm: StoreBackedRemoteLogMetadataManager
    purgatory: RemoteFetchPurgatory
    tp: TopicIdPartition

    async def segment(self, stored: list[Batch], **options: object) -> RemoteLogSegmentMetadata:
        metadata = await store_segment(
            self.store.inner, self.rng, self.tp, stored, index_interval_bytes=1, **options
        )  # type: ignore[arg-type]
        await asyncio.sleep(1)  # without latency the last view would be as recent as now
        await self.rlmm.refresh(self.tp, now())
        return metadata

    async def history(self, batch_count: int, segment_batches: int = 400) -> None:
        """Segments from offset 0 on, with indexes small enough to be read without a thread."""
        stored = batches(self.rng, 0, batch_count)
        for n in range(0, batch_count, segment_batches):
            await store_segment(
                self.store.inner,
                self.rng,
                self.tp,
                stored[n : n + segment_batches],
                index_interval_bytes=1,
            )
        await asyncio.sleep(1)
        await self.rlmm.refresh(self.tp, now())

    def request(
        self,
        offset: int,
        bytes_max: int = 100 * KiB,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> RemoteReadRequest:
        return RemoteReadRequest(self.tp, offset, bytes_max, isolation)

    def watch(
        self, *requests: RemoteReadRequest, wait_s: float = 0.5, bytes_max: int = 1000 * KiB
    ) -> DelayedRemoteFetch[int]:
        reads = dict(enumerate(requests))
        return self.purgatory.fetch(reads, bytes_max=bytes_max, deadline=now() + wait_s)

    def in_memory(self, request: RemoteReadRequest) -> RemoteReadResult | None:
        """A fetch's immediate result; None: the fetch would have to wait."""
        fetch = self.watch(request)
        fetch.cancel()
        return fetch.results().get(0)

    def log_key(self, metadata: RemoteLogSegmentMetadata) -> str:
        return self.storage.rsm.object_key(metadata, SegmentFile.LOG)

    def log_reads(self) -> int:
        return sum(key.endswith(".log") for key, _ in self.store.reads)


@asynccontextmanager
async def read_side(
    config: RemoteFetchConfig = SMALL,
    seed: int = 1,
    *,
    skips_gaps: bool = True,
    limits: ReadingLimits = QUICK,
    ends: EndsLimits | None = None,
) -> AsyncIterator[ReadSide]:
    """`ends`: looks at a partition list its ends."""
    rng = Random(seed)
    store = FaultyObjectStore(MemoryObjectStore(), rng)
    storage = RemoteStorage(store)
    async with (
        StoreBackedRemoteLogMetadataManager(
            storage,
            MetadataConfig(),
            looks_at_ends=ends is not None,
            ends_limits=ends or EndsLimits(),
        ) as rlmm,
        RemoteFetchPurgatory(
            config, rlmm, storage, rng, skips_gaps=skips_gaps, limits=limits
        ) as purgatory,
    ):
        yield ReadSide(rng, store, storage, rlmm, purgatory, random_tp(rng))


SLOW = Faults(latency_s_min=2.0, latency_s_max=2.0)


def changed(**options: object) -> RemoteFetchConfig:
    return RemoteFetchConfig(**{**SMALL.model_dump(), **options})


async def fetched(side: ReadSide, offset: int, wait_s: float = 0.5) -> DelayedRemoteFetch[int]:
    fetch = side.watch(side.request(offset), wait_s=wait_s)
    await fetch.completed.wait()
    return fetch


def at_rest(side: ReadSide) -> bool:
    return under_way(side.purgatory) == NOTHING
