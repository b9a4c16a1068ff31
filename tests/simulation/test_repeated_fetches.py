"""A fetch that repeats the one before takes a shorter way, and nobody can tell.

Each generated trace of bytes runs twice through a gateway in virtual time: with the shorter way and
without it. Both sides must get the same bytes, and all that the gateway keeps must be equal after
each step. The seeds of whole sessions run with it and without it, too.
"""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass, field
from random import Random
from struct import pack
from typing import Any, cast

import pytest
from calm_replay import PlainReader, Replay, run_replay
from client_connection import FETCH_RESPONSE, ClientFetchSession, FetchEntry
from fetchproxy_protocol import fetch as fr
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.fetch_layout import TOPIC_IDS_FROM
from fetchproxy_protocol.headers import peek_request_header, request_header
from fetchproxy_protocol.primitives import INT32
from session_simulation import simulate

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import RELAYED_BYTES_TO_BROKER, RELAYED_BYTES_TO_CLIENT
from fetchproxy.serving.gateway import fetch_conversation
from fetchproxy.serving.gateway.fetch_conversation import FetchState, RepeatedFetch
from fetchproxy.serving.gateway.fetch_session import EPOCH_MAX, next_epoch
from fetchproxy.serving.gateway.session import GatewaySession

TRACES = range(60)
STEPS = 400
LIMITS = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
CODES = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class Wire(asyncio.Transport):
    """Keeps what is written. `full`: its reader takes nothing, so bytes stay in the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.full = False
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self.full else 0

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@dataclass(slots=True)
class Client:
    """Generates requests, most of which repeat the one before."""

    rng: Random
    tp: TopicIdPartition
    version: int = 11
    session_id: int = 0
    epoch: int = -1
    offset: int = 10
    bytes_max: int = 1 << 20
    correlation_id: int = 0

    def next_request(self) -> bytes:
        rng, choice = self.rng, self.rng.random()
        self.correlation_id += 1
        if choice < 0.02:
            header = request_header(ApiKey.HEARTBEAT, 0, self.correlation_id, "client")
            return INT32.pack(len(header)) + header
        if choice < 0.1:
            self.epoch, self.version = rng.choice([(-1, 4), (-1, 11), (0, 11), (-1, 16), (0, 16)])
            self.session_id = 0
        changes = choice < 0.15 or self.epoch <= 0
        if choice < 0.2:
            self.offset = rng.choice([0, 10, 20])
            self.bytes_max = rng.choice([1 << 20, 1_000])
        if choice > 0.99:
            self.epoch = next_epoch(self.epoch)  # which the proxy refuses
        return self._fetch(changes, forgets=choice > 0.98 and self.epoch > 0)

    def _fetch(self, changes: bool, forgets: bool) -> bytes:
        version, correlation_id = self.version, self.correlation_id
        header = request_header(ApiKey.FETCH, version, correlation_id, "client")
        key = self.topic, self.tp.partition
        changed = {key: self._entry()} if changes else {}
        rack = b"\x01" if version >= 12 else b"\x00\x00" if version >= 11 else b""
        template = fr.FetchRequest(
            version, correlation_id, header, -1, 500, 1, self.bytes_max, 0, self.session_id,
            self.epoch, changed, (), rack, fr.no_tags(version),
        )  # fmt: skip
        return fr.encode_fetch_request(
            template, partitions=changed, forgotten=(key,) if forgets else (),
            session_id=self.session_id, session_epoch=self.epoch, max_wait_ms=500, min_bytes=1,
            bytes_max=self.bytes_max,
        )  # fmt: skip

    @property
    def topic(self) -> bytes:
        by_id = self.version >= TOPIC_IDS_FROM
        return self.tp.topic_id.bytes if by_id else self.tp.topic.encode()

    def _entry(self) -> bytes:
        if self.version < 5:
            return pack(">iqi", self.tp.partition, self.offset, 1 << 20)
        if self.version < 12:
            return pack(">iiqqi", self.tp.partition, -1, self.offset, -1, 1 << 20)
        return pack(">iiqiqib", self.tp.partition, -1, self.offset, -1, -1, 1 << 20, 0)

    def responded(self, session_id: int) -> None:
        """To a fetch."""
        if self.epoch >= 0:
            self.session_id = session_id
            self.epoch = next_epoch(self.epoch) if session_id else 0


@dataclass(slots=True)
class Broker:
    """Generates responses, most of which repeat the one before."""

    rng: Random
    tp: TopicIdPartition
    session_id: int = 71

    def response(self, request: bytes) -> bytes:
        head = peek_request_header(request, 4)
        if head.api_key != ApiKey.FETCH:
            return INT32.pack(6) + INT32.pack(head.correlation_id) + bytes(2)
        rng, version = self.rng, head.api_version
        choice = rng.random()
        code = rng.choice(CODES) if choice < 0.06 else 0
        top_error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND if choice > 0.98 else 0
        throttle_ms = 20 if 0.06 < choice < 0.09 else 0
        if 0.09 < choice < 0.11:
            self.session_id = rng.choice([0, 71, 72])
        records = rng.randbytes(rng.choice([30, 900])) if 0.11 < choice < 0.2 else b""
        end = 90 if choice < 0.8 else 91
        by_id = version >= TOPIC_IDS_FROM
        topic = self.tp.topic_id.bytes if by_id else self.tp.topic.encode()
        patch = fr.PartitionPatch(end, end, 5)
        start = fr.encode_partition_start(
            version, self.tp.partition, code, patch, None, len(records)
        )
        body = fr.encode_topic_start(version, topic, 1) + start + records
        body += fr.no_tags(version) + fr.no_tags(version) + fr.no_tags(version)
        response_head = fr.FetchResponseHead(
            head.correlation_id, throttle_ms, top_error, self.session_id, 1
        )
        return fr.encode_head(version, response_head, len(body)) + body


class Gateway:
    """One session of a real gateway, whose two connections are in the test's hands."""

    def __init__(self, session: GatewaySession) -> None:
        self.session = session
        self.link = cast(Any, session.upstream)
        self.client, self.broker = Wire(), Wire()
        self._transports = session._transport, self.link.transport, self.link._client
        session._transport = self.link._client = self.client
        self.link.transport = self.broker

    def give_back(self) -> None:
        self.session._transport, self.link.transport, self.link._client = self._transports

    @property
    def is_over(self) -> bool:
        return self.session.closing

    def arrives(self, protocol: Any, data: bytes) -> None:
        view = protocol.get_buffer(-1)
        assert len(view) >= len(data)
        view[: len(data)] = data
        protocol.buffer_updated(len(data))
        receive = self.session._receive
        receive.view[: len(data)] = bytes(len(data))  # whoever keeps a view of it has nothing now

    def state(self) -> tuple[object, ...]:
        """All that the gateway knows of this client."""
        session: Any = self.session
        if session.closing:
            return (True,)
        conversation, share = session.fetch.conversation, session.share
        mirror = {key: copy(value) for key, value in vars(conversation.mirror).items()}
        for name in ("_new_session_id", "_before"):
            mirror.pop(name)
        reader = share._reader
        return (
            conversation.state,
            conversation.tail_is_read,
            conversation.throttle_time_ms,
            conversation.parked is not None,
            set(conversation._readable),
            conversation._readable_until,
            mirror,
            {key: start(1) for key, start in (conversation.topics.log_starts() or {}).items()},
            conversation._steps._tail_until,
            share.asked_last(),
            session.muted,
            session.kept_bytes,
            session.requests.begun_at,
            session.has_received,
            len(self.link.expected),
            self.link.has_received,
            self.link.tells_responded,
            reader and (dict(reader._offsets), reader._responded_at, reader._response_bytes),
            reader and (reader.last_response, reader._consumer.status(session._owner.clock())),
        )


