"""The proxy's own connections to brokers: each connection, its login, and the pool of open ones."""

from __future__ import annotations

import asyncio
import binascii
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.headers import request_header
from fetchproxy_protocol.primitives import INT32
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from fetchproxy.brokers import messages
from fetchproxy.brokers.sasl import SaslCredentials
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.config.values import HostPort
from fetchproxy.errors import AuthenticationRefused, ClusterUnavailable
from fetchproxy.runtime.heap import uninitialised
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.tls.dial import dial
from fetchproxy.tls.handshake_errors import handshake_error_in_words, other_protocol
from fetchproxy.tls.reloading import ReloadingContext

_SIZE_BYTES = 4
_CORRELATION_ID_BYTES = 4
# client.id of the proxy's own requests: brokers log it, and a quota may name it.
CLIENT_ID = "fetchproxy"
# The session is renewed after this share of its life, the earliest point of Kafka's own client.
_RENEW_AFTER_SHARE = 0.85
# Brokers refuse to re-authenticate a connection within a second of the last time.
_RENEWALS_APART_MIN_S = 1.0


def _software_version() -> str:
    try:
        return version("fetchproxy")
    except PackageNotFoundError:  # run from a checkout without installation
        return "0"


SOFTWARE_VERSION = _software_version()


def _wrong_size(size: int, bytes_max: int) -> str:
    if (other := other_protocol(size)) is not None:
        see = ", see cluster.security_protocol" if other == "TLS" else ""
        return f"it speaks {other}{see}"
    if size > bytes_max:
        return f"response of {size} bytes is larger than cluster.frame_bytes_max = {bytes_max}"
    return f"{size} is not the size of a response"


