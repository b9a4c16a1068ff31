"""A thousand replaying clients, most of them slow: the memory that chunks really take.

The clients do what the gateway does for each fetch, with the read side and the response budget that
it uses. The store counts the bytes it hands out until nothing refers to them any more. The count
covers bytes that are cached, being read, waiting or being sent, whether a budget counts them or
not.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from fetchproxy_protocol.fetch import FetchRequest, PartitionPatch
from fetchproxy_protocol.primitives import Buffer
from generated_archive import make_batch, random_tp, store_segment
from memory_object_store import MemoryObjectStore
from virtual_loop import run_virtual

from fetchproxy.config.schema import KiB, MetadataConfig, MiB, RemoteFetchConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import ByteRange, IsolationLevel, TopicIdPartition
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import RemoteReadRequest
from fetchproxy.runtime.cooperative import in_steps
from fetchproxy.serving.admission import ResponseBudget
from fetchproxy.serving.archived_entries import (
    PartitionResponse,
    ResponseRoom,
    encode_proxy_response,
)
from fetchproxy.storage.remote_storage import RemoteStorage

CLIENTS = 1_000
PARTITIONS = 10
BATCH_BYTES, BATCHES = 4_000, 400
CHUNK = 64 * KiB
CACHE, INFLIGHT, RESPONSES, RESPONSE = 1 * MiB, 1 * MiB, 2 * MiB, 256 * KiB

# READ_COMMITTED also reads aborted lists. No fetch may wait for these while it holds a chunk.
COMMITTED = IsolationLevel.READ_COMMITTED

CONFIG = RemoteFetchConfig(chunk_cache_bytes_max=CACHE, inflight_bytes_max=INFLIGHT)
LIMITS = ReadingLimits(chunk_bytes=CHUNK, purgatory_entries_max=CLIENTS)


class Counted(bytes):
    """Bytes that are counted from their creation to their deletion."""

    live = 0
    most = 0

    @classmethod
    def of(cls, content: bytes) -> Counted:
        made = cls(content)
        cls.live += len(made)
        cls.most = max(cls.most, cls.live)
        return made

    def __del__(self) -> None:
        Counted.live -= len(self)


class CountingStore(MemoryObjectStore):
    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        await asyncio.sleep(0.05)
        content = await super().get_range(key, byte_range)
        return Counted.of(content) if key.endswith(".log") else content


@dataclass(slots=True)
class ReplayCounters:
    """Totals over all clients."""

    responses: int = 0
    size: int = 0
    empty: int = 0
    over: int = 0  # the most bytes that the response budget held


def test_chunks_of_a_thousand_slow_readers_stay_within_the_budgets() -> None:
    counters = ReplayCounters()
    Counted.live = Counted.most = 0

    async def main() -> None:
        rng = Random(1)
        store = CountingStore()
        storage = RemoteStorage(store)
        tps = [random_tp(rng, partition=number) for number in range(PARTITIONS)]
        for tp in tps:
            batches = [make_batch(i, 1, rng.randbytes(BATCH_BYTES - 61)) for i in range(BATCHES)]
            await store_segment(store, rng, tp, batches, [(1, 5, 9)], index_interval_bytes=1)
        budget = ResponseBudget(RESPONSE, RESPONSES)
        async with (
            StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
            RemoteFetchPurgatory(CONFIG, rlmm, storage, rng, limits=LIMITS) as purgatory,
            asyncio.TaskGroup() as clients,
        ):
            for number in range(CLIENTS):
                client = Client(number, purgatory, budget, counters)
                clients.create_task(client.run(rng.choice(tps), Random(number)))
        assert budget.bytes_in_use == 0

    run_virtual(main)
    assert counters.responses == 5 * CLIENTS
    assert counters.size > 5 * (
        CACHE + INFLIGHT + RESPONSES
    )  # far more than ever was in memory at once
    assert counters.over > 0.7 * RESPONSES, "the budget was put to the test"
    assert counters.over <= RESPONSES + CHUNK
    assert Counted.most <= CACHE + INFLIGHT + RESPONSES + CHUNK
    gc.collect()
    assert Counted.live == 0


@dataclass(slots=True)
class Client:
    number: int
    purgatory: RemoteFetchPurgatory
    budget: ResponseBudget
    counters: ReplayCounters

    async def run(self, tp: TopicIdPartition, rng: Random) -> None:
        """Get five answers with records, from random offsets; most clients are slow."""
        clock = asyncio.get_running_loop().time
        slow_s = rng.choice([0.0, 1.0, 30.0])
        done = 0
        while done < 5:
            deadline = clock() + 0.5
            await self.budget.wait_for_room(deadline)
            pieces = await self._read(tp, rng.randrange(BATCHES), deadline)
            size = sum(map(len, pieces))
            with self.budget.taking(pieces) as pieces:
                self.counters.over = max(self.counters.over, self.budget.bytes_in_use)
                await asyncio.sleep(rng.uniform(0, slow_s))
            if size < BATCH_BYTES:
                self.counters.empty += 1
                continue
            self.counters.responses += 1
            self.counters.size += size
            done += 1

    async def _read(self, tp: TopicIdPartition, offset: int, deadline: float) -> Sequence[Buffer]:
        request = RemoteReadRequest(tp, offset, RESPONSE, COMMITTED, self.number)
        fetch = self.purgatory.fetch({0: request}, bytes_max=RESPONSE, deadline=deadline)
        await fetch.completed.wait()
        partition_responses = [
            PartitionResponse((b"weather", tp.partition), PartitionPatch(), 0, result.records)
            for result in fetch.results().values()
        ]
        room = ResponseRoom(self.budget.room(), first_whole=not self.budget.full)
        responses = [room.fit(part) for part in partition_responses]
        fetch_request = FetchRequest(
            12, 1, b"", -1, 0, 1, RESPONSE, COMMITTED, 0, -1, {}, (), b"", b""
        )
        return await in_steps(encode_proxy_response(fetch_request, 0, responses, 0))
