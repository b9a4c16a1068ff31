"""WebHDFS: the requests to one HDFS, its responses, and the translation of its errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from fetchproxy.config.schema import StoreConfig
from fetchproxy.config.values import secret_from
from fetchproxy.errors import (
    ConfigError,
    ObjectNotFound,
    ObjectNotReadable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.storage.stores.client_sockets import ClientSockets
from fetchproxy.storage.stores.kerberos import Kerberos, Negotiation, offered
from fetchproxy.storage.stores.locations import HdfsLocation
from fetchproxy.storage.stores.retries import retry_pause_s

# A NameNode names the Java exception in its response, nearly always with status 403. A response
# without such a name does not come from a NameNode, so even a 404 says nothing about an object.

NOT_FOUND = frozenset(
    {
        "FileNotFoundException",
        "ParentNotDirectoryException",  # a part of the path is a file
    }
)
TAKEN = "FileAlreadyExistsException"
# Another NameNode of the same cluster may be active.
STANDBY = frozenset({"StandbyException", "ObserverRetryOnActiveException"})

_DENIED = frozenset(
    {
        "AccessControlException",
        "AuthorizationException",
        "AuthenticationException",
        "SecurityException",
        "InvalidToken",
    }
)
_THROTTLED = frozenset({"ServerTooBusyException", "RetriableException"})
# No DataNode that is up has a block of the file. Others may be starting, so it may come back.
_LOST_BLOCKS = frozenset({"BlockMissingException", "CannotObtainBlockLengthException"})
# What the NameNode says itself, as a plain IOException, of a file whose blocks are on no DataNode.
# If no DataNode is up, it says so of every file.
_NO_DATANODE = "No active nodes contain this block"
# No retry helps after these; all other errors of HDFS come and go with its nodes.
_LASTING = frozenset(
    {
        "IllegalArgumentException",
        "InvalidPathException",
        "UnsupportedOperationException",
        "PathComponentTooLongException",
        "MaxDirectoryItemsExceededException",
        TAKEN,
        "NSQuotaExceededException",
        "DSQuotaExceededException",
        "QuotaByStorageTypeExceededException",
    }
)


_TOKEN = re.compile(r"(delegation(?:=|%3d))[^&\s\"'<>)]+", re.IGNORECASE)
_REDIRECTS = frozenset({301, 302, 307, 308})
# A NameNode answers SecurityException for an expired or unknown token; the other names are more
# specific.
_NO_SUCH_TOKEN = frozenset({"InvalidToken", "SecretManager$InvalidToken", "SecurityException"})
# The limit for a response without file content; a page of a listing has a thousand names.
_RESPONSE_BYTES_MAX = 16 * 1024 * 1024
_FAULT_BYTES_MAX = 64 * 1024


def without_token(text: str) -> str:
    """Hide tokens: errors of the HTTP client, and servers' pages, repeat the request's URL."""
    return _TOKEN.sub(r"\1...", text)


class RemoteFault(Exception):
    """An error response. `exception`: the name of the Java exception, or ""."""

    def __init__(self, status: int, exception: str, message: str) -> None:
        first_line = message.strip().splitlines()[:1]
        super().__init__(without_token(": ".join([exception or f"status {status}", *first_line])))
        self.status = status
        self.exception = exception
        self.wants_kerberos = False
        self.retry_after_s = 0.0


def remote_fault(status: int, body: bytes) -> RemoteFault:
    try:
        exception = json.loads(body)["RemoteException"]
        return RemoteFault(status, str(exception["exception"]), str(exception.get("message", "")))
    except (ValueError, KeyError, TypeError):
        return RemoteFault(status, "", body[:200].decode("ascii", "replace"))


def _kind(fault: RemoteFault) -> type[RemoteStorageError]:
    name, status = fault.exception, fault.status
    if name in NOT_FOUND:
        return ObjectNotFound
    if name in _DENIED or status == 401 or (status == 403 and not name):
        return StorageDenied
    if name in _THROTTLED or (not name and status in (429, 503)):
        return StorageThrottled
    if name in _LOST_BLOCKS:
        return ObjectNotReadable
    return RemoteStorageError if name in _LASTING else StorageUnavailable


@contextmanager
def translated_webhdfs_error(operation: str, *, may_be_absent: bool = False) -> Iterator[None]:
    """Raise the domain's errors for the client's; `operation` begins their text.

    `may_be_absent`: the call reads one object. For all other calls "not found" means a problem of
    the store, not an absent object.
    """
    try:
        yield
    except RemoteFault as fault:
        kind = _kind(fault)
        if kind is ObjectNotFound and not may_be_absent:
            kind = StorageUnavailable
        error = kind(f"{operation}: {fault}")
        error.retry_after_s = fault.retry_after_s
        error.may_be_of_object = may_be_absent and _NO_DATANODE in str(fault)
        raise error from fault
    except (aiohttp.ClientError, OSError) as error:  # includes TimeoutError
        text = str(error) or type(error).__name__
        without_secret = without_token(text)
        raise StorageUnavailable(f"{operation}: {without_secret}") from (
            error if without_secret == text else None
        )


# HDFS sorts a folder by the names of its entries. Keys sort as whole paths, so a folder counts as
# `name/`: `a-/x` comes before `a/x`, though `a` comes before `a-`.


@dataclass(frozen=True, slots=True)
class FileStatus:
    """`name` is "" in the status of the requested path itself."""

    name: str
    is_folder: bool
    size_bytes: int
    version: str
    modified_epoch_ms: int
    children: int  # entries of a folder

    @property
    def place(self) -> str:
        """Its sort key among the entries of its folder."""
        return f"{self.name}/" if self.is_folder else self.name


def decoded(body: bytes, operation: str) -> Mapping[str, Any]:
    """The JSON object in a response. Raises StorageUnavailable if `body` is none."""
    try:
        response = json.loads(body)
    except ValueError:
        response = None
    if not isinstance(response, dict):
        raise StorageUnavailable(f"{operation}: the response is not a JSON object: {body[:100]!r}")
    return response


def file_status(response: Mapping[str, Any], operation: str) -> FileStatus:
    try:
        return _status(response["FileStatus"])
    except (KeyError, TypeError, ValueError):
        raise StorageUnavailable(f"{operation}: the response is not a FileStatus") from None


def listed_page(
    response: Mapping[str, Any], after: str, operation: str
) -> tuple[list[FileStatus], bool]:
    """(entries of one page of LISTSTATUS_BATCH, all after `after`; whether more pages follow).
    Raises StorageUnavailable if the response is not such a page.
    """
    try:
        listing = response["DirectoryListing"]
        page = [_status(entry) for entry in listing["partialListing"]["FileStatuses"]["FileStatus"]]
        more = int(listing["remainingEntries"]) > 0
    except (KeyError, TypeError, ValueError):
        raise StorageUnavailable(f"{operation}: the response is not a listing") from None
    if [entry.name for entry in page] == [""]:
        return [], False  # a file, not a folder
    for entry in page:
        if entry.name <= after:
            raise StorageUnavailable(f"{operation}: {entry.name} is listed after {after}")
        after = entry.name
    if more and not page:
        raise StorageUnavailable(f"{operation}: the listing breaks off")
    return page, more


def _status(fields: Mapping[str, Any]) -> FileStatus:
    size_bytes, modified = int(fields["length"]), int(fields["modificationTime"])
    return FileStatus(
        name=str(fields["pathSuffix"]),
        is_folder=fields["type"] == "DIRECTORY",
        size_bytes=size_bytes,
        # A renamed file keeps its id and time; the file that it replaces had others.
        version=f"{int(fields.get('fileId', 0)):x}-{modified:x}-{size_bytes:x}",
        modified_epoch_ms=modified,
        children=int(fields.get("childrenNum", 0)),
    )


class KeyOrder:
    """Brings entries sorted by name into key order; holds back few entries."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, FileStatus]] = []

    def add(self, entry: FileStatus) -> list[FileStatus]:
        """Returns the held entries that precede `entry` and all later ones."""
        ready = self._up_to(entry.name)
        heappush(self._waiting, (entry.place, entry))
        return ready

    def rest(self) -> list[FileStatus]:
        return self._up_to(None)

    def _up_to(self, name: str | None) -> list[FileStatus]:
        ready: list[FileStatus] = []
        while self._waiting and (name is None or self._waiting[0][0] < name):
            ready.append(heappop(self._waiting)[1])
        return ready


