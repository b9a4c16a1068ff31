"""The read side under faults: several readers, one faulty store, a clock that jumps.

`simulate(seed)` generates an archive and lets readers read it through the purgatory while the store
misbehaves. It asserts that every response is right, and at the end that nothing is left. It returns
a trace; the same seed gives the same trace.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from faulty_store import HANG, NO_FAULTS, OUTAGE, Faults, FaultyObjectStore
from generated_archive import (
    GeneratedPartition,
    PartitionGenerator,
    random_tp,
    store_partition,
)
from memory_object_store import MemoryObjectStore
from reads_under_way import NOTHING, cached_bytes, under_way
from virtual_loop import START_S, run_virtual

from fetchproxy.config.schema import KiB, MetadataConfig, MiB, RemoteFetchConfig
from fetchproxy.errors import OffsetNotArchived, StorageUnavailable
from fetchproxy.metadata.remote_log_metadata_manager import READS_AT_ONCE_MAX
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import IsolationLevel
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import DelayedRemoteFetch, RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import CompletionReason, RemoteReadRequest, RemoteReadResult
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.segments.aborted_index import txn_starts
from fetchproxy.storage.remote_storage import RemoteStorage
from lab.limited import section_and_limits

FAULTS_END_S = START_S + 120
# After the faults every reader must finish within this: back-off, hung attempts, then reading.
PROGRESS_S_MAX = 600
# Transaction indexes have no checksum, as in Kafka; the read side does not read metadata objects.
INTACT = (".txn", ".metadata")
CLOCK_SLACK_S = 1e-6


@dataclass(slots=True)
class World:
    rng: Random
    store: FaultyObjectStore
    purgatory: RemoteFetchPurgatory
    config: RemoteFetchConfig
    limits: ReadingLimits
    partitions: list[GeneratedPartition]
    trace: list[tuple[object, ...]] = field(default_factory=list)
    completions: dict[int, int] = field(default_factory=dict)

    def note(self, *event: object) -> None:
        self.trace.append((round(asyncio.get_running_loop().time(), 6), *event))


def simulate(seed: int) -> list[tuple[object, ...]]:
    return run_virtual(lambda: _main(Random(seed)))


async def _main(rng: Random) -> list[tuple[object, ...]]:
    store = FaultyObjectStore(MemoryObjectStore(), rng)
    partitions = [await _generate(rng, store, number) for number in range(3)]
    config, limits = _config(rng)
    async with (
        StoreBackedRemoteLogMetadataManager(
            RemoteStorage(store), MetadataConfig(), read_max_ms=5_000
        ) as rlmm,
        RemoteFetchPurgatory(config, rlmm, RemoteStorage(store), rng, limits=limits) as purgatory,
    ):
        world = World(rng, store, purgatory, config, limits, partitions)
        async with asyncio.TaskGroup() as group:
            group.create_task(_weather(world), name="weather")
            for number in range(rng.randint(2, 6)):
                group.create_task(_reader(world, number), name=f"reader {number}")
        await _check_that_all_comes_to_rest(world)
    assert all(count == 1 for count in world.completions.values())
    return world.trace


async def _generate(rng: Random, store: FaultyObjectStore, number: int) -> GeneratedPartition:
    tp = random_tp(rng, partition=number)
    generator = PartitionGenerator(rng, tp, noise_bytes_max=rng.choice([50, 400, 3_000]))
    segments = rng.randint(1, 6)
    made, ends = generator.generate(segments, batches_max=40)
    lost = [n for n in range(1, segments - 1) if rng.random() < 0.25]
    await store_partition(
        store,
        rng,
        made,
        ends,
        gap_before=frozenset(lost),
        index_interval_bytes=rng.choice([1, 500, 4_000]),
    )
    return made


def _config(rng: Random) -> tuple[RemoteFetchConfig, ReadingLimits]:
    return section_and_limits(
        RemoteFetchConfig,
        ReadingLimits,
        fetcher_tasks_max=rng.choice([1, 2, 16]),
        purgatory_entries_max=rng.choice([1, 2, 100]),
        inflight_bytes_max=MiB,
        chunk_bytes=rng.choice([1, 4, 32]) * KiB,
        chunk_cache_bytes_max=rng.choice([0, 5 * KiB, 40 * KiB, MiB]),
        read_ahead_chunks_max=rng.choice([0, 1, 4, 16]),
        hedged_reads_share_max=rng.choice([0, 0.05, 1]),
        chunk_read_max_ms=rng.choice([500, 3_000]),
        backoff_initial_ms=50,
        backoff_max_ms=2_000,
        remote_error_after_ms=rng.choice([2_000, 60_000]),
        unasked_read_max_ms=rng.choice([100, 5_000]),
        corrupt_retry_ms=1_000,
    )


async def _weather(world: World) -> None:
    """Faults that change by the seed until FAULTS_END_S, then none."""
    loop = asyncio.get_running_loop()
    while loop.time() < FAULTS_END_S:
        usual = Faults(0.001, world.rng.choice([0.01, 0.3, 2.0]), 0.1, 0.03, 0.1, INTACT)
        world.store.faults = world.rng.choice([usual, usual, usual, OUTAGE, HANG])
        await asyncio.sleep(world.rng.uniform(1, 20))
    world.store.faults = NO_FAULTS
    world.note("faults end")


async def _reader(world: World, number: int) -> None:
    """Read some partitions to their ends, again and again until the faults are over."""
    rng = world.rng
    rounds = 0
    try:
        async with asyncio.timeout_at(FAULTS_END_S + PROGRESS_S_MAX):
            while not rounds or asyncio.get_running_loop().time() < FAULTS_END_S:
                await _read_to_the_ends(world, number)
                rounds += 1
                await asyncio.sleep(rng.uniform(0, 10))
    except TimeoutError:
        raise AssertionError(f"reader {number} made no progress: {world.trace[-5:]}") from None


async def _read_to_the_ends(world: World, number: int) -> None:
    rng = world.rng
    isolation = rng.choice(list(IsolationLevel))
    places = {
        i: rng.choice([partition.start_offset, rng.choice(partition.batches).base_offset])
        for i, partition in enumerate(world.partitions)
        if rng.random() < 0.7
    }
    while places:
        order = list(places)
        rng.shuffle(order)
        requests = [
            RemoteReadRequest(
                world.partitions[i].tp, places[i], rng.choice([1, 300, 20_000]), isolation
            )
            for i in order
        ]
        bytes_max = rng.choice([1, 1_000, 50_000])
        results = await _fetch(world, number, requests, bytes_max)
        for at, result in results.items():
            _advance(world.partitions[order[at]], places, order[at], result)
        if not results:
            await asyncio.sleep(rng.choice([0, 0.001, 0.2]))


async def _fetch(
    world: World, number: int, requests: list[RemoteReadRequest], bytes_max: int
) -> dict[int, RemoteReadResult]:
    """One fetch as the gateway makes it; some clients leave before the response."""
    rng, loop = world.rng, asyncio.get_running_loop()
    if rng.random() < 0.1:
        world.purgatory.warm(rng.choice(requests))
    asked_at = loop.time()
    deadline = asked_at + rng.choice([0.0, 0.05, 0.5, 0.5, 5.0])
    identity = len(world.completions)
    world.completions[identity] = 0

    class Counted(asyncio.Event):
        def set(self) -> None:
            world.completions[identity] += 1
            super().set()

    fetch = world.purgatory.fetch(
        dict(enumerate(requests)), bytes_max=bytes_max, deadline=deadline, completed=Counted()
    )
    try:
        async with asyncio.timeout(0.01 if rng.random() < 0.05 else None):
            await fetch.completed.wait()
    except TimeoutError:
        # The deadline may fall on the same instant; only the first of the two counts.
        fetch.cancel()
    assert fetch.reason is not None
    assert loop.time() <= deadline + CLOCK_SLACK_S
    results = fetch.results()
    world.note(number, fetch.reason.value, {i: _summary(r) for i, r in results.items()})
    _check(world, fetch, requests, bytes_max, results)
    return results


def _summary(result: RemoteReadResult) -> object:
    return result.size_bytes if result.error is None else type(result.error).__name__


def _check(
    world: World,
    fetch: DelayedRemoteFetch[int],
    requests: list[RemoteReadRequest],
    bytes_max: int,
    results: dict[int, RemoteReadResult],
) -> None:
    if fetch.reason is CompletionReason.DATA:
        assert any(result.records for result in results.values())
    if fetch.reason is CompletionReason.CANCELLED:
        assert not results
    by_tp = {partition.tp: partition for partition in world.partitions}
    bytes_left, first = bytes_max, True
    for i, result in sorted(results.items()):
        partition = by_tp[requests[i].tp]
        if result.error is not None:
            assert not result.records
            _check_error(partition, requests[i], fetch, result)
            continue
        _check_records(partition, requests[i], bytes_left, first, result)
        bytes_left, first = bytes_left - result.size_bytes, False


def _check_error(
    partition: GeneratedPartition,
    request: RemoteReadRequest,
    fetch: DelayedRemoteFetch[int],
    result: RemoteReadResult,
) -> None:
    if isinstance(result.error, OffsetNotArchived):
        assert not partition.is_archived(request.fetch_offset)
    elif isinstance(result.error, StorageUnavailable):
        assert fetch.reason is CompletionReason.DEADLINE
    else:
        # Two damaged answers in a row are possible, but only the deadline may report them.
        assert fetch.reason is CompletionReason.DEADLINE, result.error


def _check_records(
    partition: GeneratedPartition,
    request: RemoteReadRequest,
    bytes_left: int,
    first: bool,
    result: RemoteReadResult,
) -> None:
    """Stored bytes, at batch borders, from the right batch on, within the limits."""
    record_bytes = b"".join(result.records)
    assert record_bytes
    assert len(record_bytes) == result.size_bytes
    expected = partition.batches_from(request.fetch_offset)
    stored, served = b"", []
    for batch in expected:
        if len(stored) >= len(record_bytes):
            break
        stored += batch.content
        served.append(batch)
    assert record_bytes == stored
    limit = min(bytes_left, request.bytes_max)
    assert len(record_bytes) <= limit or (first and len(served) == 1)
    offset_expected = request.fetch_offset
    if partition.is_archived(offset_expected):
        assert result.skipped is None or not partition.is_archived(result.skipped[0])
    else:
        assert result.skipped is not None, "the reader is led behind a recorded gap"
        assert result.skipped[0] <= offset_expected <= result.skipped[1]
        offset_expected = result.skipped[1] + 1
        assert offset_expected == partition.next_archived(request.fetch_offset)
    gap = partition.next_archived(offset_expected)
    if gap is not None and not partition.is_archived(gap - 1):
        assert served[-1].last_offset < gap, "a read crossed a recorded gap"
    overlapping = {
        (producer_id, first_offset)
        for producer_id, first_offset, marker in partition.aborted
        if first_offset <= served[-1].last_offset and marker >= served[0].base_offset
    }
    listed = [(producer, first) for first, producer in at_once(txn_starts(result.aborted))]
    assert len(listed) == len(set(listed))
    offset_expected = overlapping if request.isolation is IsolationLevel.READ_COMMITTED else set()
    assert set(listed) == offset_expected


def _advance(
    partition: GeneratedPartition, places: dict[int, int], i: int, result: RemoteReadResult
) -> None:
    if result.records:
        last = result.records[-1]
        served = [b for b in partition.batches if last[-len(b.content) :] == b.content]
        places[i] = served[-1].last_offset + 1
    elif isinstance(result.error, OffsetNotArchived):
        following = partition.next_archived(places[i])
        if following is None:
            del places[i]
        else:
            places[i] = following


async def _check_that_all_comes_to_rest(world: World) -> None:
    """Without fetches, reads in flight end by themselves and every budget is whole again."""
    hung_s = world.limits.chunk_read_max_ms / 1000
    await asyncio.sleep(60 + 50 * hung_s)
    assert under_way(world.purgatory) == NOTHING
    assert cached_bytes(world.purgatory) <= world.config.chunk_cache_bytes_max
    assert world.store.in_flight == 0
    assert world.store.in_flight_max <= world.limits.fetcher_tasks_max + _metadata_reads()
    for (key, _), most in world.store.same_in_flight_max.items():
        hedged = key.endswith(".log") and world.limits.hedged_reads_share_max > 0
        assert most <= 1 + hedged or not key.endswith((".log", ".index", ".txn")), key
    world.note("at rest", len(world.store.reads))


def _metadata_reads() -> int:
    """The metadata manager reads `.metadata` objects, with its own limit."""
    return 3 * READS_AT_ONCE_MAX
