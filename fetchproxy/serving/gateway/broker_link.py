"""The broker's half of a connection: the responses that are due, one object each, in the order of
requests, and how they are read.

An `ExpectedResponse` passes unchanged. A `BufferedResponse` is accumulated whole and then
rewritten, perhaps after a wait. A `ScannedResponse` is scanned while it streams. It may be
*parked*: the broker was asked for it, but the proxy does not read it before a fetch of the client
wants it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol, cast

from fetchproxy_protocol.apis import FrameTooLarge, MalformedMessage, WireError
from fetchproxy_protocol.fetch_scan import FetchResponseScan
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.config.schema import MiB
from fetchproxy.observability.metrics import RELAYED_BYTES_TO_CLIENT, SPLICED_BYTES
from fetchproxy.runtime.cooperative import MESSAGES_A_TURN
from fetchproxy.serving.limits import AccumulatedBytes
from fetchproxy.serving.record_pipe import PEEK_BYTES, RecordPipe
from fetchproxy.serving.transport import ReceiveBuffer, plain_socket
from fetchproxy.serving.upstream import ExpectedResponse
from fetchproxy.tls.handshake_errors import other_protocol

Payload = Sequence[Buffer]
Rewrite = Callable[[bytes], Payload | Awaitable[Payload]]
# Of one response that is read as a whole: far more than the Metadata of 200,000 partitions, which a
# cluster can have.
RESPONSE_BUFFERED_BYTES_MAX = 16 * MiB
# While a response is rewritten there are so many copies of it: as it came, as it leaves, and
# framed.
HELD_COPIES = 3
_FRAME_START = Struct(">ii")
# A response up to this size leaves in one piece.
WHOLE_BYTES_MAX = 16 * 1024
# Received at a time of a response with more than WALKED_AT_ONCE partitions: some 250 partitions
# without records, which cost 10 µs each if all are out of range.
WALKED_BYTES = 8 * 1024


@dataclass(eq=False, repr=False, slots=True)
class BufferedResponse(ExpectedResponse):
    """`rewrite` takes the payload without size prefix and returns the payload to send instead.

    It returns an awaitable only if it must wait; most responses are rewritten at once.
    """

    correlation_id: int
    rewrite: Rewrite
    payload: bytearray = field(default_factory=bytearray)
    left: int = 0
    accumulated: int = 0

    def passes(self, frame: memoryview) -> bool:
        return False


class ScannedResponse(ExpectedResponse, ABC):
    """A response that is scanned while it streams. `discarded`: nothing is sent to the client."""

    __slots__ = ()

    discarded: bool

    @abstractmethod
    def arrived(self, frame_bytes: int) -> bool:
        """Its first bytes have arrived. False: it is parked, see `BrokerLink.go_on`."""

    @abstractmethod
    def begin(self) -> FetchResponseScan: ...


class LinkOwner(Protocol):
    """The client session, as the link sees it."""

    def write_to_client(self, data: Buffer) -> None: ...

    def write_pieces(self, pieces: Iterable[Buffer]) -> None: ...

    def responded(self) -> None:
        """One whole response has left. Only called while `tells_responded` is True."""

    def rewrite(self, response: BufferedResponse) -> Payload | None:
        """The new payload, or None: the owner will call `BrokerLink.rewritten`."""

    def link_failed(self, error: WireError) -> None: ...

    def refused_as_too_large(self, limit: str, message: str) -> None: ...

    def give_up(self) -> None:
        """The connection closes at once, as its response takes too much of the memory for all."""

    @property
    def closing(self) -> bool:
        """True: ignore whatever the broker still sends."""

    def link_closed(self, error: Exception | None) -> None: ...

    def broker_slow(self, slow: bool) -> None: ...


@dataclass(eq=False, repr=False)
class BrokerLink(asyncio.BufferedProtocol):
    """The link reads the responses from the broker's socket, in request order.

    A large response goes to the client as it arrives, a small one in one piece. Reading pauses
    while the client is slow, while a response is being rewritten, and while a parked response waits
    for a fetch that wants it.
    """

    _owner: LinkOwner
    _receive: ReceiveBuffer
    _client: asyncio.Transport
    _buffered_bytes_max: int  # of a response that is accumulated; all others pass, however large
    _records: RecordPipe | None = None
    _accumulated: AccumulatedBytes | None = None
    _sockets: tuple[TransportSocket, TransportSocket] | None = None  # to splice between
    takes_requests: bool = True
    address: tuple[str, int] | None = None  # the broker's, as it was dialed
    expected: deque[ExpectedResponse] = field(default_factory=deque)
    transport: asyncio.Transport | None = None
    has_received: bool = False  # since the owner last looked
    tells_responded: bool = False  # the owner waits for responses to leave
    _carry: bytearray = field(default_factory=bytearray)
    _left: int = 0  # bytes still to come of a response that passes
    _scan: FetchResponseScan | None = None
    _scanned: ScannedResponse | None = None  # the response that `_scan` walks
    _buffered: BufferedResponse | None = None
    _waiting: bool = False  # a response is parked or being rewritten
    _client_slow: bool = False
    _goes_on: bool = False  # the next responses are handled in the loop's next turn

    # -- asyncio ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._records is not None:
            source, target = plain_socket(self.transport), plain_socket(self._client)
            self._sockets = (source, target) if source and target else None

    def get_buffer(self, sizehint: int) -> memoryview:
        # asyncio receives before it calls back; bytes that stay in the socket are never copied.
        if self._scan is not None and self._to_splice():
            return self._receive.view[:PEEK_BYTES]
        if self.expected and self.expected[0].walked_slowly:
            return self._receive.view[:WALKED_BYTES]
        return self._receive.view

    def buffer_updated(self, nbytes: int) -> None:
        if self.transport is None or self._owner.closing:
            return  # TLS reads on while it ends, even within close()
        self.has_received = True
        view = self._receive.view[:nbytes]
        if self._carry:
            self._carry += view
            view, self._carry = memoryview(self._carry), bytearray()
        if not self._leaves_whole(view):
            self._take(view)
        self._receive.release(self._client)
        if self._scan is not None and (size := self._to_splice()):
            self._splice(size)

    def pause_writing(self) -> None:
        self._owner.broker_slow(True)

    def resume_writing(self) -> None:
        self._owner.broker_slow(False)

    def connection_lost(self, exc: Exception | None) -> None:
        while self._goes_on:  # the client still gets responses that arrived before the end
            self._take_more()
        self.transport = None
        if self._accumulated is not None:
            self._accumulated.hold(self, 0)
        if len(self._carry) >= 4:
            # Shorter than a response's start: a TLS alert, as the proxy sent plaintext to a TLS
            # port
            size = INT32.unpack_from(self._carry)[0]
            if other_protocol(size) is not None:
                self._owner.link_failed(self._not_a_response(size, 0))
        self._owner.link_closed(exc)

    # -- records ---------------------------------------------------------------------------------
    def _to_splice(self) -> int:
        """Bytes of records that may be spliced to the client; 0 if there are too few."""
        scan, records = self._scan, self._records
        if scan is None or records is None or self._sockets is None:
            return 0
        assert self._scanned is not None
        if self._scanned.discarded or self._client.get_write_buffer_size() or self._owner.closing:
            return 0
        left = scan.records_left
        return left if left >= records.bytes_min else 0

    def _splice(self, size: int) -> None:
        assert self._scan is not None
        assert self._records is not None
        assert self._sockets is not None
        moved = self._records.move(*self._sockets, size)
        self._scan.passed_by(moved.moved_bytes)
        if moved.not_sent:
            self._owner.write_to_client(moved.not_sent)
        RELAYED_BYTES_TO_CLIENT.total += moved.moved_bytes
        SPLICED_BYTES.inc(moved.moved_bytes)

    # -- for the session -------------------------------------------------------------------------
    @property
    def kept_bytes(self) -> int:
        """Bytes of incomplete responses, and of requests that the broker has not taken yet."""
        unsent = 0 if self.transport is None else self.transport.get_write_buffer_size()
        accumulated = 0 if self._buffered is None else self._buffered.accumulated
        return len(self._carry) + HELD_COPIES * accumulated + unsent

    @property
    def waiting_for(self) -> ExpectedResponse | None:
        """The only response that is due, if none of its bytes has come."""
        begun = self._carry or self._left or self._scan is not None or self._buffered is not None
        return self.expected[0] if len(self.expected) == 1 and not begun else None

    def send(self, data: Buffer, response: ExpectedResponse | None) -> None:
        """A whole request, or the first bytes of one."""
        transport = self.transport
        if transport is None:
            return
        if response is not None:
            self.expected.append(response)
        if not transport.is_closing():  # otherwise connection_lost is about to be called
            transport.write(data)

    def client_slow(self, slow: bool) -> None:
        self._client_slow = slow
        self._pace()

    def go_on(self) -> None:
        """A parked response was attached."""
        if self._waiting and self._buffered is None:
            self._waiting = False
            self._take(memoryview(b""))
            self._pace()

    def rewritten(self, payload: Payload) -> None:
        """Send `payload` in place of the response that was given to `LinkOwner.rewrite`."""
        self._waiting = False
        self._leave(payload)
        self._take(memoryview(b""))
        self._pace()

    def _leave(self, payload: Payload) -> None:
        self._buffered = None
        if self._accumulated is not None:
            self._accumulated.hold(self, 0)
        size = sum(map(len, payload))
        self._owner.write_to_client(b"".join((INT32.pack(size), *payload)))
        self._finish()

    # -- responses -------------------------------------------------------------------------------
    def _pace(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if self._waiting or self._client_slow:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _take(self, view: memoryview) -> None:
        if self._carry:
            self._carry += view
            view = memoryview(self._carry)
            self._carry = bytearray()
        if self._owner.closing:
            return
        try:
            rest = self._consume(view) if not self._waiting else 0
        except WireError as error:
            self._owner.link_failed(error)
            return
        if rest < len(view):
            self._carry = bytearray(view[rest:])
        if self._waiting:
            self._pace()

    def _go_on_soon(self) -> None:
        """Continue in the loop's next turn: other connections' responses come first."""
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._take_more)

    def _take_more(self) -> None:
        if self._goes_on:
            self._goes_on = False
            self._take(memoryview(b""))

    def _leaves_whole(self, view: memoryview) -> bool:
        """A shortcut for one whole response that needs no scan, as nearly all of the tail's.

        False: nothing was done. `_take` then reports whatever is wrong with the response.
        """
        if self._left or self._scan is not None or self._buffered is not None or self._waiting:
            return False
        if not self.expected or len(view) < _FRAME_START.size:
            return False
        size, correlation_id = _FRAME_START.unpack_from(view)
        response = self.expected[0]
        if response.correlation_id != correlation_id or size != len(view) - 4:
            return False
        if not response.passes(view):
            return False
        self._owner.write_to_client(view)
        RELAYED_BYTES_TO_CLIENT.total += len(view)
        self._finish()
        response.done()
        return True

    def _consume(self, view: memoryview) -> int:
        """Handle the responses in `view`; returns the position up to which they are handled."""
        pos = emit = 0
        end = len(view)
        write = self._owner.write_to_client
        left = MESSAGES_A_TURN
        while pos < end and not self._waiting:
            if self._left:
                step = min(self._left, end - pos)
                self._left -= step
                pos += step
                if not self._left:
                    self._finish()
                continue
            if self._scan is None and self._buffered is None:
                if not left:
                    self._go_on_soon()
                    break
                left -= 1
                if self._waits_for_the_rest(view, pos) or not self._begin(view, pos):
                    break
                if self._left:
                    continue
            if emit < pos:
                write(view[emit:pos])
            pos = emit = self._feed(view, pos, end)
        if emit < pos:
            write(view[emit:pos])
        RELAYED_BYTES_TO_CLIENT.total += pos
        return pos

    @staticmethod
    def _waits_for_the_rest(view: memoryview, pos: int) -> bool:
        """Too few bytes have arrived, or the rest of a small response comes in a moment.

        Brokers send a response's head and its records separately. A client needs both, and sending
        them separately would cost as much again.
        """
        there = len(view) - pos
        return there < _FRAME_START.size or (
            there < _FRAME_START.unpack_from(view, pos)[0] + 4 <= WHOLE_BYTES_MAX
        )

    def _begin(self, view: memoryview, pos: int) -> bool:
        """The next frame starts at `pos`; False: it must not be taken yet."""
        size, correlation_id = _FRAME_START.unpack_from(view, pos)
        response = self.expected[0] if self.expected else None
        if size < 4 or response is None or response.correlation_id != correlation_id:
            raise self._not_a_response(size, correlation_id)
        if isinstance(response, BufferedResponse) and size > min(
            self._buffered_bytes_max, RESPONSE_BUFFERED_BYTES_MAX
        ):
            raise self._too_large(size)
        if isinstance(response, ScannedResponse):
            if not response.arrived(size + 4):
                self._waiting = True
                return False
            self._scanned = response
            self._scan = response.begin()
        elif isinstance(response, BufferedResponse):
            response.left = size + 4
            self._buffered = response
        else:
            self._left = size + 4
        return True

    def _too_large(self, size: int) -> FrameTooLarge:
        limit, most = "gateway.frame_bytes_max", self._buffered_bytes_max
        if most > RESPONSE_BUFFERED_BYTES_MAX:
            limit, most = "held_bytes_max", RESPONSE_BUFFERED_BYTES_MAX
        message = f"a broker's response of {size} bytes, which the proxy has to read completely"
        message = f"{message}, is larger than {limit} = {most}"
        self._owner.refused_as_too_large(limit, message)
        return FrameTooLarge(message, limit.rpartition(".")[2])

    def _not_a_response(self, size: int, correlation_id: int) -> MalformedMessage:
        if (other := other_protocol(size)) is not None:
            see = ", see cluster.security_protocol" if other == "TLS" else ""
            return MalformedMessage(f"broker speaks {other}{see}")
        if size < 4:
            return MalformedMessage(f"{size} is not the size of a response")
        if not self.expected:
            return MalformedMessage(
                f"the broker sent response {correlation_id}, but there was no request"
            )
        due = self.expected[0].correlation_id
        return MalformedMessage(f"the broker responded to {correlation_id} where {due} was due")

    def _feed(self, view: memoryview, pos: int, end: int) -> int:
        scan, response = self._scan, self._scanned
        if scan is not None and response is not None:
            step = min(scan.left, end - pos)
            pieces = scan.feed(view[pos : pos + step])
            if response.discarded:
                pass
            elif len(pieces) == 1:
                self._owner.write_to_client(pieces[0])
            else:
                self._owner.write_pieces(pieces)
            if scan.done:
                self._scan = self._scanned = None
                self._finish()
                response.done()
            return pos + step
        buffered = self._buffered
        assert buffered is not None
        step = min(buffered.left, end - pos)
        buffered.payload += view[pos : pos + step]
        buffered.accumulated += step
        buffered.left -= step
        if not buffered.left:
            del buffered.payload[:4]
            payload = self._owner.rewrite(buffered)
            if payload is None:
                self._waiting = True
            else:
                self._leave(payload)
        elif self._accumulated is not None:
            self._accumulated.hold(self, HELD_COPIES * buffered.accumulated)
        return pos + step

    def give_up(self) -> None:
        """The response that is being accumulated takes too much memory."""
        if self._buffered is not None:
            self._buffered.payload = bytearray()
        self._owner.give_up()

    def _finish(self) -> None:
        self.expected.popleft()
        if self.tells_responded:
            self._owner.responded()
