"""A large request, or one in very many pieces, costs other clients no turn of the loop."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections import Counter
from typing import Any

import pytest
from calm_replay import GATEWAY, Replay, run_replay
from client_connection import FETCH_RESPONSE, metadata_request
from fetchproxy_protocol.headers import RequestHead
from kafka.protocol.consumer.fetch import FetchRequest
from test_many_connections import connected
from virtual_loop import VirtualTimeLoop

from fetchproxy.config.schema import MiB, RemoteFetchConfig
from fetchproxy.runtime.cooperative import MESSAGES_A_TURN
from fetchproxy.serving import session as request_reader
from fetchproxy.serving.gateway.apis import fetch as fetch_api
from fetchproxy.serving.gateway.apis.fetch import FetchHandler
from fetchproxy.serving.gateway.broker_link import BrokerLink
from fetchproxy.serving.gateway.fetch_conversation import RelayedFetch
from fetchproxy.serving.gateway.fetch_routing import PARTITIONS_PER_STEP, FetchRouter
from fetchproxy.serving.gateway.fetch_session import PARTITION_BYTES
from fetchproxy.serving.gateway.session import GatewaySession
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.listener import SWEEP_INTERVAL_S

VERSION = 12
PARTITIONS = 10_000


def fetch_of(partitions: int) -> Any:
    of_topic = FetchRequest.FetchTopic
    entries = [
        of_topic.FetchPartition(
            partition=n,
            current_leader_epoch=-1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1000,
        )
        for n in range(partitions)
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[of_topic(topic="weather", partitions=entries)],
        forgotten_topics_data=[],
        rack_id="",
    )


def test_a_fetch_of_ten_thousand_partitions_is_read_in_many_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 0
    in_steps = fetch_api.request_in_steps

    def counted(payload: memoryview, body_at: int) -> Any:
        nonlocal steps
        reading = in_steps(payload, body_at)
        while True:
            try:
                next(reading)
            except StopIteration as finished:
                return finished.value
            steps += 1
            yield

    monkeypatch.setattr(fetch_api, "request_in_steps", counted)

    async def main(replay: Replay) -> None:
        connection = await connected("wide")
        response = await connection.ask(fetch_of(PARTITIONS), FETCH_RESPONSE, VERSION)
        (topic,) = response.message.responses
        numbers = [each.partition_index for each in topic.partitions]
        assert sorted(numbers) == list(range(PARTITIONS))
        await connection.close()

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)
    assert steps >= PARTITIONS / 500


def test_of_large_sessions_that_end_together_one_is_freed_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: Counter[int] = Counter()  # partitions, by turn of the loop
    sessions: list[GatewaySession] = []
    make, drop = FetchHandler.__init__, FetchHandler.drop

    def made(handler: FetchHandler, session: GatewaySession, shared: Any) -> None:
        sessions.append(session)
        make(handler, session, shared)

    def counted(handler: FetchHandler) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        freed[loop.turns] += len(handler.mirror.partitions)
        drop(handler)

    monkeypatch.setattr(FetchHandler, "__init__", made)
    monkeypatch.setattr(FetchHandler, "drop", counted)

    async def main(replay: Replay) -> None:
        connections = [await connected("wide") for _ in range(4)]
        for connection in connections:
            await connection.ask(fetch_of(1_000), FETCH_RESPONSE, VERSION)
        for session in sessions:
            session.close()
        await asyncio.sleep(1)

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)
    assert sum(freed.values()) == 4_000
    assert max(freed.values()) == 1_000


def test_the_answer_to_one_partition_named_very_often_is_walked_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker answers it as often: 20,000 times in one turn took 0.4 s."""
    slowly: list[bool] = []
    expect = RelayedFetch.expect

    def noted(fetch: RelayedFetch) -> RelayedFetch:
        response = expect(fetch)
        slowly.append(response.walked_slowly)
        return response

    monkeypatch.setattr(RelayedFetch, "expect", noted)

    async def main(replay: Replay) -> None:
        connection = await connected("often")
        for partitions, times in ((1, 1), (1, 2_000)):
            request = fetch_of(partitions)
            request.topics[0].partitions[0].partition = 5  # the broker has none such
            request.topics[0].partitions *= times
            await connection.ask(request, FETCH_RESPONSE, VERSION)
        await connection.close()

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)
    assert slowly == [False, True]


def test_a_request_that_names_too_many_partitions_reaches_no_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request_sizes: list[int] = []
    send = BrokerLink.send

    def counted(link: BrokerLink, request: bytes, response: Any) -> None:
        request_sizes.append(len(request))
        send(link, request, response)

    monkeypatch.setattr(BrokerLink, "send", counted)

    def list_offsets_of(partitions: int) -> bytes:
        body = struct.pack(">ibih", -1, 0, 1, 7) + b"weather" + struct.pack(">i", partitions)
        body += b"".join(struct.pack(">iiq", n, -1, -2) for n in range(partitions))
        frame = struct.pack(">hhih", 2, 4, 7, -1) + body
        return struct.pack(">i", len(frame)) + frame

    async def main(replay: Replay) -> None:
        connection = await connected("wide")
        assert connection._transport is not None
        connection._transport.write(list_offsets_of(20_001))
        await connection._lost.wait()

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)
    assert max(request_sizes) < 1_000