class BrokerConnection(asyncio.BufferedProtocol):
    """One TCP connection: framing, correlation ids, versions. Requests are pipelined; Kafka answers
    them in order. Each response is received into a buffer of its own size, without a copy.
    """

    def __init__(self, address: HostPort, config: ClusterConfig) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self._config = config
        self._transport: asyncio.Transport | None = None
        self._closed_by: ClusterUnavailable | None = None
        self._pending: deque[tuple[int, asyncio.Future[memoryview]]] = deque()  # by correlation id
        self._correlation_id = 0
        self._size = bytearray(_SIZE_BYTES)
        self._frame: bytearray | None = None  # None: the size prefix is being received
        self._received = 0
        self._credentials: SaslCredentials | None = None  # set if the session expires
        self._renew_at = float("inf")  # loop seconds
        self._renewals = SingleFlight[None]()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._closed_by is None

    # --- asyncio's side ---
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # always a Transport for TCP

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._size if self._frame is None else self._frame
        return memoryview(target)[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._frame is None:
            if self._received == _SIZE_BYTES:
                self._begin_frame(INT32.unpack(self._size)[0])
        elif self._received == len(self._frame):
            frame, self._frame, self._received = self._frame, None, 0
            self._take_response(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"connection lost: {exc}" if exc else "connection closed by the broker")

    # --- our side ---
    async def call(self, message: Any, response: Any, extra_ms: int = 0) -> Any:
        """Send one of kafka-python's requests in the highest version that both sides speak.

        Returns the response as class `response`. Raises as `send`; ClusterError if it is malformed.
        """
        # `Any`: kafka-python makes its message classes at import time, without types for mypy.
        await self._renew_if_due()
        return await self.ask(message, response, extra_ms)

    async def ask(self, message: Any, response: Any, extra_ms: int = 0) -> Any:
        """As `call`, but also during an authentication."""
        key, version = message.API_KEY, self.version_of(message.API_KEY)
        body = message.encode(version=version)
        [payload] = await self._exchange(key, version, [body], extra_ms)
        return messages.body_of(response, payload, version)

    async def send(
        self, api_key: int, version: int, bodies: Sequence[bytes], extra_ms: int = 0
    ) -> list[memoryview]:
        """Send these bodies as requests at once. Returns the responses in order, without size
        prefix.

        Raises ClusterUnavailable after request_max_ms + `extra_ms` (the time that the broker itself
        was told to wait), and if the connection is lost.
        """
        await self._renew_if_due()
        return await self._exchange(api_key, version, bodies, extra_ms)

    async def _exchange(
        self, api_key: int, version: int, bodies: Sequence[bytes], extra_ms: int
    ) -> list[memoryview]:
        responses = [self._send(api_key, version, body) for body in bodies]
        try:
            async with asyncio.timeout((self._config.request_max_ms + extra_ms) / 1000):
                return [await response for response in responses]
        except TimeoutError:
            # A broker that answers later looks the same as one that is gone.
            self._fail(f"no response within {self._config.request_max_ms + extra_ms} ms")
            raise self._unavailable("no response in time") from None
        finally:
            for response in responses:
                if response.done() and not response.cancelled():
                    response.exception()  # seen: all fail together, and one was raised
                else:
                    response.cancel()

    async def negotiate(self) -> None:
        """Learn the broker's versions by ApiVersions 3, or 0 if the broker lacks 3 (KIP-511)."""
        for api_version in (3, 0):
            request = ApiVersionsRequest(
                client_software_name="fetchproxy", client_software_version=SOFTWARE_VERSION
            )
            body = request.encode(version=api_version)
            [payload] = await self.send(ApiKey.API_VERSIONS, api_version, [body])
            error_code, versions = messages.decode_api_versions(payload, api_version)
            if error_code == 0:
                self.versions = versions
                return
            if error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
        raise self._unavailable(f"ApiVersions: error {error_code}")

    async def authenticate(self, credentials: SaslCredentials) -> None:
        """Authenticate now, and again whenever the session is about to end.

        Raises AuthenticationRefused and ClusterUnavailable, and closes the connection then.
        """
        try:
            lifetime_ms = await self._log_in(credentials)
        except BaseException as error:  # left in the middle: no other request is possible
            if isinstance(error, AuthenticationRefused):
                credentials.note_refusal(error)
            self.close()
            raise
        credentials.note_success()
        now = asyncio.get_running_loop().time()
        if lifetime_ms > 0:
            after_s = max(_RENEW_AFTER_SHARE * lifetime_ms / 1000, _RENEWALS_APART_MIN_S)
            self._renew_at, self._credentials = now + after_s, credentials

    async def _renew_if_due(self) -> None:
        """Called before each request. Requests that come during a renewal wait here, because
        brokers close a connection that sends other requests in between.
        """
        credentials = self._credentials
        if credentials is not None and asyncio.get_running_loop().time() >= self._renew_at:
            await self._renewals.run("renewal", lambda: self.authenticate(credentials))

    async def _log_in(self, credentials: SaslCredentials) -> int:
        """The session's lifetime in ms; 0: the session does not expire (KIP-368)."""
        exchange, mechanism = await credentials.exchange(), credentials.mechanism

        def refused(why: str, error_code: int | None = None) -> AuthenticationRefused:
            message = f"broker {self.address}: {credentials.identity_text}: {why}"
            return AuthenticationRefused(message, error_code)

        request = SaslHandshakeRequest(mechanism=mechanism)
        handshake = await self.ask(request, SaslHandshakeResponse)
        code = handshake.error_code
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            mechanisms = ", ".join(handshake.mechanisms) or "none"
            raise refused(f"the broker has no {mechanism} (it has {mechanisms})", code)
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            raise refused("the broker's listener has no SASL, or not at this point", code)
        if code:
            raise refused(f"error {code}", code)
        lifetime_ms = 0
        while not exchange.is_done():
            request = SaslAuthenticateRequest(auth_bytes=exchange.auth_bytes())
            response = await self.ask(request, SaslAuthenticateResponse)
            if response.error_code:
                raise refused(response.error_message or "refused", response.error_code)
            try:
                # SCRAM hashes the password thousands of times here.
                await asyncio.to_thread(exchange.receive, bytes(response.auth_bytes))
            except AuthenticationRefused as error:
                raise refused(str(error)) from None
            except (ValueError, KeyError, binascii.Error, UnicodeDecodeError) as error:
                raise refused(
                    f"the broker's response is malformed: {type(error).__name__}"
                ) from None
            lifetime_ms = response.session_lifetime_ms or 0
        if not exchange.is_authenticated():
            raise refused("the broker's last response does not end the exchange")
        return lifetime_ms

    def version_of(self, api_key: int) -> int:
        return messages.pick_version(api_key, self.versions)

    def close(self) -> None:
        self._fail("closed")

    def _send(self, api_key: int, version: int, body: bytes) -> asyncio.Future[memoryview]:
        if self._transport is None or self._closed_by is not None:
            raise self._closed_by or self._unavailable("not connected")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        response = asyncio.get_running_loop().create_future()
        self._pending.append((self._correlation_id, response))
        header = request_header(api_key, version, self._correlation_id, CLIENT_ID)
        size = INT32.pack(len(header) + len(body))
        self._transport.write(b"".join((size, header, body)))
        return response

    def _begin_frame(self, size: int) -> None:
        if not _CORRELATION_ID_BYTES <= size <= self._config.frame_bytes_max:
            self._fail(_wrong_size(size, self._config.frame_bytes_max))
            size = _CORRELATION_ID_BYTES  # holds any bytes that come before the transport is closed
        self._frame, self._received = uninitialised(size), 0

    def _take_response(self, frame: bytearray) -> None:
        if self._closed_by is not None:
            return
        correlation_id = INT32.unpack_from(frame)[0]
        if not self._pending or self._pending[0][0] != correlation_id:
            self._fail(f"response with correlation id {correlation_id} to no request")
            return
        _, response = self._pending.popleft()
        if not response.done():  # else its caller has left
            response.set_result(memoryview(frame))

    def _fail(self, why: str) -> None:
        if self._closed_by is not None:
            return
        self._closed_by = self._unavailable(why)
        if self._transport is not None:
            self._transport.abort()
        while self._pending:
            _, response = self._pending.popleft()
            if not response.done():
                response.set_exception(self._unavailable(why))

    def _unavailable(self, why: str) -> ClusterUnavailable:
        return ClusterUnavailable(f"broker {self.address}: {why}")


@dataclass(eq=False, repr=False)
class BrokerConnections:
    """Short requests share one connection per broker. A fetch may wait in the broker, and Kafka
    answers a connection in order, so each fetch has an exclusive connection while it lasts.
    """

    _config: ClusterConfig
    _sasl: SaslCredentials | None = None
    _tls: ReloadingContext | None = None
    _shared: dict[HostPort, BrokerConnection] = field(default_factory=dict)
    _connecting: SingleFlight[BrokerConnection] = field(default_factory=SingleFlight)
    _idle: dict[HostPort, list[BrokerConnection]] = field(default_factory=dict)
    _in_use: set[BrokerConnection] = field(default_factory=set)

    async def shared(self, address: HostPort) -> BrokerConnection:
        """Raises ClusterUnavailable."""
        connection = self._shared.get(address)
        if connection is not None and connection.is_open:
            return connection
        return await self._connecting.run(address, lambda: self._open_shared(address))

    @asynccontextmanager
    async def exclusive(self, address: HostPort) -> AsyncIterator[BrokerConnection]:
        """A connection that no other task uses inside the block. Raises ClusterUnavailable.

        A connection left in the middle of a response (an error, a cancellation) is closed.
        """
        connection = self._take_idle(address) or await self._connect(address)
        self._in_use.add(connection)
        clean = False
        try:
            yield connection
            clean = True
        finally:
            self._in_use.discard(connection)
            if clean and connection.is_open:
                self._idle.setdefault(address, []).append(connection)
            else:
                connection.close()

    def retain(self, addresses: Collection[HostPort]) -> None:
        """Close the shared and idle connections to all brokers that are not in `addresses`."""
        for address in [a for a in self._idle if a not in addresses]:
            for connection in self._idle.pop(address):
                connection.close()
        for address in [a for a in self._shared if a not in addresses]:
            self._shared.pop(address).close()

    def close(self) -> None:
        self.retain(())
        for connection in self._in_use:
            connection.close()

    async def _open_shared(self, address: HostPort) -> BrokerConnection:
        connection = await self._connect(address)
        self._shared[address] = connection
        return connection

    async def _connect(self, address: HostPort) -> BrokerConnection:
        """Raises ClusterUnavailable within connect_max_ms (plus request_max_ms for a token), and
        AuthenticationRefused.
        """
        if self._sasl is not None:
            await self._sasl.prepare()
        try:
            async with asyncio.timeout(self._config.connect_max_ms / 1000):
                _, connection = await dial(
                    lambda: BrokerConnection(address, self._config),
                    address.host,
                    address.port,
                    self._tls,
                )
                try:
                    await connection.negotiate()
                    if self._sasl is not None:
                        await connection.authenticate(self._sasl)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError:
            raise ClusterUnavailable(f"broker {address}: no connection in time") from None
        except OSError as error:
            raise ClusterUnavailable(
                f"broker {address}: {handshake_error_in_words(error)}"
            ) from None
        return connection

    def _take_idle(self, address: HostPort) -> BrokerConnection | None:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()  # the last one used, so that the others fall idle and close
            if connection.is_open:
                return connection
        return None
