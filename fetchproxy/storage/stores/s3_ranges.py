"""Reads ranges of S3 objects by plain HTTP/1.1 into their final memory. URLs are signed as the S3
client signs them.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import lru_cache
from ssl import SSLContext, SSLError
from typing import Any, Self
from urllib.parse import urlsplit

import structlog
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from cachetools import TTLCache

from fetchproxy import __version__
from fetchproxy.config.schema import StoreConfig
from fetchproxy.model import ByteRange
from fetchproxy.runtime.heap import uninitialised
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.storage.stores.aws_credentials import AwsCredentials
from fetchproxy.storage.stores.object_store import responded
from fetchproxy.storage.stores.retries import retry_pause_s
from fetchproxy.storage.stores.s3_pages import PageBody, parsed_page
from fetchproxy.storage.stores.s3_signing import EXAMPLE_KEY, UrlSigner

# An HTTP library returns a body in pieces, which need one more copy to join. An S3 library takes
# two milliseconds of Python to build and parse each request. For a replay, this was more than half
# of the cost of a byte (ADR 0031). This client supports one kind of exchange. Any other response is
# OtherAnswer; the S3 client finds out what it means.

# An S3 server's head has half a KiB; body bytes that come with it are copied once more.
HEAD_BYTES_MAX = 16 * 1024
# A connection that was idle for longer is not reused: servers close idle ones after 5 s or more.
IDLE_MAX_S = 4.0

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})[ \r]")
_CONTENT_RANGE = re.compile(rb"bytes (\d+)-(\d+)/(\d+|\*)")
# With any of these headers the body is not the stored bytes, or has another length.
_RECODED = (b"transfer-encoding", b"content-encoding")

_Address = tuple[str, int, bool]  # host, port, whether by TLS
# A URL is used for one minute and valid for ten: clocks may differ by the rest.
URL_AGE_MAX_S = 60
_URL_VALID_S = 600
_URLS_MAX = 10_000  # half a KiB each
# After so many refusals in a row, each repeated by the client with success, no more URLs are used.
NEEDLESS_MAX = 3
# The client's names, and those in the query.
_LISTING_PARAMETERS = {
    "Prefix": "prefix",
    "Delimiter": "delimiter",
    "StartAfter": "start-after",
    "ContinuationToken": "continuation-token",
}

log = structlog.get_logger(__name__)


class OtherResponse(Exception):
    """The server answered with something other than the requested part.

    `status`: 0 if it is not an HTTP/1.1 response. `retry_after_s`: as in RemoteStorageError.
    """

    def __init__(self, message: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class PartRequest:
    """`to_end`: the range must reach the end of the object, which may lie inside the range."""

    byte_range: ByteRange
    to_end: bool = False

    def is_part(self, first: int, end: int, total: bytes) -> bool:
        if first != self.byte_range.start or end > self.byte_range.end:
            return False
        return b"%d" % end == total if self.to_end else end == self.byte_range.end


def part_of(head: bytes, request: PartRequest) -> tuple[int, bool]:
    """(length of the body, whether the connection may be reused) from a response's head. Raises
    OtherAnswer unless the body is certainly the wanted part in its full length.
    """
    status, headers = _parsed_head(head)
    part = _CONTENT_RANGE.fullmatch(headers.get(b"content-range", b""))
    if part is not None and status == 206:
        first, end = int(part[1]), int(part[2]) + 1
        if (
            request.is_part(first, end, part[3])
            and headers.get(b"content-length") == b"%d" % (end - first)
            and not any(name in headers for name in _RECODED)
        ):
            return end - first, headers.get(b"connection", b"").lower() != b"close"
    raise _other_response(head, status, headers)


def page_of(head: bytes) -> tuple[PageBody, bool]:
    """(the body to be received, whether the connection may be reused) from the head of a listing's
    response. Raises OtherResponse unless it is a whole response.
    """
    status, headers = _parsed_head(head)
    length = headers.get(b"content-length", b"")
    encoding = headers.get(b"transfer-encoding", b"").lower()
    is_chunked = encoding == b"chunked" and not length
    if (
        status != 200
        or b"content-encoding" in headers
        or not (is_chunked or (not encoding and length.isdigit() and int(length)))
    ):
        raise _other_response(head, status, headers)
    try:
        body = PageBody(None if is_chunked else int(length))
    except ValueError as error:
        raise OtherResponse(str(error), status) from None
    return body, headers.get(b"connection", b"").lower() != b"close"


def _parsed_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    """(status, headers with names in lower case). Raises OtherResponse if one that decides about
    the body is there twice.
    """
    match = _STATUS.match(head)
    status = int(match[1]) if match else 0
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in headers and name.startswith((b"content-", b"transfer-")):
            raise OtherResponse(f"{name.decode('latin-1')} twice", status)
        headers[name] = value.strip()
    return status, headers


def _other_response(head: bytes, status: int, headers: Mapping[bytes, bytes]) -> OtherResponse:
    pause_headers = (headers.get(name, b"").decode("latin-1") for name in (b"retry-after", b"date"))
    return OtherResponse(f"answered {head[:40]!r}", status, retry_pause_s(*pause_headers))


def _request(url: str, byte_range: ByteRange | None) -> tuple[_Address, bytes]:
    """(server address, request bytes). `byte_range`: None for a page of a listing."""
    scheme, _, after = url.partition("://")
    netloc, _, target = after.partition("/")
    address, named = _server(scheme, netloc)
    range_header = (
        "" if byte_range is None else f"Range: bytes={byte_range.start}-{byte_range.end - 1}\r\n"
    )
    return address, (
        f"GET /{target} HTTP/1.1\r\n"
        f"Host: {named}\r\n"
        f"User-Agent: fetchproxy/{__version__}\r\n"
        f"{range_header}Accept-Encoding: identity\r\n\r\n"
    ).encode("ascii")


@lru_cache(maxsize=100)
def _server(scheme: str, netloc: str) -> tuple[_Address, str]:
    """(address, the name for `Host`). As in the signature, it omits the default port."""
    parts = urlsplit(f"{scheme}://{netloc}")
    secure = scheme == "https"
    default = 443 if secure else 80
    address = (parts.hostname or "", parts.port or default, secure)
    return address, netloc.removesuffix(f":{default}")


class _Connection(asyncio.BufferedProtocol):
    """One exchange at a time. A response's memory is allocated when its head is complete."""

    def __init__(self, on_lost: Callable[[_Connection], None], silence_max_s: float) -> None:
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._silence_max_s = silence_max_s
        self._timer: asyncio.TimerHandle | None = None  # one for many requests
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(HEAD_BYTES_MAX)
        self._head_bytes = 0
        self._body: bytearray | None = None
        self._room = memoryview(b"")  # the rest of the body
        self._page: PageBody | None = None
        self._part: PartRequest | None = None
        self._response: asyncio.Future[bytearray] | None = None
        self.heard_at = 0.0  # loop time (s) of the last bytes received or the last request
        self.has_received = False  # whether any bytes came since the request
        self.is_reusable = False  # whether the connection may be reused

    def begin(self, request: bytes, part: PartRequest | None) -> asyncio.Future[bytearray]:
        """`part`: None for a page of a listing. The future raises OtherAnswer, TimeoutError after a
        silence, or ConnectionError if the connection is lost.

        Raises ConnectionResetError at once if the connection was lost before.
        """
        self._part, self._head_bytes = part, 0
        self.has_received = self.is_reusable = False
        if self._transport is None:
            raise ConnectionResetError("the connection was lost before it was used")
        self.heard_at = self._clock()
        self._response = self._loop.create_future()
        self._transport.write(request)
        if self._timer is None:
            self._watch_silence()
        return self._response

    def _watch_silence(self) -> None:
        self._timer = None
        if self._response is None or self._response.done():
            return
        silent_at = self.heard_at + self._silence_max_s
        if self._clock() < silent_at:
            self._timer = self._loop.call_at(silent_at, self._watch_silence)
            return
        silence = f"the store was silent for {self._silence_max_s} s"
        self._response.set_exception(TimeoutError(silence))

    @property
    def is_lost(self) -> bool:
        return self._transport is None

    def shut(self) -> None:
        """Close the connection; further bytes are not wanted."""
        self.is_reusable = False
        if self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionAbortedError("the connection was shut"))
        if self._transport is not None:
            self._transport.abort()

    # --- called by the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.heard_at = self._clock()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room if self._body is not None else memoryview(self._head)[self._head_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        self.has_received, self.heard_at = True, self._clock()
        if self._response is None or self._response.done():
            self.shut()  # bytes without a request
        elif self._body is None:
            try:
                self._take(nbytes, self._response)
            except OtherResponse as error:
                self._response.set_exception(error)
                self.shut()
        else:
            self._room = self._room[nbytes:]
            self._finish_if_whole(self._response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self.is_reusable = None, False
        if self._timer is not None:
            self._timer.cancel()
        self._body, self._room, self._page = None, memoryview(b""), None
        if self._response is not None and not self._response.done():
            message = f"the connection was lost: {exc or 'closed by the store'}"
            self._response.set_exception(ConnectionResetError(message))
        self._on_lost(self)

    def _take(self, nbytes: int, response: asyncio.Future[bytearray]) -> None:
        """Bytes of the head, and of a page behind it."""
        if self._page is not None:
            return self._take_page(memoryview(self._head)[:nbytes], response)
        self._head_bytes += nbytes
        self._take_head(response)

    def _take_page(self, received: memoryview, response: asyncio.Future[bytearray]) -> None:
        assert self._page is not None
        try:
            is_whole = self._page.take(received)
        except ValueError as error:
            raise OtherResponse(str(error), 200) from None
        if is_whole:
            page, self._page, self._head_bytes = self._page, None, 0
            response.set_result(page.content)

    def _take_head(self, response: asyncio.Future[bytearray]) -> None:
        end = self._head.find(b"\r\n\r\n", 0, self._head_bytes)
        if end < 0:
            if self._head_bytes == HEAD_BYTES_MAX:
                raise OtherResponse(f"a head of more than {HEAD_BYTES_MAX} bytes")
            return
        if self._part is None:
            self._page, self.is_reusable = page_of(bytes(self._head[:end]))
            come, self._head_bytes = self._head_bytes, 0
            return self._take_page(memoryview(self._head)[end + 4 : come], response)
        length, self.is_reusable = part_of(bytes(self._head[:end]), self._part)
        come = self._head_bytes - end - 4
        if come > length:
            raise OtherResponse("more bytes came than were requested")
        self._body = uninitialised(length)
        self._body[:come] = memoryview(self._head)[end + 4 : self._head_bytes]
        self._room = memoryview(self._body)[come:]
        self._finish_if_whole(response)

    def _finish_if_whole(self, response: asyncio.Future[bytearray]) -> None:
        if not self._room and self._body is not None:
            response.set_result(self._body)
            self._body, self._head_bytes = None, 0


class RangeRequests:
    """Keeps idle connections for reuse; as an async context manager it closes all connections.

    `silence_max_s`: the longest silence before or within a response.
    """

    def __init__(
        self,
        connections_max: int,
        connect_max_s: float,
        silence_max_s: float,
        tls: SSLContext | None = None,
    ) -> None:
        self._places = asyncio.Semaphore(connections_max)
        self._connect_max_s = connect_max_s
        self._silence_max_s = silence_max_s
        self._tls = tls
        self._idle: dict[_Address, list[_Connection]] = {}  # the most recently used last
        self._open: dict[_Connection, _Address] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def get(self, url: str, part: PartRequest | None) -> bytearray:
        """The `part` bytes of the object at `url`; None: all of a listing's page. Raises
        OtherAnswer; OSError if the server is unreachable, falls silent or ends the connection.
        """
        address, request = _request(url, None if part is None else part.byte_range)
        async with self._places:
            while (connection := self._idle_one(address)) is not None:
                try:
                    return await self._exchange(connection, request, part)
                except ConnectionError:
                    if connection.has_received:
                        raise  # else the server had closed it before the request
            return await self._exchange(await self._connect(address), request, part)

    async def _exchange(
        self, connection: _Connection, request: bytes, part: PartRequest | None
    ) -> bytearray:
        response = connection.begin(request, part)
        try:
            return await response
        finally:
            came = response.done() and not response.cancelled() and response.exception() is None
            if connection.is_reusable and came:
                self._idle.setdefault(self._open[connection], []).append(connection)
            else:
                connection.shut()

    def _idle_one(self, address: _Address) -> _Connection | None:
        idle = self._idle.get(address, [])
        oldest = asyncio.get_running_loop().time() - IDLE_MAX_S
        while idle:
            connection = idle.pop()
            if connection.heard_at >= oldest:
                return connection
            connection.shut()
        return None

    async def _connect(self, address: _Address) -> _Connection:
        """Connects in a separate task. If the caller is cancelled, the connection is kept idle.

        If asyncio's call were cancelled just when an attempt succeeds, it would lose the socket.
        """
        if self._tasks is None:
            raise ConnectionAbortedError("the store is closed")
        outcome: asyncio.Future[_Connection] = asyncio.get_running_loop().create_future()
        self._tasks.create_task(self._open_one(address, outcome), name="connect to the store")
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            outcome.add_done_callback(self._keep)
            raise

    async def _open_one(self, address: _Address, outcome: asyncio.Future[_Connection]) -> None:
        host, port, secure = address
        try:
            async with asyncio.timeout(self._connect_max_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._forget, self._silence_max_s),
                    host,
                    port,
                    ssl=self._tls if secure else None,
                    happy_eyeballs_delay=0.25,
                )
        except TimeoutError:
            late = f"no connection to {host}:{port} in {self._connect_max_s} s"
            outcome.set_exception(TimeoutError(late))
        except SSLError as error:
            outcome.set_exception(error)
        except OSError as error:
            outcome.set_exception(ConnectionError(f"no connection to {host}:{port}: {error}"))
        except Exception as error:  # noqa: BLE001 - the waiting caller raises it again
            outcome.set_exception(error)
        else:
            if connection.is_lost:  # a server that is shutting down closes it at once
                outcome.set_exception(ConnectionResetError(f"{host}:{port} has hung up"))
            else:
                self._open[connection] = address
                outcome.set_result(connection)
        finally:
            if not outcome.done():
                outcome.set_exception(ConnectionAbortedError("the store is closed"))

    def _keep(self, outcome: asyncio.Future[_Connection]) -> None:
        if outcome.exception() is None and (address := self._open.get(outcome.result())):
            self._idle.setdefault(address, []).append(outcome.result())

    def _forget(self, connection: _Connection) -> None:
        address = self._open.pop(connection, None)
        if address is not None and connection in (idle := self._idle.get(address, [])):
            idle.remove(connection)

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks, self._tasks = self._tasks, None
        for connection in list(self._open):
            connection.shut()
        if tasks is not None:
            # The attempts end within `connect_max_s` and never raise.
            await tasks.__aexit__(None, None, None)
        for connection in list(self._open):
            connection.shut()


