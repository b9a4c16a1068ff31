"""One end of a simulated connection: asyncio's transport above, TCP's rules below.

It behaves as asyncio's transports do: bytes in order, a bounded window, FIN, and RST if data went
unread. As in Python 3.12 and later, it keeps unsent data as the caller's view, not as a copy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from network import Address, Connection

_FIN = object()
_RST = object()
_ASYNCIO_HIGH_WATER = 64 * 1024


class SimulatedTransport(asyncio.Transport):
    def __init__(
        self,
        connection: Connection,
        protocol: asyncio.BaseProtocol,
        local: Address,
        remote: Address,
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self._connection = connection
        self._network = connection.network
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self.peer: SimulatedTransport = self  # until both ends are made
        # sending
        self._buffer: deque[memoryview] = deque()
        self._buffered = 0
        self._high, self._low = _ASYNCIO_HIGH_WATER, _ASYNCIO_HIGH_WATER // 4
        self._writing_paused = False
        self._flush_due = False
        self.unacknowledged = 0
        self.wire: deque[bytes | object] = deque()  # pieces in flight to the peer
        self.last_arrival = 0.0
        # receiving
        self._inbox = bytearray()
        self._end: object | None = None  # FIN or RST, after the bytes of the inbox
        self._reading = False
        self._delivery_due = False
        self._closing = False
        self._eof_due = self._eof_sent = False
        self._done = False  # nothing is sent or received any more
        self.lost = False  # the protocol has been told

    def made(self) -> None:
        def connected() -> None:
            if self.lost:
                return
            self._protocol.connection_made(self)
            self._reading = True
            self._deliver_soon()

        self._loop.call_soon(connected)

    # -- asyncio.Transport -----------------------------------------------------------------------
    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        if self.is_reading():
            self._network.pauses += 1
            self._reading = False

    def resume_reading(self) -> None:
        if not self._closing and not self._reading:
            self._reading = True
            self._deliver_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _ASYNCIO_HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low
        self._pause_writing_if_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_due = True
        if not self._buffer:
            self._send_eof()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"cannot write a {type(data).__name__}")
        view = memoryview(data).cast("B")
        if self._done or not view:
            return
        if not self._buffer and self._network.conditions.sends_at_once:
            view = view[self._send(view) :]
            if not view:
                return
        self._buffer.append(view)
        self._buffered += len(view)
        self._flush_soon()
        self._pause_writing_if_full()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if not self._buffer:
            self._finish()

    def abort(self) -> None:
        if not self._done:
            self._put_on_wire(_RST)
            self.fail(None)

    # -- ending ----------------------------------------------------------------------------------
    def _finish(self) -> None:
        """All is sent: send FIN, or RST if data is left unread, as TCP does."""
        if not self._done:
            if self._inbox:
                self._put_on_wire(_RST)
            else:
                self._send_eof()
            self._lose(None)

    def _send_eof(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self._put_on_wire(_FIN)

    def fail(self, error: Exception | None) -> None:
        if self._done:
            return
        self._buffer.clear()
        self._buffered = 0
        self._closing = True
        self._reading = False
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        self._done = True
        self._loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        self.lost = True
        try:
            self._protocol.connection_lost(error)
        finally:
            self._connection.ended()

    def _crash(self, where: str, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": f"protocol.{where} failed", "exception": error, "transport": self}
        )
        self._put_on_wire(_RST)
        self.fail(error)

    # -- sending ---------------------------------------------------------------------------------
    def _send(self, view: memoryview) -> int:
        """Send as much as the window takes; return the number of bytes."""
        taken = min(len(view), self._connection.window - self.unacknowledged)
        if taken <= 0:
            return 0
        self.unacknowledged += taken
        at = 0
        for size in self._network.cuts(taken):
            self._put_on_wire(bytes(view[at : at + size]))
            at += size
        return taken

    def _put_on_wire(self, piece: bytes | object) -> None:
        self.wire.append(piece)
        latency_s = (self._connection.latency_s + self._network.latency()) / 2
        self.last_arrival = max(self.last_arrival, self._loop.time() + latency_s)
        # The first timer to fire takes the first piece: timers of one instant have no order.
        self._loop.call_at(self.last_arrival, self._arrive)

    def _arrive(self) -> None:
        if not self.wire:
            return  # the connection was reset
        piece = self.wire.popleft()
        self._network.pieces += 1
        self.peer.arrived(piece)

    def acknowledged(self, size: int) -> None:
        self.unacknowledged -= size
        self._flush()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        while self._buffer:
            view = self._buffer[0]
            bytes_sent = self._send(view)
            self._buffered -= bytes_sent
            if bytes_sent < len(view):
                self._buffer[0] = view[bytes_sent:]
                break
            self._buffer.popleft()
        if self._writing_paused and self._buffered <= self._low:
            self._writing_paused = False
            self._call("resume_writing")
        if self._eof_due and not self._buffer:
            self._send_eof()
        if self._closing and not self._buffer:
            self._finish()

    def _pause_writing_if_full(self) -> None:
        if self._buffered > self._high and not self._writing_paused:
            self._writing_paused = True
            self._call("pause_writing")

    def _call(self, name: str) -> None:
        try:
            getattr(self._protocol, name)()
        except Exception as error:  # noqa: BLE001 - as asyncio: whatever a protocol raises
            self._loop.call_exception_handler(
                {"message": f"protocol.{name} failed", "exception": error, "transport": self}
            )

    # -- receiving -------------------------------------------------------------------------------
    def arrived(self, piece: bytes | object) -> None:
        if self._done:
            if isinstance(piece, bytes):  # the receiver is gone
                self._put_on_wire(_RST)
            return
        if isinstance(piece, bytes):
            self._inbox += piece
        else:
            self._end = piece
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self._reading and not self._delivery_due and (self._inbox or self._end is not None):
            self._delivery_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivery_due = False
        if not self._reading or self._done:
            return
        if self._inbox:
            self._deliver_bytes()
        elif self._end is _RST:
            self.fail(ConnectionResetError(104, "connection reset by peer"))
        elif self._end is _FIN:
            self._end = None
            try:
                keep_open = cast(asyncio.Protocol, self._protocol).eof_received()
            except Exception as error:  # noqa: BLE001 - as asyncio: whatever a protocol raises
                self._crash("eof_received", error)
                return
            if not keep_open:
                self.close()
        self._deliver_soon()

    def _deliver_bytes(self) -> None:
        try:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                buffer = memoryview(self._protocol.get_buffer(-1))
                size = min(len(buffer), len(self._inbox))
                if not size:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                buffer[:size] = self._inbox[:size]
                self._read(size)
                self._protocol.buffer_updated(size)
            else:
                data = bytes(self._inbox)
                self._read(len(data))
                cast(asyncio.Protocol, self._protocol).data_received(data)
        except Exception as error:  # noqa: BLE001 - as asyncio: whatever a protocol raises
            self._crash("buffer_updated", error)

    def _read(self, size: int) -> None:
        del self._inbox[:size]
        self._loop.call_later(self._network.latency(), self.peer.acknowledged, size)
