"""The port at which brokers reach the phantoms.

While a phantom is alive, every client of the cluster sees it as a broker and may connect to it. Its
connection is passed on, byte for byte, to a real broker; only the fetchers of brokers are answered
here. All phantoms share the port: a request names partitions, not the broker that it is meant for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fetchproxy_protocol import list_offsets
from fetchproxy_protocol.apis import ApiKey, ErrorCode, WireError
from fetchproxy_protocol.fetch import FetchRequest, parse_fetch_request
from fetchproxy_protocol.headers import RequestHead, peek_request_header
from fetchproxy_protocol.inter_broker import API_VERSIONS_RESPONSE, LIST_OFFSETS_RESPONSE
from fetchproxy_protocol.messages import MessageFields, Structure, write_response
from fetchproxy_protocol.primitives import INT32

from fetchproxy.cluster_restore.led_partitions import LedPartitions
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ConfigError, system_error_in_words
from fetchproxy.runtime.cooperative import at_once

# What a follower uses, by metadata.version 3.3 and later ones.
_OFFERED = {
    ApiKey.FETCH: (12, 18),
    ApiKey.LIST_OFFSETS: (6, 11),
    ApiKey.API_VERSIONS: (0, 4),
}
_FETCHER = re.compile(rb"broker-\d+-fetcher-\d+")
_SIZE_BYTES = 4
_FRAME_BYTES_MAX = 16 << 20
_SPLICED_AT_ONCE_BYTES = 64 << 10
# A follower that hears no news would ask again at once.
_IDLE_MAX_S = 0.1
# A broker may fetch from a topic before the phantom has heard that the topic is created.
_TOPIC_WAIT_MAX_S = 2.0
_TOPIC_LOOK_S = 0.02
_DIAL_MAX_S = 10.0


class PhantomServer:
    """`relay`: a real broker, for connections that are not a fetcher's."""

    def __init__(self, led: LedPartitions, relay: HostPort) -> None:
        self._led = led
        self._relay = relay
        self._fetchers = 0

    @property
    def has_fetchers(self) -> bool:
        return self._fetchers > 0

    @asynccontextmanager
    async def listening(self, address: HostPort) -> AsyncIterator[int]:
        """Serves inside the block. The port on which it listens. Raises ConfigError."""
        async with asyncio.TaskGroup() as connections:

            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                serving = self._serve(reader, writer)
                try:
                    task = connections.create_task(serving)
                except RuntimeError:  # the block has ended since the connection was accepted
                    serving.close()
                    writer.transport.abort()
                    return
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            tasks: set[asyncio.Task[None]] = set()
            try:
                server = await asyncio.start_server(connected, address.host, address.port)
            except OSError as error:
                why = system_error_in_words(error)
                raise ConfigError(f"cannot listen at {address} for the brokers: {why}") from error
            try:
                yield server.sockets[0].getsockname()[1]
            finally:
                server.close()
                for task in tasks:
                    task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, EOFError, WireError, TimeoutError):
                first = await _frame(reader)
                if _is_fetchers(first):
                    await self._respond_all(first, reader, writer)
                else:
                    await self._splice(first, reader, writer)
        finally:
            writer.close()

    # --- a fetcher ---
    async def _respond_all(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._fetchers += 1
        try:
            request = first
            while True:
                response = await self._respond(request)
                if response is None:
                    return
                writer.write(response)
                await writer.drain()
                request = await _frame(reader)
        finally:
            self._fetchers -= 1

    async def _respond(self, request: bytes) -> bytes | None:
        """None: no follower sends this request, so the connection closes."""
        head = peek_request_header(request)
        if head.api_key == ApiKey.API_VERSIONS:
            return _api_versions(head)
        if not _is_offered(head):
            return None
        if head.api_key == ApiKey.LIST_OFFSETS:
            requested = list_offsets.partitions_in(request, head.body_position, head.api_version)
            return _written(
                LIST_OFFSETS_RESPONSE, self._led.listed(requested), head, head.api_version
            )
        fetch = parse_fetch_request(request, head.body_position)
        await self._until_known(fetch)
        response = self._led.fetched(fetch)
        if not response.is_news:
            await asyncio.sleep(min(fetch.max_wait_ms / 1000, _IDLE_MAX_S))
        return response.frame

    async def _until_known(self, fetch: FetchRequest) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOPIC_WAIT_MAX_S):
                while True:
                    if self._led.knows(fetch):
                        return
                    await asyncio.sleep(_TOPIC_LOOK_S)

    # --- anybody else ---
    async def _splice(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(_DIAL_MAX_S):
            there = await asyncio.open_connection(self._relay.host, self._relay.port)
        try:
            there[1].write(INT32.pack(len(first)) + first)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, there[1]))
                both.create_task(_pump(there[0], writer))
        finally:
            there[1].close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """A request without its size prefix. Raises EOFError, OSError, WireError."""
    [size] = INT32.unpack(await reader.readexactly(_SIZE_BYTES))
    if not 0 < size <= _FRAME_BYTES_MAX:
        raise WireError(f"a request of {size} bytes")
    return await reader.readexactly(size)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes bytes on until one side closes, and then closes the other one."""
    with suppress(OSError):
        while data := await reader.read(_SPLICED_AT_ONCE_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


def _is_fetchers(request: bytes) -> bool:
    """Whether a connection with this first request is a replica's. Raises WireError."""
    head = peek_request_header(request)
    client_id = request[head.client_id_start : head.client_id_end]
    return _FETCHER.fullmatch(client_id) is not None


def _is_offered(head: RequestHead) -> bool:
    low, high = _OFFERED.get(ApiKey(head.api_key), (0, -1)) if head.api_key in _OFFERED else (0, -1)
    return low <= head.api_version <= high


def _api_versions(head: RequestHead) -> bytes:
    low, high = _OFFERED[ApiKey.API_VERSIONS]
    if low <= head.api_version <= high:
        offered = _OFFERED
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
