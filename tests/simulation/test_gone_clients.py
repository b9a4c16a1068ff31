"""A client of the gateway closes its connection (FIN) while its request waits: the work ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from calm_replay import BATCH_OFFSETS, VERSION, PlainReader, Replay, now, run_replay
from client_connection import FETCH_RESPONSE, ClientConnection, ClientFetchSession, FetchEntry
from faulty_store import HANG, NO_FAULTS
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from fetchproxy.config.schema import KiB, RemoteFetchConfig
from fetchproxy.model import TopicIdPartition
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.listener import SWEEP_INTERVAL_S

BATCHES, FAR = 100, 80 * BATCH_OFFSETS
LONG_POLL_MS = 25_000
EARLIEST = -2
ENDED_S = ServingLimits().ended_client_max_ms / 1000
SMALL_CHUNKS = ReadingLimits(
    chunk_bytes=16 * KiB, read_ahead_chunks_max=0, hedged_reads_share_max=0
)


def fetch(connection: ClientConnection, tp: TopicIdPartition, offset: int) -> Any:
    limits = {"max_wait_ms": LONG_POLL_MS, "min_bytes": 1, "max_bytes": 1 << 20,
              "isolation_level": 0}  # fmt: skip
    request, _ = ClientFetchSession(False).request(
        {tp: FetchEntry(offset, 1 << 20)}, VERSION, limits
    )
    return connection.ask(request, FETCH_RESPONSE, VERSION)


def look_up(connection: ClientConnection, tp: TopicIdPartition, timestamp_ms: int) -> Any:
    topic = ListOffsetsRequest.ListOffsetsTopic
    part = topic.ListOffsetsPartition(
        partition_index=tp.partition, current_leader_epoch=-1, timestamp=timestamp_ms
    )
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topic(name=tp.topic, partitions=[part])]
    )
    return connection.ask(request, ListOffsetsResponse, 4)


def replayed(main: Callable[[Replay], Any]) -> None:
    run_replay(RemoteFetchConfig(), main, partitions=1, batches=BATCHES, reading=SMALL_CHUNKS)


async def far_reader(replay: Replay, name: str) -> ClientConnection:
    """Has read the partition's beginning, so its offsets are known to be archived."""
    reader = PlainReader(name, [replay.logs[0].tp])
    await reader.read(now() + 60, ends=BATCH_OFFSETS)
    return await reader.dial()


async def hanging(replay: Replay, reads: int) -> None:
    async with asyncio.timeout(60):
        while replay.store.in_flight != reads:  # noqa: ASYNC110 - of virtual time
            await asyncio.sleep(0.01)


def test_the_read_of_a_client_that_has_closed_ends() -> None:
    async def main(replay: Replay) -> None:
        gone, other = [await far_reader(replay, name) for name in ("gone", "other")]
        tp = replay.logs[0].tp
        replay.store.faults = HANG
        fetch(gone, tp, FAR)
        await hanging(replay, 1)
        closed_at = now()
        await gone.close()
        await hanging(replay, 0)
        assert now() - closed_at < ENDED_S + 2 * SWEEP_INTERVAL_S
        replay.store.faults = NO_FAULTS
        assert (await fetch(other, tp, FAR)).message.responses[0].partitions[0].records
        await other.close()

    replayed(main)


def test_who_reads_the_same_goes_on() -> None:
    async def main(replay: Replay) -> None:
        gone, other = [await far_reader(replay, name) for name in ("gone", "other")]
        tp = replay.logs[0].tp
        replay.store.faults = HANG
        for connection in (gone, other):
            fetch(connection, tp, FAR)
        await hanging(replay, 1)
        await gone.close()
        await asyncio.sleep(ENDED_S + 2 * SWEEP_INTERVAL_S)
        assert (replay.store.in_flight, other.is_open, replay.gateway.connections) == (1, True, 1)
        await other.close()

    replayed(main)


def test_who_gives_up_after_a_while_is_noticed_at_once() -> None:
    async def main(replay: Replay) -> None:
        gone = await far_reader(replay, "gone")
        replay.store.faults = HANG
        fetch(gone, replay.logs[0].tp, FAR)
        await asyncio.sleep(ENDED_S + 1)
        assert replay.store.in_flight == 1
        await gone.close()
        await asyncio.sleep(2 * SWEEP_INTERVAL_S)
        assert (replay.store.in_flight, replay.gateway.connections) == (0, 0)

    replayed(main)


@pytest.mark.parametrize("gone", [False, True])
def test_a_look_up_by_time_ends_with_its_client(gone: bool) -> None:
    async def main(replay: Replay) -> None:
        tp = replay.logs[0].tp
        connection = await PlainReader("looks up", [tp]).dial()
        await look_up(connection, tp, EARLIEST)  # from now on, its segments are known
        replay.store.faults = HANG
        look_up(connection, tp, 0)
        await hanging(replay, 1)
        if gone:
            await connection.close()
        await asyncio.sleep(ENDED_S + 2 * SWEEP_INTERVAL_S)
        assert replay.store.in_flight == (not gone)
        await connection.close()

    replayed(main)