@dataclass(slots=True)
class Trace:
    """What the two sides got, and what the gateway knew, step by step."""

    steps: list[tuple[object, ...]] = field(default_factory=list)
    repeats: int = 0
    incremental: int = 0  # of them
    epochs_wrapped: int = 0


async def run_trace(replay: Replay, seed: int, trace: Trace) -> None:
    rng, log = Random(seed), replay.logs[-1]
    connection = await PlainReader("client", [log.tp]).dial()
    request, _ = ClientFetchSession(False).request({log.tp: FetchEntry(0, 1_000)}, 11, LIMITS)
    await connection.ask(request, FETCH_RESPONSE, 11)
    await asyncio.sleep(1)
    sessions = (each for each in replay.gateway._sessions if isinstance(each, GatewaySession))
    gateway = Gateway(next(each for each in sessions if each.node_id is not None))
    if seed % 3 == 0:
        gateway.session.share._may_pause = True
    await Steps(rng, gateway, Client(rng, log.tp), Broker(rng, log.tp), trace).run()
    gateway.give_back()
    gateway.session.close()
    await connection.close()


@dataclass(slots=True)
class Steps:
    rng: Random
    gateway: Gateway
    client: Client
    broker: Broker
    trace: Trace
    due: list[bytes] = field(default_factory=list)  # the requests that the broker has

    async def run(self) -> None:
        for _ in range(STEPS):
            await self._step()
            written = bytes(self.gateway.client.written), bytes(self.gateway.broker.written)
            self.trace.steps.append((*written, *self.gateway.state()))
            self.gateway.client.written.clear()
            self._note(written[1])
            self.gateway.broker.written.clear()
            self._see(written[0])
            self._near_the_last_epoch()
            if self.gateway.is_over:
                return

    async def _step(self) -> None:
        rng, choice = self.rng, self.rng.random()
        if choice < 0.03:
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.6, 8.0]))
        elif choice < 0.05:
            self.gateway.client.full = not self.gateway.client.full
        elif self.due and choice < 0.9:
            self._arrives(self.gateway.link, self.broker.response(self.due.pop(0)))
        elif not self.due or choice > 0.97:
            self._arrives(self.gateway.session, self.client.next_request())
        await asyncio.sleep(0)
        if choice > 0.9995:
            self.gateway.session.take_no_more()

    def _near_the_last_epoch(self) -> None:
        """Once, the session has lasted for years."""
        fetches: Any = self.gateway.session.fetch if not self.gateway.is_over else None
        if self.trace.epochs_wrapped or fetches is None or self.client.epoch < 3 or self.due:
            return
        mirror = fetches.mirror
        if mirror.in_lockstep and mirror._client_epoch == self.client.epoch:
            self.trace.epochs_wrapped = 1
            mirror._client_epoch = self.client.epoch = EPOCH_MAX - 1

    def _arrives(self, protocol: Any, data: bytes) -> None:
        """In one piece or in several."""
        cut = self.rng.randrange(len(data)) if self.rng.random() < 0.1 else 0
        for piece in (data[:cut], data[cut:]):
            if piece and not self.gateway.is_over:
                self.gateway.arrives(protocol, piece)

    def _note(self, to_broker: bytes) -> None:
        while to_broker:
            size = 4 + INT32.unpack_from(to_broker)[0]
            self.due.append(to_broker[:size])
            to_broker = to_broker[size:]

    def _see(self, to_client: bytes) -> None:
        version = self.client.version
        if version >= 7 and len(to_client) > fr.head_bytes(version):
            self.client.responded(*INT32.unpack_from(to_client, fr.head_bytes(version) - 4))


