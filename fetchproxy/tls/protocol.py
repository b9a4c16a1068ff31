"""TLS over a transport, with a few KiB of memory for each connection. It is asyncio's own TLS.

asyncio gives each connection a receive buffer of 256 KiB. OpenSSL's buffers between the socket and
the cipher (BIO) grow to the largest amount that was ever in them, and never shrink. Both would be
half a MiB for each side of a connection that relays records. Here all connections of a loop share
one receive buffer, and bytes pass through OpenSSL's buffers in pieces of about one TLS record.

asyncio has no other place to change this, so the class overrides methods that its documentation
does not name. `tests/tls/test_tls_memory.py` notices if a new Python has others.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from typing import Any, cast

from fetchproxy.config.schema import KiB

# Received from the socket at a time, for all connections of a loop.
RECEIVE_BYTES = 256 * KiB
# Bytes in OpenSSL's buffers at a time. A TLS record has at most 16 KiB.
PIECE_BYTES = 16 * KiB
# Given to the socket's transport at a time: a system call costs as much as copying 32 KiB.
WRITTEN_BYTES = 256 * KiB
# Received bytes that wait until the protocol above reads again. A whole record has to fit.
PENDING_BYTES_MAX = 32 * KiB
# Encrypted bytes that wait in the socket's transport; further ones wait unencrypted. It has to be
# below the limit of the protocol above, which is paused by the sum of both.
ENCRYPTED_BYTES_MAX = 32 * KiB

_WRAPPED = sslproto.SSLProtocolState.WRAPPED
_AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)
# Any: typeshed knows few of its methods.
_SSLProtocol: Any = sslproto.SSLProtocol


class TlsProtocol(_SSLProtocol):  # type: ignore[misc]
    """`receive` is the loop's receive buffer: asyncio fills it and hands it back in one step.

    `waiter` gets the failure of the handshake. If it succeeds, `app.connection_made` is called.
    """

    max_size = 0  # asyncio makes a buffer of this size for each connection

    def __init__(
        self,
        receive: memoryview,
        app: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        waiter: asyncio.Future[None],
        handshake_max_s: float,
        server_hostname: str | None = None,
    ) -> None:
        """`server_hostname`: None at the server's side."""
        super().__init__(
            asyncio.get_running_loop(),
            app,
            context,
            waiter,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
            ssl_handshake_timeout=handshake_max_s,
        )
        self.max_size = len(receive)
        self._receive = receive
        self._set_read_buffer_limits(PENDING_BYTES_MAX)

    @property
    def app_transport(self) -> asyncio.Transport:
        """For `app`. Ask before the connection is lost."""
        return cast(asyncio.Transport, self._app_transport)

    def connection_made(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(ENCRYPTED_BYTES_MAX)
        super().connection_made(transport)

    # -- receiving -------------------------------------------------------------------------------
    @property
    def _reads_at_once(self) -> bool:
        """The protocol above takes what arrives now."""
        return self._state is _WRAPPED and self._app_protocol_is_buffer and not (
            self._app_reading_paused
        )  # fmt: skip

    def get_buffer(self, sizehint: int) -> memoryview:
        """As much as the protocol above takes at once: more would stay in OpenSSL's buffer."""
        room = len(self._app_protocol_get_buffer(sizehint)) if self._reads_at_once else 0
        return self._receive[: max(room, PIECE_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes > PIECE_BYTES:
            self._read_in_pieces(self._receive[:nbytes])
            nbytes = 0
        self._ssl_buffer_view = self._receive
        super().buffer_updated(nbytes)

    def _read_in_pieces(self, received: memoryview) -> None:
        """Decrypt piece by piece into the buffer of the protocol above, and call it once."""
        buffer = self._app_protocol_get_buffer(-1)
        position, copied, size = 0, 0, len(buffer)
        read = self._sslobj.read
        while position < len(received):
            self._incoming.write(received[position : position + PIECE_BYTES])
            position += PIECE_BYTES
            try:
                while copied < size and (count := read(size - copied, buffer[copied:])):
                    copied += count
            except _AGAIN:
                continue
            break  # the buffer is full, or the other side has ended TLS
        if position < len(received):
            self._incoming.write(received[position:])
        if copied:
            self._app_protocol_buffer_updated(copied)

    # -- sending ---------------------------------------------------------------------------------
    def _write_appdata(self, list_of_data: Any) -> None:
        super()._write_appdata(list_of_data)
        waiting = self._write_backlog
        for index, data in enumerate(waiting):
            if isinstance(data, memoryview):  # a small rest would keep a large buffer in memory
                waiting[index] = bytes(data)

    def _do_write(self) -> None:
        """Encrypt what waits while the socket takes it. If the connection is about to end, encrypt
        all, because nothing can follow its last record.
        """
        waiting = self._write_backlog
        try:
            while waiting and not (self._ssl_writing_paused and self._state is _WRAPPED):
                self._write_some(memoryview(waiting.popleft()))
        except _AGAIN:
            pass
        self._process_outgoing()

    def _write_some(self, data: memoryview) -> None:
        position, end = 0, min(len(data), WRITTEN_BYTES)
        pieces = []
        try:
            while position < end:
                position += self._sslobj.write(data[position : min(position + PIECE_BYTES, end)])
                pieces.append(self._outgoing.read())
        finally:
            self._write_buffer_size -= position
            if position < len(data):
                self._write_backlog.appendleft(data[position:])
            if pieces:
                self._transport.write(b"".join(pieces))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_backlog:
            self._do_write()

    def _get_write_buffer_size(self) -> int:
        encrypted = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return int(super()._get_write_buffer_size() + encrypted)
