"""A poll parked at the broker serves no fetch that needs another version or isolation level."""

from __future__ import annotations

import asyncio

import pytest
from calm_replay import BATCH_OFFSETS, PlainReader, Replay, now, run_replay
from client_connection import FETCH_RESPONSE, ClientFetchSession, FetchEntry

from fetchproxy.config.schema import RemoteFetchConfig

FETCHES = 12
LIMITS = {"max_wait_ms": 400, "min_bytes": 1}


@pytest.mark.parametrize(
    ("even", "odd"),
    [((6, 0), (8, 0)), ((12, 0), (4, 1)), ((11, 0), (11, 1)), ((13, 1), (13, 1))],
    ids=str,
)
def test_fetches_of_two_kinds(even: tuple[int, int], odd: tuple[int, int]) -> None:
    """Two kinds of (version, isolation level) in turn; one partition is archived, one at its end.

    Each answer with archived records leaves a poll of the other partition parked.
    """
    of_archive, of_tail = 0, 0

    async def main(replay: Replay) -> None:
        nonlocal of_archive, of_tail
        archived, tail = replay.logs
        connection = await PlainReader("reader", [archived.tp, tail.tp]).dial()
        for number in range(FETCHES):
            version, isolation = (even, odd)[number % 2]
            end = tail.log_end_offset
            if number:
                tail.write(1)
                tail.replicate(now())
                await asyncio.sleep(0.05)  # the parked poll is answered
            entries = {
                archived.tp: FetchEntry(number * BATCH_OFFSETS, 1),
                tail.tp: FetchEntry(end, 1 << 20),
            }
            limits = LIMITS | {"max_bytes": 1 << 20, "isolation_level": isolation}
            request, _ = ClientFetchSession(enabled=False).request(entries, version, limits)
            async with asyncio.timeout(10):  # a response that cannot be decoded never arrives
                message = (await connection.ask(request, FETCH_RESPONSE, version)).message
            parts = {p.partition_index: p for t in message.responses for p in t.partitions}
            assert [part.error_code for part in parts.values()] == [0, 0]
            for part in parts.values():
                assert (part.aborted_transactions is None) == (isolation == 0)
            of_archive += bool(parts[archived.tp.partition].records)
            of_tail += bool(parts[tail.tp.partition].records)
        await connection.close()

    run_replay(RemoteFetchConfig(), main, partitions=2, batches=20, tail_batches=20)
    assert (of_archive, of_tail) == (FETCHES, FETCHES - 1)