def test_ten_thousand_beside_one_of_the_archive_are_one_question_to_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No step goes through all partitions. By then the client has a permit for the topic."""
    counts_asked: list[int] = []
    identified: Counter[int] = Counter()  # by turn of the loop
    ask_log_offsets, identify = FetchRouter._ask_log_offsets, FetchRouter.identify

    async def requested_log_offsets(self: FetchRouter, tps: Any, not_older_than: float) -> None:
        counts_asked.append(len(tps))
        await ask_log_offsets(self, tps, not_older_than)

    def identifies(self: FetchRouter, topic: bytes, partition: int) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        identified[loop.turns] += 1
        return identify(self, topic, partition)

    async def main(replay: Replay) -> None:
        connection = await connected("wide")
        for _ in range(3):
            response = await connection.ask(fetch_of(PARTITIONS), FETCH_RESPONSE, VERSION)
            assert response.message.responses
        await connection.close()

    monkeypatch.setattr(FetchRouter, "_ask_log_offsets", requested_log_offsets)
    monkeypatch.setattr(FetchRouter, "identify", identifies)
    run_replay(RemoteFetchConfig(), main, partitions=1, batches=3)
    assert max(counts_asked) >= PARTITIONS - 1
    assert len(counts_asked) <= 6, counts_asked
    assert identified.total() >= PARTITIONS
    assert max(identified.values()) <= 2 * PARTITIONS_PER_STEP + 100


def sessions_held() -> int:
    """The number of maps with this many partitions, uncollected garbage included."""
    return sum(isinstance(each, dict) and len(each) == PARTITIONS for each in gc.get_objects())


def test_a_wide_session_counts_as_what_its_connection_holds() -> None:
    """When connections together hold too much, those that hold most are closed; others read on."""

    async def main(replay: Replay) -> None:
        request = fetch_of(PARTITIONS)
        request.session_epoch = 0
        wide = [await connected(f"wide-{number}") for number in range(3)]
        usual = await connected("usual")
        for connection in wide:
            await connection.ask(request, FETCH_RESPONSE, VERSION)
            await asyncio.sleep(SWEEP_INTERVAL_S)
        await asyncio.sleep(SWEEP_INTERVAL_S)
        assert sum(connection.is_open for connection in wide) == 2
        await usual.ask(fetch_of(1), FETCH_RESPONSE, VERSION)
        for connection in (usual, *wide):
            await connection.close()

    bytes_max = PARTITIONS * PARTITION_BYTES * 5 // 2
    gateway = GATEWAY.model_copy(update={"connection_buffers_bytes_max": bytes_max})
    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1, gateway=gateway)


@pytest.mark.parametrize("heard", [True, False], ids=["answered", "gone before the answer"])
def test_what_a_connection_held_is_free_when_it_is_over(heard: bool) -> None:
    """Without garbage collection, which would look at all live objects while others wait."""

    async def main(replay: Replay) -> None:
        request = fetch_of(PARTITIONS)
        request.session_epoch = 0
        for number in range(3):
            connection = await connected(f"wide-{number}")
            response_future = connection.ask(request, FETCH_RESPONSE, VERSION)
            if heard:
                await response_future
            else:
                for _ in range(20):
                    await asyncio.sleep(0)
            await connection.close()
        await asyncio.sleep(2)
        assert sessions_held() == 0

    gc.collect()
    gc.disable()
    try:
        run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)
    finally:
        gc.enable()


def test_who_sends_many_requests_at_once_gets_a_few_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled: Counter[tuple[str, int]] = Counter()  # by side and turn of the loop
    peek, write = request_reader.peek_request_header, BrokerLink._finish

    def turn() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        return loop.turns

    def peeked(view: memoryview, pos: int = 0, end: int | None = None) -> RequestHead:
        handled["requests", turn()] += 1
        return peek(view, pos, end)

    def responded(link: BrokerLink) -> None:
        handled["answers", turn()] += 1
        write(link)

    monkeypatch.setattr(request_reader, "peek_request_header", peeked)
    monkeypatch.setattr(BrokerLink, "_finish", responded)

    async def main(replay: Replay) -> None:
        connection = await connected("pipelining")
        response_futures = [connection.ask(*metadata_request(["weather"])) for _ in range(500)]
        for response in response_futures:
            assert (await response).message.topics[0].name == "weather"
        await connection.close()

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)
    for side in ("requests", "answers"):
        counts = [count for (which, _), count in handled.items() if which == side]
        assert sum(counts) >= 500
        # A response may make room for another request in the same turn.
        assert max(counts) <= 2 * MESSAGES_A_TURN


def test_a_request_in_a_thousand_pieces_is_looked_at_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    peek = request_reader.peek_request_header

    def counted(view: memoryview, pos: int = 0, end: int | None = None) -> RequestHead:
        nonlocal looks
        looks += 1
        return peek(view, pos, end)

    monkeypatch.setattr(request_reader, "peek_request_header", counted)

    async def main(replay: Replay) -> None:
        nonlocal looks
        connection = await connected("slow")
        looks = 0
        transport = connection._transport
        assert transport is not None
        transport.write(struct.pack(">ihhih", MiB, 1, VERSION, 1, -1))
        for _ in range(1000):
            transport.write(bytes(100))
            await asyncio.sleep(0.01)
        assert connection.is_open
        assert looks <= 3
        transport.abort()

    run_replay(
        RemoteFetchConfig(),
        main,
        partitions=1,
        batches=1,
        limits=ServingLimits(half_frame_max_ms=60_000),
    )
