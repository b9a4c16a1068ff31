"""How far one client may slow down another: byte rates and turns, through the whole gateway."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

from calm_replay import BATCH_BYTES, BATCH_OFFSETS, PlainReader, Replay, now, run_replay

from fetchproxy.config.schema import KiB, RemoteFetchConfig
from fetchproxy.reading.limits import ReadingLimits

RATE = 40_000


PACED = RemoteFetchConfig(client_bytes_per_s_max=RATE)
SMALL_CHUNKS = ReadingLimits(chunk_bytes=16 * KiB)


def test_a_client_gets_its_rate_over_all_its_connections_and_is_told_to_wait() -> None:
    async def main(replay: Replay) -> None:
        tps = [log.tp for log in replay.logs]
        two = [PlainReader(f"id-{tp.partition}", [tp]) for tp in tps[:2]]  # one host, two ids
        other = PlainReader("id-0", [tps[2]], host="10.9.9.8")
        began = now()
        async with asyncio.TaskGroup() as group:
            for reader in (*two, other):
                group.create_task(reader.read(began + 20))
        both = sorted((t.at, t.size) for reader in two for t in reader.taken)
        for at, (start, _) in enumerate(both):
            total = 0
            for end, size in both[at:]:
                total += size
                # One second's worth is saved up, and two answers may be in flight at once.
                assert total <= RATE * (end - start) + 3 * RATE
        whole = sum(size for _, size in both)
        assert 0.8 * RATE * 20 <= whole <= RATE * 21 + 2 * RATE
        assert min(reader.size() for reader in two) > 0.2 * whole
        assert 0.8 * RATE * 20 <= other.size() <= RATE * 21 + RATE
        for reader in (*two, other):
            assert reader.throttles_ms
            # A client that asks again at once is answered after the throttle time (KIP-219).
            for told_ms, waited_s in zip(reader.throttles_ms, reader.pauses_s, strict=False):
                assert waited_s >= 0.9 * told_ms / 1000 - 0.01

    run_replay(PACED, main, partitions=3, batches=3_000, reading=SMALL_CHUNKS)


def test_the_tail_of_a_client_that_owes_does_not_wait() -> None:
    async def main(replay: Replay) -> None:
        *_, tail = replay.logs
        reader = PlainReader("both", [log.tp for log in replay.logs], wait_ms=100)
        written: dict[int, float] = {0: now()}

        async def produce() -> None:
            for number in range(1, 60):
                await asyncio.sleep(0.25)
                tail.write(1)
                tail.replicate(now())
                replay.cluster.moved()
                written[number] = now()

        began = now()
        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(reader.read(began + 20))
        arrived = [t for t in reader.taken if t.tp == tail.tp]
        assert sum(t.size for t in arrived) == 60 * BATCH_BYTES
        number = 0
        for taken in arrived:
            for _ in range(taken.size // BATCH_BYTES):
                if number:
                    assert taken.at - written[number] < 0.1
                number += 1
        archived = [t for t in reader.taken if t.tp != tail.tp]
        assert 0.6 * RATE * 20 <= sum(t.size for t in archived) <= RATE * 21 + RATE
        assert not reader.throttles_ms  # a throttled client would stop reading its tail, too

    run_replay(PACED, main, partitions=2, batches=3_000, tail_batches=60, reading=SMALL_CHUNKS)


def test_without_a_rate_nobody_is_throttled() -> None:
    async def main(replay: Replay) -> None:
        reader = PlainReader("free", [replay.logs[0].tp])
        began = now()
        await reader.read(began + 60, ends=3_000 * BATCH_OFFSETS)
        assert reader.size() == 3_000 * BATCH_BYTES
        assert now() < began + 5
        assert not reader.throttles_ms

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=3_000, reading=SMALL_CHUNKS)


def test_a_client_with_many_partitions_leaves_one_with_one_its_share() -> None:
    """Two fetcher tasks, 50 ms a read, 24 partitions to 1: in request order it would have 1/25."""

    async def main(replay: Replay) -> None:
        *many, alone = [log.tp for log in replay.logs]
        greedy = PlainReader("greedy", many, partition_bytes=16 * KiB)
        modest = PlainReader("modest", [alone], partition_bytes=16 * KiB)
        began = now()
        async with asyncio.TaskGroup() as group:
            group.create_task(greedy.read(began + 6))
            await asyncio.sleep(1)
            group.create_task(modest.read(began + 6))
        both = modest.size(began + 2, began + 6) + greedy.size(began + 2, began + 6)
        # It asks for one chunk at a time, so half of the time it is not in the queue.
        assert modest.size(began + 2, began + 6) >= 0.2 * both
        # One turn of the other client, its own turn, and the network's time.
        assert max(b.at - a.at for a, b in pairwise(modest.taken)) < 0.2

    config = RemoteFetchConfig(chunk_cache_bytes_max=25 * 64 * KiB)
    two = replace(SMALL_CHUNKS, fetcher_tasks_max=2)
    run_replay(config, main, partitions=25, batches=1_000, latency_s=0.05, reading=two)