def traced(seed: int) -> Trace:
    trace = Trace()
    taken = RepeatedFetch.takes

    def takes(fetch: RepeatedFetch, frame: memoryview) -> bool:
        is_taken = taken(fetch, frame)
        trace.repeats += is_taken
        trace.incremental += is_taken and not fetch.kind.lists_all
        return is_taken

    async def main(replay: Replay) -> None:
        await run_trace(replay, seed, trace)

    before = RELAYED_BYTES_TO_BROKER.total, RELAYED_BYTES_TO_CLIENT.total
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(RepeatedFetch, "takes", takes)
        # The last partition is not archived: with one partition, its topic has no archive.
        run_replay(RemoteFetchConfig(), main, partitions=1 + seed % 2, batches=3, tail_batches=1)
    after = RELAYED_BYTES_TO_BROKER.total, RELAYED_BYTES_TO_CLIENT.total
    trace.steps.append(tuple(now - then for then, now in zip(before, after, strict=True)))
    return trace


def without_repeats(patches: pytest.MonkeyPatch) -> None:
    """No request is kept, so none repeats another."""
    patches.setattr(fetch_conversation, "REPEATED_REQUEST_BYTES_MAX", 0)


@pytest.mark.parametrize("seed", TRACES)
def test_a_trace_is_the_same_with_and_without_repeats(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = traced(seed)
    without_repeats(monkeypatch)
    long = traced(seed)
    assert not long.repeats
    for number, (one, other) in enumerate(zip(short.steps, long.steps, strict=True)):
        assert one == other, f"step {number}"


def test_the_traces_have_all_that_matters() -> None:
    traces = [traced(seed) for seed in TRACES]
    assert sum(trace.repeats for trace in traces) > 1_000
    assert sum(trace.incremental for trace in traces) > 200
    assert sum(trace.epochs_wrapped for trace in traces) > 10
    states = {step[2] for trace in traces for step in trace.steps if len(step) > 3}
    assert states >= {FetchState.IDLE, FetchState.RELAYING, FetchState.WAITING}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whole_sessions_are_the_same_with_and_without_repeats(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = simulate(seed)
    without_repeats(monkeypatch)
    assert simulate(seed).trace_hash == short.trace_hash