def list_after(start_after: str, name_start: str) -> str:
    """The name after which to list a folder without missing any key after `start_after`. A folder
    `a` follows `a-b` in key order, as its keys are `a/…`: so the listing starts before the shortest
    such name.

    `start_after`: relative to the folder. `name_start`: the beginning of wanted names.
    """
    part = start_after.partition("/")[0]
    for length in range(1, len(part)):
        if part[length] < "/":
            part = part[:length]
            break
    return max(part[:-1], name_start[:-1])


class LongerThanWanted(StorageUnavailable):
    """`size_bytes`: the stated length, or the bytes received until the client stopped."""

    def __init__(self, operation: str, size_bytes: int) -> None:
        super().__init__(f"{operation}: {size_bytes} bytes came")
        self.size_bytes = size_bytes


class WebHdfsClient:
    """Use it on one loop. Paths are relative to the location's folder, whose own path is "".

    Raises `RemoteFault` for error responses of HDFS, and aiohttp's errors if there is no response.

    Every request is tried once, except if the NameNode cannot have acted on it because it was
    unreachable or a standby. The caller does the back-off.

    If a NameNode requires Kerberos, the client uses that once to get a delegation token. With a
    ticket or a cookie in each request, the NameNode would make a token for every redirect to a
    DataNode, log it and keep it for a day.
    """

    def __init__(self, location: HdfsLocation, config: StoreConfig) -> None:
        self._location = location
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._sockets = ClientSockets(config.write_max_ms)
        self._active = 0  # the NameNode that answered last
        self.date: str | None = None  # the HTTP Date of the last response
        self._token: str | None = None
        self._kerberos = Kerberos(config.read_max_ms / 1000)
        self._by_kerberos = False  # whether a NameNode has required it
        self._new_tokens: SingleFlight[str | None] = SingleFlight()

    async def close(self) -> None:
        self._closed = True
        self._kerberos.close()
        if self._session is None:
            return
        await self._session.close()
        await self._sockets.shut()

    async def ask(self, method: str, op: str, path: str, **parameters: str) -> Mapping[str, Any]:
        """The response to a request that transfers no file content."""
        _, body = await self._ask_namenode(method, op, path, parameters)
        return decoded(body, op) if body else {}

    async def read(self, path: str, bytes_max: int, **parameters: str) -> bytes:
        """OPEN. Raises an error if the connection ends before the stated length, twice in a row;
        LongerThanWanted, without reading anything, if more than `bytes_max` would come.
        """
        try:
            return await self._read(path, bytes_max, parameters)
        except aiohttp.ClientPayloadError:
            # If a put replaces the file, a DataNode deletes the old block, also within a response.
            return await self._read(path, bytes_max, parameters)

    async def _read(self, path: str, bytes_max: int, parameters: Mapping[str, str]) -> bytes:
        address, body = await self._ask_namenode("GET", "OPEN", path, parameters, bytes_max)
        if address is None:
            return body
        with self._token_may_end():
            async with self._opened().get(address, allow_redirects=False) as response:
                await _check(response, 200)
                if response.content_length is None:
                    raise StorageUnavailable(f"OPEN {path}: the DataNode states no length")
                return await _body(response, bytes_max, f"OPEN {path}")

    async def place_for(self, path: str) -> URL:
        """The address at which a DataNode takes a new file's content. Makes no file yet."""
        address, _ = await self._ask_namenode("PUT", "CREATE", path, {"overwrite": "false"})
        if address is None:
            raise StorageUnavailable("CREATE: the NameNode names no DataNode")
        return address

    async def create(self, target_url: URL, size_bytes: int, content: AsyncIterator[bytes]) -> None:
        """Make a new file and its folders. Raises TimeoutError if one part takes too long."""
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        part_max_s = self._config.write_max_ms / 1000
        failures: list[RemoteStorageError] = []  # errors of `content`, which aiohttp would wrap
        async with asyncio.timeout(part_max_s) as limit:

            async def timed() -> AsyncIterator[bytes]:
                try:
                    async for part in content:
                        limit.reschedule(asyncio.get_running_loop().time() + part_max_s)
                        yield part
                except RemoteStorageError as error:
                    failures.append(error)
                    raise

            try:
                request = self._opened().put(
                    target_url, data=timed(), headers=headers, allow_redirects=False
                )
                with self._token_may_end():
                    async with request as response:
                        await _check(response, 201)
            except aiohttp.ClientError:
                if failures:
                    raise failures[0] from None
                raise

    async def _ask_namenode(
        self,
        method: str,
        op: str,
        path: str,
        parameters: Mapping[str, str],
        bytes_max: int = _RESPONSE_BYTES_MAX,
    ) -> tuple[URL | None, bytes]:
        """(the DataNode's address, b"") or (None, the response's body)."""
        if self._closed:
            raise RemoteStorageError("the store is closed")
        tries_left = len(self._location.addresses)
        token_is_fresh = False
        while True:
            namenode, used = self._active, None
            try:
                if self._token is None and self._needs_token:
                    self._token = await self._new_tokens.run(
                        namenode, partial(self._new_token, namenode)
                    )
                    token_is_fresh = True
                used = self._token
                asker = {
                    "delegation": used,
                    "user.name": self._location.user if used is None else None,
                }
                identity = {name: who for name, who in asker.items() if who is not None}
                url = self._url(namenode, op, path, {**parameters, **identity})
                return await self._ask_once(method, url, op, bytes_max)
            except RemoteFault as fault:
                if fault.wants_kerberos and not self._needs_token:
                    self._by_kerberos = True
                if self._needs_token and not token_is_fresh and _is_refused(fault, used):
                    if self._token is used:
                        self._token = None  # the file may contain a new token
                    continue
                if fault.exception not in STANDBY or tries_left <= 1:
                    raise
            except aiohttp.ServerTimeoutError:
                self._pass_over(namenode)  # no retry: the NameNode may have acted on the request
                raise
            except aiohttp.ClientConnectorError:
                if tries_left <= 1:
                    raise
            tries_left -= 1
            self._pass_over(namenode)

    async def _ask_once(
        self, method: str, url: URL, op: str, bytes_max: int
    ) -> tuple[URL | None, bytes]:
        async with self._opened().request(method, url, allow_redirects=False) as response:
            self.date = response.headers.get("Date")
            if response.status in _REDIRECTS and "Location" in response.headers:
                return _place(response.headers["Location"], op), b""
            await _check(response, 200)
            return None, await _body(response, bytes_max, op)

    @property
    def _needs_token(self) -> bool:
        return self._by_kerberos or self._config.hdfs_token_file is not None

    async def _new_token(self, namenode: int) -> str | None:
        if self._config.hdfs_token_file is not None:
            return await asyncio.to_thread(self._read_token)
        url = self._url(namenode, "GETDELEGATIONTOKEN", "", {})  # the ticket names the user
        assert url.host is not None
        host = url.host
        negotiation = await self._kerberos.run(lambda: Negotiation(host), host)
        headers = {"Authorization": negotiation.authorization}
        async with self._opened().get(url, headers=headers, allow_redirects=False) as response:
            await _check(response, 200)
            proofs = response.headers.getall("WWW-Authenticate", [])
            body = await _received(response, _FAULT_BYTES_MAX)
        await self._kerberos.run(lambda: negotiation.check_server(proofs), "the server's response")
        try:
            return str(json.loads(body)["Token"]["urlString"])
        except (ValueError, KeyError, TypeError):
            raise StorageDenied(f"{url.host} returned no delegation token") from None

    @contextmanager
    def _token_may_end(self) -> Iterator[None]:
        """The token may expire after the NameNode's response: a DataNode asks it again."""
        used = self._token
        try:
            yield
        except RemoteFault as fault:
            if not self._by_kerberos or fault.exception not in _NO_SUCH_TOKEN:
                raise
            if self._token is used:
                self._token = None
            raise StorageUnavailable(f"the delegation token has expired: {fault}") from fault

    def _pass_over(self, namenode: int) -> None:
        if self._active == namenode:
            self._active = (namenode + 1) % len(self._location.addresses)

    def _url(self, namenode: int, op: str, path: str, parameters: Mapping[str, str]) -> URL:
        query = {"op": op, **parameters}
        scheme = "https" if self._location.tls else "http"
        encoded_path = quote(f"/webhdfs/v1{self.absolute(path)}")
        address = self._location.addresses[namenode]
        return URL(f"{scheme}://{address}{encoded_path}?{urlencode(query)}", encoded=True)

    def absolute(self, path: str) -> str:
        folder = self._location.folder
        return f"{folder}/{path}".rstrip("/") if path else folder or "/"

    def _read_token(self) -> str | None:
        try:
            return secret_from(self._config.hdfs_token_file, "store.hdfs_token_file")
        except ConfigError as error:
            raise StorageDenied(str(error)) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._config.connections_max, socket_factory=self._sockets.new
                ),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=self._config.connect_max_ms / 1000,
                    sock_read=self._config.read_max_ms / 1000,
                ),
                auto_decompress=False,
                # A NameNode would accept its cookie instead of a token.
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _check(response: aiohttp.ClientResponse, status: int) -> None:
    if response.status != status:
        fault = remote_fault(response.status, await _received(response, _FAULT_BYTES_MAX))
        challenges = response.headers.getall("WWW-Authenticate", [])
        fault.wants_kerberos = response.status == 401 and offered(challenges)
        pause_headers = response.headers.get("Retry-After"), response.headers.get("Date")
        fault.retry_after_s = retry_pause_s(*pause_headers)
        raise fault


