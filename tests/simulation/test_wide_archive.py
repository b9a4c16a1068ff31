"""A fetch of very many archived partitions: no step goes through all, and each has its turn."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest
from calm_replay import BATCH_BYTES, BATCH_OFFSETS, Replay, run_replay
from client_connection import FETCH_RESPONSE
from kafka.protocol.consumer.fetch import FetchRequest
from test_many_connections import connected
from virtual_loop import VirtualTimeLoop

from fetchproxy.config.schema import MiB, RemoteFetchConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import PARTITIONS_READ_MAX, SegmentReader
from fetchproxy.runtime.cooperative import ITEMS_AT_ONCE
from fetchproxy.serving.gateway.apis import fetch as fetch_api
from fetchproxy.serving.gateway.fetch_routing import PARTITIONS_PER_STEP, RouteTable

VERSION = 12
PARTITIONS = 3 * PARTITIONS_READ_MAX
BATCHES = 2


def fetch_at(positions: dict[int, int]) -> Any:
    of_topic = FetchRequest.FetchTopic
    entries = [
        of_topic.FetchPartition(
            partition=n,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=BATCH_BYTES,
        )
        for n, offset in positions.items()
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=64 * MiB,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[of_topic(topic="weather", partitions=entries)],
        forgotten_topics_data=[],
        rack_id="",
    )


def turn() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop.turns


class Steps:
    """The most calls of each function in one turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.calls: dict[str, Counter[int]] = {}

    def count(self, owner: Any, name: str) -> None:
        called = getattr(owner, name)
        calls = self.calls[name] = Counter()

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[turn()] += 1
            return called(*args, **kwargs)

        self._monkeypatch.setattr(owner, name, counted)

    def most(self, name: str) -> int:
        return max(self.calls[name].values())


async def read(done_min: int) -> list[list[int]]:
    """The partitions of each response with records, until `wanted` of them are read to their
    end.
    """
    connection = await connected("wide")
    end = BATCH_OFFSETS * BATCHES
    positions = dict.fromkeys(range(PARTITIONS), 0)
    responses: list[list[int]] = []
    for _ in range(40):
        positions_left = {n: offset for n, offset in positions.items() if offset < end}
        if PARTITIONS - len(positions_left) >= done_min:
            break
        response = await connection.ask(fetch_at(positions_left), FETCH_RESPONSE, VERSION)
        partitions = response.message.responses[0].partitions
        assert not any(each.error_code for each in partitions)
        if partitions_served := [each.partition_index for each in partitions if each.records]:
            responses.append(partitions_served)
        for partition in partitions_served:
            positions[partition] += BATCH_OFFSETS
    else:
        pytest.fail(f"{len(positions_left)} partitions are not read to their end")
    await connection.close()
    return responses


def test_each_has_its_turn_and_no_step_goes_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    steps.count(RouteTable, "_place")
    steps.count(SegmentReader, "read")
    steps.count(fetch_api, "read_response")
    responses: list[list[int]] = []
    read_for: list[int] = []
    watch = RemoteFetchPurgatory.fetch

    def watched(self: RemoteFetchPurgatory, requests: Any, **limits: Any) -> Any:
        read_for.extend(request.tp.partition for request in requests.values())
        return watch(self, requests, **limits)

    monkeypatch.setattr(RemoteFetchPurgatory, "fetch", watched)

    async def main(replay: Replay) -> None:
        responses.extend(await read(PARTITIONS))

    run_replay(RemoteFetchConfig(), main, partitions=PARTITIONS, batches=BATCHES)
    assert max(map(len, responses)) <= PARTITIONS_READ_MAX
    assert len(set(read_for[:PARTITIONS])) == PARTITIONS, "one was read twice before others once"
    assert steps.calls["_place"].total() >= PARTITIONS
    assert steps.most("_place") <= 2 * PARTITIONS_PER_STEP
    assert steps.most("read") <= 4 * PARTITIONS_READ_MAX
    assert steps.most("read_response") <= 2 * ITEMS_AT_ONCE


def test_those_that_the_store_does_not_give_keep_nobody_waiting() -> None:
    """As many partitions fail as one fetch reads, and they come first."""
    failing = PARTITIONS_READ_MAX

    async def main(replay: Replay) -> None:
        suffer = replay.store._suffer

        async def some_fail(key: str) -> None:
            if key.endswith(".log") and partition_of(key) < failing:
                raise StorageUnavailable(key)
            await suffer(key)

        replay.store._suffer = some_fail  # type: ignore[method-assign]
        responses = await read(PARTITIONS - failing)
        assert {n for response in responses for n in response} == set(range(failing, PARTITIONS))

    run_replay(RemoteFetchConfig(), main, partitions=PARTITIONS, batches=BATCHES)


def partition_of(key: str) -> int:
    match = re.search(r"/(\d+)/", key) or re.search(r"-(\d+)/", key)
    assert match, key
    return int(match[1])
