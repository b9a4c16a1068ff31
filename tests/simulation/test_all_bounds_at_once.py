"""Everything that bounds, paces and shares work, each at its tightest: all clients still get on.

Each mechanism has tests of its own. Here they meet: a client that is made to wait by one of them
must not keep what another one counts.
"""

from __future__ import annotations

import asyncio

import pytest
from calm_replay import (
    BATCH_BYTES,
    BATCH_OFFSETS,
    GATEWAY,
    PlainReader,
    Replay,
    now,
    run_replay,
)

from fetchproxy.config.schema import GatewayConfig, KiB, MiB, RemoteFetchConfig
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.serving.limits import ServingLimits

BATCHES = 60
TAIL_BATCHES = 50
PARTITIONS = 6
READERS = 8
# At this rate a client alone reads for 25 s; two share it, by their address.
RATE = 12_000
PATIENCE_S = 600.0

TIGHT_GATEWAY = GatewayConfig(
    listen=GATEWAY.listen,
    connections_per_ip_max=READERS,
    connection_buffers_bytes_max=MiB,
    remote_answers_bytes_max=KiB,  # a single response is above it
)
TIGHT_SERVING = ServingLimits(
    inflight_requests_max=1,
    buffer_bytes_max=KiB,
    remote_answer_bytes_max=2 * KiB,
    remote_answer_turns_max=1,
    remote_fetch_max_wait_ms=500,
)
TIGHT_READING = ReadingLimits(
    fetcher_tasks_max=1,
    chunk_bytes=4 * KiB,
    read_ahead_chunks_max=1,
    hedged_reads_share_max=1.0,
    hedge_after_min_ms=1,
    hedge_after_max_ms=1,
    purgatory_entries_max=1,
    unasked_read_max_ms=100,
)


@pytest.mark.parametrize("cache_bytes", [0, 4 * KiB])
def test_every_client_reads_everything_and_the_tail_goes_on(cache_bytes: int) -> None:
    async def main(replay: Replay) -> None:
        *archived, tail = [log.tp for log in replay.logs]
        readers = [
            PlainReader(f"id-{number % 3}", archived, host=f"10.9.9.{number % 4}")
            for number in range(READERS)
        ]
        follower = PlainReader("tail", [tail], wait_ms=100, host="10.9.9.9")
        written: list[float] = []

        async def produce() -> None:
            for _ in range(TAIL_BATCHES):
                await asyncio.sleep(0.25)
                replay.logs[-1].write(1)
                replay.logs[-1].replicate(now())
                replay.cluster.moved()
                written.append(now())

        began = now()
        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(follower.read(began + PATIENCE_S, ends=TAIL_BATCHES * BATCH_OFFSETS))
            for reader in readers:
                until = began + PATIENCE_S
                group.create_task(reader.read(until, ends=BATCHES * BATCH_OFFSETS))
        for reader in readers:
            assert reader.size() == len(archived) * BATCHES * BATCH_BYTES
            assert reader.throttles_ms, "its rate did not bound it"
        # A record of the tail waits for no archived one.
        late = [taken.at - at for taken, at in zip(follower.taken[1:], written, strict=False)]
        assert len(late) >= TAIL_BATCHES - 2
        assert max(late) < 0.2

    remote_fetch = RemoteFetchConfig(
        client_bytes_per_s_max=RATE,
        inflight_bytes_max=MiB,
        chunk_cache_bytes_max=cache_bytes,
        index_cache_bytes_max=MiB,
    )
    run_replay(
        remote_fetch,
        main,
        partitions=PARTITIONS,
        batches=BATCHES,
        tail_batches=TAIL_BATCHES + 1,
        latency_s=0.005,
        gateway=TIGHT_GATEWAY,
        limits=TIGHT_SERVING,
        reading=TIGHT_READING,
    )
