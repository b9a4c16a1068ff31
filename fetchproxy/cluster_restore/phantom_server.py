"""The port at which brokers reach the phantoms.

While a phantom is alive, every client of the cluster sees it as a broker and may connect to it. Its
connection is passed on, byte for byte, to a real broker; only the fetchers of brokers are answered
here. All phantoms share the port: a request names partitions, not the broker that it is meant for.

If the listener has SASL, a broker logs in first, and names no client id until then: a client always
does. Its login is passed on to the real broker with all the rest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import structlog
from fetchproxy_protocol import list_offsets, offset_for_leader_epoch
from fetchproxy_protocol.apis import ApiKey, ErrorCode, WireError
from fetchproxy_protocol.fetch import FetchRequest, request_in_steps
from fetchproxy_protocol.headers import RequestHead, peek_request_header
from fetchproxy_protocol.inter_broker import (
    API_VERSIONS_RESPONSE,
    LIST_OFFSETS_RESPONSE,
    OFFSET_FOR_LEADER_EPOCH_RESPONSE,
)
from fetchproxy_protocol.messages import MessageFields, Structure, write_response
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.cluster_restore.accepted_connections import CONNECTIONS_MAX, AcceptedConnections
from fetchproxy.cluster_restore.archived_records import NoRecords, RecordSource
from fetchproxy.cluster_restore.client_relay import RealBroker, pass_on
from fetchproxy.cluster_restore.led_partitions import LedPartitions
from fetchproxy.cluster_restore.phantom_security import (
    BROKER_LOGIN_VERSIONS,
    BrokerLogin,
    PhantomSecurity,
    logins_of,
)
from fetchproxy.config.values import HostPort
from fetchproxy.errors import FetchProxyError
from fetchproxy.runtime.cooperative import at_once, collected, in_steps
from fetchproxy.serving.archive_only.logins import Logins

log = structlog.get_logger(__name__)

# What a follower uses, by metadata.version 3.3 and later ones.
_OFFERED = {
    ApiKey.FETCH: (12, 18),
    ApiKey.LIST_OFFSETS: (6, 11),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (4, 4),
}
_FETCHER = re.compile(rb"broker-\d+-fetcher-\d+")
_SIZE_BYTES = 4
# A request up to a fetcher's name, which is short. What has a longer beginning is no fetcher's.
_BEGINNING_BYTES_MAX = 128
# Of a fetcher: 50,000 partitions, the most of one request.
_FRAME_BYTES_MAX = 4 << 20
# Of all fetchers together, while they arrive: sixteen of the largest. They try again.
_ARRIVING_BYTES_MAX = 64 << 20
# Of a connection until its first request has begun, and of each request from then on.
_HALF_FRAME_MAX_S = 30.0
# Of records in one response; a follower asks for 10 MiB (replica.fetch.response.max.bytes).
_RECORDS_BYTES_MAX = 16 << 20
# A follower that hears no news would ask again at once.
_IDLE_MAX_S = 0.1
# A broker may fetch from a topic before the phantom has heard that the topic is created.
_TOPIC_WAIT_MAX_S = 2.0
_TOPIC_LOOK_S = 0.02


class PhantomServer:
    """`relay`: for connections that are not a fetcher's; None: no client comes, so they are closed.
    `say` hears why brokers cannot log in, each reason once.
    """

    def __init__(
        self,
        led: LedPartitions,
        relay: RealBroker | None,
        records: RecordSource = NoRecords(),  # noqa: B008 - it has no state
        security: PhantomSecurity = PhantomSecurity(),  # noqa: B008 - frozen
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._led = led
        self._relay = relay
        self._records = records
        self._security = security
        self._say = say
        self._fetchers = 0
        self._arriving_bytes = 0
        # No newer connection ends a fetcher's: of those there is one for each broker and
        # `num.replica.fetchers`.
        self._connections = AcceptedConnections(self._serve, "the brokers")
        self._refusals: set[str] = set()
        self._logins: Logins | None = None

    @property
    def has_fetchers(self) -> bool:
        return self._fetchers > 0

    @asynccontextmanager
    async def listening(self, address: HostPort) -> AsyncIterator[int]:
        """Serves inside the block. The port on which it listens. Raises ConfigError."""
        users = self._security.users
        self._logins = None if users is None else logins_of(users)
        try:
            async with self._connections.at(address, self._security.context) as port:
                yield port
        finally:
            if self._logins is not None:
                self._logins.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The records' source tells its errors to the restore itself.
        with suppress(OSError, EOFError, WireError, TimeoutError, FetchProxyError):
            async with asyncio.timeout(_HALF_FRAME_MAX_S):
                size, beginning = await _beginning(reader)
            if _is_fetchers(beginning, nameless=self._logins is not None):
                if self._fetchers < CONNECTIONS_MAX:
                    await self._respond_all(size, beginning, reader, writer)
            elif self._relay is not None:
                await pass_on(self._relay, reader, writer, INT32.pack(size) + beginning)

    # --- a fetcher ---
    async def _respond_all(
        self,
        size: int,
        beginning: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._fetchers += 1
        try:
            if self._logins is None:
                self._connections.protect(writer)
            request = await self._whole(size, beginning, reader)
            if self._logins is not None:
                request = await self._log_in(self._logins, request, reader, writer)
                self._connections.protect(writer)
            while True:
                response = await self._respond(request)
                if response is None:
                    return
                writer.writelines(response)
                del response  # the records need not stay until the next request
                await writer.drain()
                request = await self._frame(reader)
        finally:
            self._fetchers -= 1

    async def _frame(self, reader: asyncio.StreamReader) -> bytes:
        [size] = INT32.unpack(await reader.readexactly(_SIZE_BYTES))
        return await self._whole(size, b"", reader)

    async def _whole(self, size: int, beginning: bytes, reader: asyncio.StreamReader) -> bytes:
        """A request without its size prefix. Raises EOFError, OSError, TimeoutError, WireError."""
        arriving_bytes = self._arriving_bytes + size
        if not len(beginning) <= size <= _FRAME_BYTES_MAX or arriving_bytes > _ARRIVING_BYTES_MAX:
            raise WireError(f"a request of {size} bytes")
        self._arriving_bytes = arriving_bytes
        try:
            async with asyncio.timeout(_HALF_FRAME_MAX_S):
                return beginning + await reader.readexactly(size - len(beginning))
        finally:
            self._arriving_bytes -= size

    async def _log_in(
        self,
        logins: Logins,
        first: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bytes:
        """The first request after the login. Raises WireError if there is none."""
        peer = writer.get_extra_info("peername") or ("",)
        login = BrokerLogin(logins, str(peer[0]))
        request = first
        while not login.is_done:
            head = peek_request_header(request)
            if head.api_key == ApiKey.API_VERSIONS:
                writer.write(_api_versions(head, {**_OFFERED, **BROKER_LOGIN_VERSIONS}))
            elif head.api_key in BROKER_LOGIN_VERSIONS:
                writer.write(await login.respond(request, head, str(peer)))
            else:
                raise WireError("a request before the login")
            await writer.drain()
            if login.refusal:
                self._refused(f"a broker at {peer[0]} cannot log in: {login.refusal}")
                raise WireError(login.refusal)
            async with asyncio.timeout(_HALF_FRAME_MAX_S):
                request = await self._frame(reader)
        return request

    def _refused(self, why: str) -> None:
        if why not in self._refusals:
            self._refusals.add(why)
            self._say(why)

    async def _respond(self, request: bytes) -> Sequence[Buffer] | None:
        """None: no follower sends this request, so the connection closes."""
        head = peek_request_header(request)
        version = head.api_version
        if head.api_key == ApiKey.API_VERSIONS:
            return [_api_versions(head, _OFFERED)]
        if not _is_offered(head):
            return None
        if head.api_key == ApiKey.LIST_OFFSETS:
            requested = list_offsets.partitions_in(request, head.body_position, version)
            fields = self._led.listed(await collected(requested))
            return [await _in_steps(LIST_OFFSETS_RESPONSE, fields, head, version)]
        if head.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            epochs = offset_for_leader_epoch.partitions_in(request, head.body_position, version)
            fields = self._led.epoch_ends(await collected(epochs))
            return [await _in_steps(OFFSET_FOR_LEADER_EPOCH_RESPONSE, fields, head, version)]
        return await self._fetched(await in_steps(request_in_steps(request, head.body_position)))

    async def _fetched(self, fetch: FetchRequest) -> Sequence[Buffer]:
        await self._until_known(fetch)
        needed = await in_steps(self._led.needed(fetch))
        bytes_max = min(fetch.bytes_max, _RECORDS_BYTES_MAX)
        records = await self._records.read(needed, bytes_max, fetch.replica_id) if needed else {}
        response = await in_steps(self._led.fetched(fetch, records))
        if not response.is_news:
            await asyncio.sleep(min(fetch.max_wait_ms / 1000, _IDLE_MAX_S))
        return response.pieces

    async def _until_known(self, fetch: FetchRequest) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOPIC_WAIT_MAX_S):
                while True:
                    if self._led.knows(fetch):
                        return
                    await asyncio.sleep(_TOPIC_LOOK_S)

    # --- anybody else ---


async def _beginning(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The size prefix of a request, and its first bytes. Raises EOFError, OSError, WireError."""
    [size] = INT32.unpack(await reader.readexactly(_SIZE_BYTES))
    if size <= 0:
        raise WireError(f"a request of {size} bytes")
    return size, await reader.readexactly(min(size, _BEGINNING_BYTES_MAX))