# The S3 client signs one URL in a minute; the others are signed like it (docs/adr/0095). If the
# client signs in another way, as for directory buckets, it signs one URL for many reads of an
# object. After any other response the request is repeated through the client, which handles
# redirects, regions and errors. If a server refuses signed URLs (a bucket policy may do so), they
# are no longer used.


class S3RangeReads:
    """`credentials`: those that the client signs with; None: the client signs all URLs."""

    def __init__(
        self,
        client: Any,
        bucket: str,
        requests: RangeRequests,
        credentials: AwsCredentials | None = None,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._requests = requests
        self._credentials = credentials
        self._clock = asyncio.get_running_loop().time
        self._signer: UrlSigner | None = None
        self._signs_until = float("-inf")  # loop time (s)
        self._examples = SingleFlight[None]()
        self._urls: TTLCache[str, str] = TTLCache(_URLS_MAX, URL_AGE_MAX_S, timer=self._clock)
        self._needless = self._needless_listings = 0

    async def get(self, key: str, part: PartRequest, operation: str) -> bytearray | None:
        """None: the caller has to use the client. Raises the error for status 429 or 500 and above,
        as such a store should get no second request; OSError and the client's errors if the request
        fails.
        """
        if self._needless >= NEEDLESS_MAX:
            return None
        content = await self._requested(await self.signed_url(key), part, operation)
        if content is not None:
            self._needless = 0
        return content

    async def list_page(
        self, arguments: Mapping[str, str], operation: str
    ) -> dict[str, Any] | None:
        """One page of a listing, as the client would give it. `arguments`: the client's. None and
        errors as in `get`.
        """
        if self._needless_listings >= NEEDLESS_MAX or (signer := await self._current()) is None:
            return None
        parameters = {_LISTING_PARAMETERS[name]: value for name, value in arguments.items()}
        url = signer.signed_listing({**parameters, "list-type": "2", "encoding-type": "url"})
        body = await self._requested(url, None, operation)
        page = None if body is None else await parsed_page(body)
        if page is not None:
            self._needless_listings = 0
        return page

    async def _requested(
        self, url: str, part: PartRequest | None, operation: str
    ) -> bytearray | None:
        try:
            return await self._requests.get(url, part)
        except OtherResponse as error:
            if error.status == 429 or error.status >= 500:
                translated = responded(operation, error.status, "", str(error))
                translated.retry_after_s = error.retry_after_s
                raise translated from error
            return None

    async def _current(self) -> UrlSigner | None:
        if self._clock() >= self._signs_until:
            await self._examples.run("example", self._follow_example)
        return self._signer

    async def signed_url(self, key: str) -> str:
        """Raises the client's errors."""
        if (signer := await self._current()) is not None:
            return signer.signed(key)
        url: str | None = self._urls.get(key)
        if url is None:
            url = self._urls[key] = await self._signed_by_client(key)
        return url

    async def _follow_example(self) -> None:
        if self._credentials is not None:
            credentials = await self._credentials.get_frozen_credentials()
            example = await self._signed_by_client(EXAMPLE_KEY)
            self._signer = UrlSigner.like(example, credentials.secret_key)
        self._signs_until = self._clock() + URL_AGE_MAX_S

    async def _signed_by_client(self, key: str) -> str:
        url: str = await self._client.generate_presigned_url(
            "get_object", {"Bucket": self._bucket, "Key": key}, ExpiresIn=_URL_VALID_S
        )
        return url

    def forget_urls(self) -> None:
        """The credentials that signed them have been replaced."""
        self._urls.clear()
        self._signs_until = float("-inf")

    def note_needless_listing(self, prefix: str) -> None:
        """Count a refusal: the client's own request got the page."""
        self.forget_urls()
        self._needless_listings += 1
        if self._needless_listings == NEEDLESS_MAX:
            log.warning("s3_signed_urls_refused", bucket=self._bucket, key=prefix)

    def note_needless_url_check(self, key: str) -> None:
        """Drop the URL and count a refusal: the client's own request got the same part."""
        self.forget_urls()
        self._needless += 1
        if self._needless == NEEDLESS_MAX:
            log.warning("s3_signed_urls_refused", bucket=self._bucket, key=key)


async def open_range_reads(
    resources: AsyncExitStack,
    session: Any,
    client: Any,
    bucket: str,
    config: StoreConfig,
    credentials: AwsCredentials | None = None,
) -> S3RangeReads | None:
    """None if the store is behind an HTTP proxy: only the client supports it. Raises OSError."""
    endpoint = client.meta.endpoint_url
    if get_environ_proxies(endpoint):
        return None
    # Otherwise botocore signs URLs with version 2, which newer buckets refuse, and for the global
    # endpoint, which a network may not reach.
    client.meta.events.register_first("choose-signer.s3.GetObject", _version_4)
    client.meta.events.register_first(
        "before-endpoint-resolution.s3",
        lambda context, **_: context.update(use_global_endpoint=False),
    )
    tls = None
    if endpoint.startswith("https:"):
        bundle = get_cert_path(session.get_config_variable("ca_bundle") or True)
        tls = await asyncio.to_thread(ssl.create_default_context, cafile=bundle)
    requests = RangeRequests(
        config.small_reads_max, config.connect_max_ms / 1000, config.read_max_ms / 1000, tls
    )
    opened = await resources.enter_async_context(requests)
    return S3RangeReads(client, bucket, opened, credentials)


def _version_4(signature_version: str, **_: Any) -> str | None:
    return "s3v4-query" if signature_version in ("v4-query", "s3v4-query") else None
