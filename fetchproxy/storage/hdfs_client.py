"""WebHDFS: the requests of one HDFS, with the way to its DataNodes and to its other NameNode.

Raises `RemoteFault` for what HDFS answers and aiohttp's errors for what it does not: `hdfs_errors`
translates both. Every request is tried once, but for a NameNode that cannot have acted on it:
nobody there, or a standby. Back-off is the caller's.

Bytes come from and go to DataNodes: a NameNode answers with an address, which is followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from fetchproxy.config.secret_file import secret_from
from fetchproxy.config.sections import StoreConfig
from fetchproxy.errors import ConfigError, RemoteStorageError, StorageDenied, StorageUnavailable
from fetchproxy.storage.client_sockets import ClientSockets
from fetchproxy.storage.hdfs_answers import decoded
from fetchproxy.storage.hdfs_errors import STANDBY, RemoteFault, remote_fault
from fetchproxy.storage.hdfs_location import HdfsLocation

_REDIRECTS = frozenset({301, 302, 307, 308})
_NO_SUCH_TOKEN = frozenset({"InvalidToken", "SecretManager$InvalidToken"})
# Of an answer without data: a page of a listing has a thousand names.
_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_FAULT_BYTES_MAX = 64 * 1024


class LongerThanWanted(Exception):
    """`size_bytes` would come, or did until it was enough."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"{size_bytes} bytes")
        self.size_bytes = size_bytes


class WebHdfsClient:
    """Use it on one loop. Paths are relative to the location's folder, which is the path ""."""

    def __init__(self, location: HdfsLocation, config: StoreConfig) -> None:
        self._location = location
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._sockets = ClientSockets(config.write_max_ms)
        self._active = 0  # the NameNode that answered last
        self.date: str | None = None  # as that one's last answer says, of HTTP
        self._token: str | None = None

    async def close(self) -> None:
        if self._session is None:
            return
        await self._session.close()
        await self._sockets.shut()

    async def ask(self, method: str, op: str, path: str, **parameters: str) -> Mapping[str, Any]:
        """The answer of a request that moves no data."""
        try:
            _, body = await self._ask_namenode(method, op, path, parameters)
        except LongerThanWanted as longer:
            raise StorageUnavailable(f"{op}: an answer of {longer}") from None
        return decoded(body, op) if body else {}

    async def read(self, path: str, bytes_max: int, **parameters: str) -> bytes:
        """OPEN. Raises an error where the connection ends before the stated length.

        LongerThanWanted where more than `bytes_max` would come: nothing is read then.
        """
        address, body = await self._ask_namenode("GET", "OPEN", path, parameters, bytes_max)
        if address is None:
            return body
        async with self._opened().get(address, allow_redirects=False) as answer:
            await _check(answer, 200)
            if answer.content_length is None:
                raise StorageUnavailable(f"OPEN {path}: the DataNode states no length")
            return await _body(answer, bytes_max)

    async def place_for(self, path: str) -> URL:
        """Where a DataNode awaits a new file's content. Nothing is made yet."""
        address, _ = await self._ask_namenode("PUT", "CREATE", path, {"overwrite": "false"})
        if address is None:
            raise StorageUnavailable("CREATE: the NameNode names no DataNode")
        return address

    async def create(self, place: URL, size_bytes: int, content: AsyncIterator[bytes]) -> None:
        """A new file; the folders above it are made. TimeoutError where one part takes too long."""
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        part_max_s = self._config.write_max_ms / 1000
        failures: list[RemoteStorageError] = []  # of the content itself, which aiohttp would wrap
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
                    place, data=timed(), headers=headers, allow_redirects=False
                )
                async with request as answer:
                    await _check(answer, 201)
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
        bytes_max: int = _ANSWER_BYTES_MAX,
    ) -> tuple[URL | None, bytes]:
        """(the DataNode's address, b"") or (None, the answer's body)."""
        tries_left = len(self._location.addresses)
        token_is_fresh = False
        while True:
            asked = self._active
            try:
                if self._config.hdfs_token_file is not None and self._token is None:
                    self._token = await asyncio.to_thread(self._read_token)
                    token_is_fresh = True
                url = self._url(asked, op, path, parameters)
                return await self._ask_once(method, url, op, bytes_max)
            except RemoteFault as fault:
                if fault.exception in _NO_SUCH_TOKEN and self._token and not token_is_fresh:
                    self._token = None  # somebody may have put a new one into the file
                    continue
                if fault.exception not in STANDBY or tries_left <= 1:
                    raise
            except aiohttp.ServerTimeoutError:
                self._pass_over(asked)  # it may have acted on the request
                raise
            except aiohttp.ClientConnectorError:
                if tries_left <= 1:
                    raise
            tries_left -= 1
            self._pass_over(asked)

    async def _ask_once(
        self, method: str, url: URL, op: str, bytes_max: int
    ) -> tuple[URL | None, bytes]:
        async with self._request(method, url) as answer:
            self.date = answer.headers.get("Date")
            if answer.status in _REDIRECTS and "Location" in answer.headers:
                return _place(answer.headers["Location"], op), b""
            await _check(answer, 200)
            return None, await _body(answer, bytes_max)

    def _request(
        self, method: str, url: URL
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._opened().request(method, url, allow_redirects=False)

    def _pass_over(self, asked: int) -> None:
        if self._active == asked:
            self._active = (asked + 1) % len(self._location.addresses)

    def _url(self, asked: int, op: str, path: str, parameters: Mapping[str, str]) -> URL:
        query = {"op": op, **parameters}
        if self._token is not None:
            query["delegation"] = self._token
        elif self._location.user is not None:
            query["user.name"] = self._location.user
        scheme = "https" if self._location.tls else "http"
        place = quote(f"/webhdfs/v1{self.absolute(path)}")
        address = self._location.addresses[asked]
        return URL(f"{scheme}://{address}{place}?{urlencode(query)}", encoded=True)

    def absolute(self, path: str) -> str:
        """As HDFS names it."""
        folder = self._location.folder
        return f"{folder}/{path}".rstrip("/") if path else folder or "/"

    def _read_token(self) -> str | None:
        try:
            return secret_from(None, self._config.hdfs_token_file, "store.hdfs_token_file")
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
            )
        return self._session


async def _check(answer: aiohttp.ClientResponse, status: int) -> None:
    if answer.status != status:
        raise remote_fault(answer.status, await _received(answer, _FAULT_BYTES_MAX))


async def _body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Raises LongerThanWanted: before anything is read, where the answer states its length."""
    stated = answer.content_length
    if stated is not None and stated > bytes_max:
        raise LongerThanWanted(stated)
    body = await _received(answer, bytes_max)
    if len(body) > bytes_max:
        raise LongerThanWanted(len(body))
    return body


async def _received(answer: aiohttp.ClientResponse, enough_bytes: int) -> bytes:
    """All of it, or a little more than is enough."""
    parts: list[bytes] = []
    async for part in answer.content.iter_any():
        parts.append(part)
        enough_bytes -= len(part)
        if enough_bytes < 0:
            break
    return b"".join(parts)


def _place(location: str, op: str) -> URL:
    """Where a NameNode sends us. What it says may hold a token, so no error repeats it."""
    with suppress(ValueError):
        place = URL(location, encoded=True)
        if place.scheme in ("http", "https") and place.host and place.port:
            return place
    raise StorageUnavailable(f"{op}: the NameNode names no address that can be used")