def _is_fetchers(beginning: bytes, *, nameless: bool) -> bool:
    """Whether a connection whose first request begins so is a replica's. `nameless`: it has no
    client id before its login (SaslClientAuthenticator).
    """
    length_at = 8  # behind API key, version and correlation id
    length = int.from_bytes(beginning[length_at : length_at + 2], "big", signed=True)
    client_id = beginning[length_at + 2 : length_at + 2 + max(length, 0)]
    if len(client_id) < length:
        return False
    return _FETCHER.fullmatch(client_id) is not None or (nameless and not client_id)


def _is_offered(head: RequestHead) -> bool:
    low, high = _OFFERED.get(ApiKey(head.api_key), (0, -1)) if head.api_key in _OFFERED else (0, -1)
    return low <= head.api_version <= high


def _api_versions(head: RequestHead, offered: Mapping[ApiKey, tuple[int, int]]) -> bytes:
    low, high = _OFFERED[ApiKey.API_VERSIONS]
    if low <= head.api_version <= high:
        error, version = ErrorCode.NONE, head.api_version
    else:  # in the body of v0 (KIP-511)
        offered = {ApiKey.API_VERSIONS: (low, high)}
        error, version = ErrorCode.UNSUPPORTED_VERSION, 0
    rows = [
        {"api_key": key, "min_version": versions[0], "max_version": versions[1]}
        for key, versions in offered.items()
    ]
    fields = {"error_code": error, "api_keys": rows}
    return _written(API_VERSIONS_RESPONSE, fields, head, version)


def _written(table: Structure, fields: MessageFields, head: RequestHead, version: int) -> bytes:
    steps = write_response(table, fields, head.api_key, version, head.correlation_id)
    return bytes(at_once(steps))


async def _in_steps(
    table: Structure, fields: MessageFields, head: RequestHead, version: int
) -> bytes:
    steps = write_response(table, fields, head.api_key, version, head.correlation_id)
    return bytes(await in_steps(steps))
