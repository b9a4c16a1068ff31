"""A simulated client's connection: any request, and one response for each, in request order."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, cast

from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from fetchproxy.model import TopicIdPartition

_FRAME_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class Responded:
    """`began_at`: when the request was sent or the one before it answered, whichever is later."""

    message: Any
    size: int
    began_at: float
    at: float
    dawdled_s: float  # time in which the client itself did not read


@dataclass(slots=True)
class _OpenRequest:
    correlation_id: int
    kind: Any
    version: int
    began_at: float
    response: asyncio.Future[Responded]


class ClientConnection(asyncio.Protocol):
    def __init__(self, name: str) -> None:
        self.name = name
        self._unanswered: deque[_OpenRequest] = deque()
        self._received = bytearray()
        self._correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._last_response_at = 0.0
        self._dawdled_s = 0.0
        self._paused_at: float | None = None
        self._lost = asyncio.Event()

    # -- asyncio ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            assert 4 <= size <= _FRAME_BYTES_MAX, f"{self.name}: answer of {size} bytes"
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._take(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        for request in self._unanswered:
            if not request.response.done():
                request.response.set_exception(ConnectionResetError(f"{self.name}: {exc}"))
                request.response.exception()  # mark as retrieved: some askers have left

    # -- for the client --------------------------------------------------------------------------
    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    def ask(self, request: Any, kind: Any, version: int) -> asyncio.Future[Responded]:
        """Raise ConnectionResetError if the connection is lost."""
        if not self.is_open or self._transport is None:
            raise ConnectionResetError(f"{self.name}: lost")
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation_id, client_id=self.name)
        loop = asyncio.get_running_loop()
        response: asyncio.Future[Responded] = loop.create_future()
        self._unanswered.append(
            _OpenRequest(self._correlation_id, kind, version, loop.time(), response)
        )
        self._transport.write(request.encode(header=True, framed=True))
        return response

    def dawdle(self, seconds: float) -> None:
        """Act as a slow consumer: read nothing for `seconds`."""
        if self._transport is not None and self._paused_at is None:
            loop = asyncio.get_running_loop()
            self._paused_at = loop.time()
            self._transport.pause_reading()
            loop.call_later(seconds, self._go_on)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        await self._lost.wait()

    def _go_on(self) -> None:
        assert self._paused_at is not None
        self._dawdled_s += asyncio.get_running_loop().time() - self._paused_at
        self._paused_at = None
        if self._transport is not None:
            self._transport.resume_reading()

    def _take(self, frame: bytes) -> None:
        assert self._unanswered, f"{self.name}: an answer to no request"
        request = self._unanswered.popleft()
        message = request.kind.decode(frame, version=request.version, header=True)
        assert message.header.correlation_id == request.correlation_id, (
            f"{self.name}: answer {message.header.correlation_id} where "
            f"{request.correlation_id} was due"
        )
        now = asyncio.get_running_loop().time()
        began_at = max(request.began_at, self._last_response_at)
        self._last_response_at = now
        dawdled_s, self._dawdled_s = self._dawdled_s, 0.0
        if not request.response.done():
            request.response.set_result(Responded(message, len(frame), began_at, now, dawdled_s))


@dataclass(frozen=True, slots=True)
class FetchEntry:
    offset: int
    bytes_max: int


class ClientFetchSession:
    """KIP-227 as in Java's FetchSessionHandler; with `enabled` False every fetch is sessionless."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._id, self._epoch = 0, 0 if enabled else -1
        self._entries_in_session: dict[TopicIdPartition, FetchEntry] = {}
        self.lost_by_error = 0

    def request(
        self, entries: dict[TopicIdPartition, FetchEntry], version: int, limits: dict[str, int]
    ) -> tuple[Any, bool]:
        """(the request, whether it is incremental)."""
        incremental = self._epoch > 0
        if incremental:
            changed = {tp: w for tp, w in entries.items() if self._entries_in_session.get(tp) != w}
            forgotten = [tp for tp in self._entries_in_session if tp not in entries]
        else:
            changed, forgotten = entries, []
        self._entries_in_session = dict(entries)
        request = FetchRequest(
            replica_id=-1,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=_topics(changed, version),
            forgotten_topics_data=_forgotten(forgotten, version),
            rack_id="",
            **limits,
        )
        return request, incremental

    def responded(self, error_code: int, session_id: int) -> None:
        if not self._enabled:
            assert session_id == 0, "a session that nobody asked for"
            return
        if error_code:
            self.lost_by_error += 1
            self._id, self._epoch = (0, 0) if error_code == 70 else (self._id, 0)
        elif session_id == 0:
            self._id, self._epoch = 0, 0  # the broker's cache had no room
        elif self._epoch == 0:
            self._id, self._epoch = session_id, 1
        else:
            assert session_id == self._id, "the session's id changed"
            self._epoch += 1

    def disconnected(self) -> None:
        if self._enabled:
            self._epoch = 0


def _topics(entries: dict[TopicIdPartition, FetchEntry], version: int) -> list[Any]:
    of_topic = FetchRequest.FetchTopic
    topics: list[Any] = []
    for tp, fetch_entry in entries.items():
        entry = of_topic.FetchPartition(
            partition=tp.partition,
            current_leader_epoch=-1,
            fetch_offset=fetch_entry.offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=fetch_entry.bytes_max,
        )
        if not topics or topics[-1].topic_id != tp.topic_id:
            topics.append(of_topic(topic=tp.topic, topic_id=tp.topic_id, partitions=[]))
        topics[-1].partitions.append(entry)
    return topics


def _forgotten(tps: list[TopicIdPartition], version: int) -> list[Any]:
    entry = FetchRequest.ForgottenTopic
    return [entry(topic=tp.topic, topic_id=tp.topic_id, partitions=[tp.partition]) for tp in tps]


def metadata_request(topics: list[str]) -> tuple[Any, Any, int]:
    topics_requested = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    return (
        MetadataRequest(topics=topics_requested, allow_auto_topic_creation=False),
        MetadataResponse,
        9,
    )


FETCH_RESPONSE = FetchResponse
