"""One client's connection: its requests are answered one after the other, as by a broker.

While a request waits for its answer (a fetch for data, a member for its group), the requests behind
it wait in the socket, so a client holds one request and one answer in memory at most. Limits are
the gateway's: a request must arrive whole within `half_frame_max_ms`; a connection is closed that
is silent for `idle_max_ms`, waits so long for one answer, or takes none of an answer for
`client_stall_max_ms`.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import structlog

from fetchproxy.config.values import is_loopback
from fetchproxy.observability.metrics import (
    ARCHIVE_ONLY_LOGINS,
    ARCHIVE_ONLY_REFUSED,
    ARCHIVE_ONLY_REQUESTS,
    LIMITS_REACHED,
    WIRE_ERRORS,
)
from fetchproxy.serving.admission import ConnectionPace, ConnectionTurn, host_of, payer_of
from fetchproxy.serving.standalone.apis import api_versions, sasl
from fetchproxy.serving.standalone.logins import ANYBODY, NOBODY, Login, LoginRefused, User
from fetchproxy.serving.standalone.parts import ArchiveOnlyParts, Request, RequestRefused
from fetchproxy.serving.standalone.table import served_api
from fetchproxy.serving.transport import is_reset, join_small
from protocol.apis import ApiKey, FrameTooLarge, WireError, is_known
from protocol.headers import REQUEST_HEADER_BYTES_MIN, RequestHead, client_id, peek_request_header
from protocol.primitives import INT32, Buffer

log = structlog.get_logger(__name__)

Address = tuple[str, int]

# What is handed to the socket at once: asyncio copies what it cannot send.
_WRITE_BYTES = 256 * 1024
# Before a client has logged in: the largest token is a user's name with its password.
_LOGIN_REQUEST_BYTES_MAX = 16 * 1024
_LOGIN_MAX_S = 30.0
# At the end a client may take what was written, and its part in ending TLS, for so long.
_CLOSE_MAX_S = 1.0


class _LimitReached(Exception):
    """The key of `gateway` that says how long this may take, or `login_max_s`."""


class _UserGone(Exception):
    """Who has logged in is not in the file of users any more, or with other passwords."""


class Connection:
    """`advertised(local)` is where the client is told to dial, given where it has dialled."""

    def __init__(
        self,
        parts: ArchiveOnlyParts,
        reader: StreamReader,
        writer: StreamWriter,
        advertised: Callable[[Address], Address],
    ) -> None:
        self._parts = parts
        self._config = parts.gateway
        self._limits = parts.limits
        self._payer = payer_of(writer.transport)
        self._pace = ConnectionPace(parts.rates, lambda: self._payer)
        self._turn = ConnectionTurn(parts.turns)
        self._reader = reader
        self._writer = writer
        peer = writer.get_extra_info("peername") or ("unknown", 0)
        local = writer.get_extra_info("sockname") or ("", 0)
        self._client_host = str(peer[0])
        self.client = f"{peer[0]}:{peer[1]}"
        self._host, self._port = advertised((str(local[0]), int(local[1])))
        self._login: Login | None = None
        if parts.logins is not None:
            tls = writer.get_extra_info("sslcontext") is not None
            secret_path = tls or is_loopback(str(local[0]))
            self._login = Login(parts.logins, host_of(self._client_host), secret_path)
            self._login_until = asyncio.get_running_loop().time() + _LOGIN_MAX_S
        self._ended = False  # when the answer under way has been written
        writer.transport.set_write_buffer_limits(high=parts.limits.buffer_bytes_max)

    async def serve(self) -> None:
        """Until either side ends it. Raises nothing that a client could cause."""
        try:
            while await self._serve_next():
                pass
            await self._flush()
        except _LimitReached as limit:
            LIMITS_REACHED.labels(str(limit)).inc()
            self._log_closed(str(limit))
        except WireError as error:
            WIRE_ERRORS.labels(type(error).__name__).inc()
            if isinstance(error, FrameTooLarge):
                LIMITS_REACHED.labels("request_bytes_max").inc()
            self._log_closed("wire_error", error=str(error), kind=type(error).__name__)
        except RequestRefused as refusal:
            ARCHIVE_ONLY_REFUSED.labels(refusal.api).inc()
            self._log_closed(
                "request_refused", kind=refusal.api, version=refusal.version, hint=refusal.hint
            )
        except _UserGone as gone:
            self._log_closed("user_changed", user=str(gone))
        except OSError as error:
            log.debug("client_gone", client=self.client, error=str(error))
        finally:
            await self._close()

    async def _serve_next(self) -> bool:
        """False where the client has gone. Keeps neither request nor answer for the next one."""
        payload = await self._next_request()
        if payload is None:
            return False
        request = self._request(payload)
        del payload
        try:
            # Also a broker closes a connection on which nothing has moved for so long.
            async with self._within("idle_max_ms", self._config.idle_max_ms):
                pieces = await self._answer(request)
            with self._parts.answers.taking(pieces) as pieces:
                await self._send(pieces)
        finally:
            self._turn.give_back()
        del request, pieces
        await self._pace.pause()
        return not self._ended

    @property
    def reset_unheard(self) -> bool:
        """The client is gone, and nothing is read from it, so that asyncio has not said so."""
        transport = cast(asyncio.Transport, self._writer.transport)
        return not transport.is_closing() and not transport.is_reading() and is_reset(transport)

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _flush(self) -> None:
        """Until a client that has ended its sending has all. Raises OSError, _LimitReached."""
        self._writer.transport.set_write_buffer_limits(high=0)
        async with self._within("client_stall_max_ms", self._limits.client_stall_max_ms):
            await self._writer.drain()

    async def _close(self) -> None:
        """What was written may still leave, for a short while."""
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_MAX_S):
                await self._writer.wait_closed()
        except OSError:  # a TimeoutError is one
            self._writer.transport.abort()

    @asynccontextmanager
    async def _within(self, limit: str, max_ms: int) -> AsyncIterator[None]:
        """Raises _LimitReached with the limit's name where that time is over."""
        try:
            async with asyncio.timeout(max_ms / 1000):
                yield
        except TimeoutError:
            raise _LimitReached(limit) from None

    def _log_closed(self, reason: str, **context: object) -> None:
        about = (self._client_host, reason, context.get("kind"), context.get("user"))
        self._parts.warn(
            "client_connection_closed", about, client=self.client, reason=reason, **context
        )

    # --- requests ---------------------------------------------------------------------------------

    async def _next_request(self) -> bytes | None:
        """Without size prefix; None where the client has gone. Raises FrameTooLarge."""
        try:
            async with self._within("idle_max_ms", self._config.idle_max_ms), self._login_time():
                begin = await self._reader.readexactly(1)
            async with self._within("half_frame_max_ms", self._limits.half_frame_max_ms):
                size = INT32.unpack(begin + await self._reader.readexactly(3))[0]
                largest = self._limits.request_bytes_max
                if self._logs_in:
                    largest = min(largest, _LOGIN_REQUEST_BYTES_MAX)
                if not REQUEST_HEADER_BYTES_MIN <= size <= largest:
                    raise FrameTooLarge(
                        f"size prefix {size} is not within {REQUEST_HEADER_BYTES_MIN} … {largest}"
                    )
                return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            return None

    def _request(self, payload: bytes) -> Request:
        """Raises WireError."""
        head = peek_request_header(payload)
        return Request(
            head,
            payload,
            client_id(payload, head),
            self._client_host,
            self._user(),
            self._pace,
            self._turn,
            self._host,
            self._port,
        )

    async def _answer(self, request: Request) -> Sequence[Buffer]:
        login, key = self._login, request.head.api_key
        if login is not None and login.user is None and key != ApiKey.API_VERSIONS:
            return await self._log_in(login, request)
        api = served_api(request.head)
        if api is None:
            return self._refuse(request.head)
        ARCHIVE_ONLY_REQUESTS.labels(api.key.name).inc()
        return await api.answer(self._parts, request)

    # --- login ------------------------------------------------------------------------------------

    @property
    def _logs_in(self) -> bool:
        return self._login is not None and self._login.user is None

    @asynccontextmanager
    async def _login_time(self) -> AsyncIterator[None]:
        """Raises _LimitReached where a client that has to log in has not."""
        if not self._logs_in:
            yield
            return
        try:
            async with asyncio.timeout_at(self._login_until):
                yield
        except TimeoutError:
            raise _LimitReached("login_max_s") from None

    def _user(self) -> User:
        """Whose request comes now. Raises _UserGone."""
        if self._login is None or self._parts.logins is None:
            return ANYBODY
        if self._login.user is None:
            return NOBODY
        user = self._parts.logins.still(self._login.user)
        if user is None:
            raise _UserGone(self._login.user.name)
        return user

    async def _log_in(self, login: Login, request: Request) -> Sequence[Buffer]:
        """Raises RequestRefused, WireError, _LimitReached."""
        key = request.head.api_key
        if key == ApiKey.SASL_HANDSHAKE:
            pieces, goes_on = sasl.handshake(login, request)
            self._ended = not goes_on
            return pieces
        if key != ApiKey.SASL_AUTHENTICATE:
            name = ApiKey(key).name if is_known(key) else "unknown"
            raise RequestRefused(name, request.version, "clients log in first (SASL)")
        try:
            async with self._login_time():
                pieces = await sasl.authenticate(login, request)
        except LoginRefused as refused:
            self._ended = True
            ARCHIVE_ONLY_LOGINS.labels("refused").inc()
            self._log_closed("login_refused", kind=str(refused), user=refused.user)
            return sasl.refusal(request, login.mechanism)
        if login.user is not None:
            self._payer = f"User:{login.user.name}"
            ARCHIVE_ONLY_LOGINS.labels("accepted").inc()
        return pieces

    def _refuse(self, head: RequestHead) -> Sequence[Buffer]:
        """Raises RequestRefused: like a broker, which closes on what it does not know."""
        key = head.api_key
        if key == ApiKey.API_VERSIONS and head.api_version > api_versions.HIGHEST:
            return api_versions.too_new(head)
        name = ApiKey(key).name if is_known(key) else "unknown"
        raise RequestRefused(name, head.api_version, "not answered in archive-only mode")

    # --- answers ----------------------------------------------------------------------------------

    async def _send(self, pieces: Sequence[Buffer]) -> None:
        """Raises OSError, _LimitReached."""
        for piece in join_small(pieces):
            view = memoryview(piece)
            for start in range(0, len(view), _WRITE_BYTES):
                self._writer.write(view[start : start + _WRITE_BYTES])
                async with self._within("client_stall_max_ms", self._limits.client_stall_max_ms):
                    await self._writer.drain()