def _is_refused(fault: RemoteFault, token: str | None) -> bool:
    """Whether the NameNode refused the request because of its token, or the lack of a token."""
    if token is None:
        return fault.wants_kerberos
    return fault.exception in _NO_SUCH_TOKEN or fault.status == 401


async def _body(response: aiohttp.ClientResponse, bytes_max: int, operation: str) -> bytes:
    """Raises LongerThanWanted, before reading anything if the response states its length."""
    length = response.content_length
    if length is not None and length > bytes_max:
        raise LongerThanWanted(operation, length)
    body = await _received(response, bytes_max)
    if len(body) > bytes_max:
        raise LongerThanWanted(operation, len(body))
    return body


async def _received(response: aiohttp.ClientResponse, enough_bytes: int) -> bytes:
    """The whole body, or a little more than `enough_bytes` of it."""
    parts: list[bytes] = []
    async for part in response.content.iter_any():
        parts.append(part)
        enough_bytes -= len(part)
        if enough_bytes < 0:
            break
    return b"".join(parts)


def _place(location: str, op: str) -> URL:
    """The address of a redirect. It may contain a token, so no error repeats it."""
    with suppress(ValueError):
        target_url = URL(location, encoded=True)
        if target_url.scheme in ("http", "https") and target_url.host and target_url.port:
            return target_url
    raise StorageUnavailable(f"{op}: the NameNode names no address that can be used")
