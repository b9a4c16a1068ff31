"""Answers that no HDFS, or only another one, gives: never wrong bytes, never a false "empty"."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import (
    DamagedObject,
    ObjectNotFound,
    ObjectNotReadable,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.hdfs import HdfsObjectStore
from fetchproxy.storage.stores.kerberos import offered
from fetchproxy.storage.stores.locations import HdfsLocation
from fetchproxy.storage.stores.retries import tried_once
from fetchproxy.storage.watched_store import WatchedObjectStore

ExpectedResponse = Callable[[web.Request], web.Response]
FOLDER = {"FileStatus": {"pathSuffix": "", "type": "DIRECTORY", "length": 0, "modificationTime": 0}}


def exception_response(
    exception: str, status: int = 403, message: str = "m\n\tat a.b.c(D.java)"
) -> web.Response:
    fault = {"exception": exception, "javaClassName": "x", "message": message}
    return web.json_response({"RemoteException": fault}, status=status)


def moved(request: web.Request) -> web.Response:
    """Redirect to the "DataNode", which is the same server."""
    location = f"http://{request.host}/datanode?op={request.query['op']}"
    return web.Response(status=307, headers={"Location": location})


def namenode(**responses: ExpectedResponse) -> ExpectedResponse:
    """Answers by operation; the archive's folder exists."""

    def response(request: web.Request) -> web.Response:
        op = request.query["op"]
        if request.path == "/datanode":
            return responses[f"{op}_DATA"](request)
        if op == "GETFILESTATUS" and op not in responses:
            return web.json_response(FOLDER)
        if op not in responses:
            return moved(request)
        return responses[op](request)

    return response


@asynccontextmanager
async def server(response: ExpectedResponse) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        return response(request)

    async with streaming(handle) as address:
        yield address


@asynccontextmanager
async def streaming(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def answering(response: ExpectedResponse, **keys: object) -> AsyncIterator[HdfsObjectStore]:
    async with (
        server(response) as address,
        HdfsObjectStore(
            HdfsLocation((address,), "/a", user="me"), config=StoreConfig.model_validate(keys)
        ) as store,
    ):
        yield store


@pytest.mark.parametrize(
    ("exception", "status", "expected", "retriable"),
    [
        ("FileNotFoundException", 404, ObjectNotFound, False),
        ("ParentNotDirectoryException", 403, ObjectNotFound, False),
        ("AccessControlException", 403, StorageDenied, False),
        ("SecurityException", 401, StorageDenied, False),
        ("InvalidToken", 403, StorageDenied, False),
        ("StandbyException", 403, StorageUnavailable, True),
        ("SafeModeException", 403, StorageUnavailable, True),
        ("RetriableException", 403, StorageThrottled, True),
        ("IOException", 403, StorageUnavailable, True),
        ("DSQuotaExceededException", 403, RemoteStorageError, False),
        ("PathComponentTooLongException", 403, RemoteStorageError, False),
        ("IllegalArgumentException", 400, RemoteStorageError, False),
        ("RuntimeException", 500, StorageUnavailable, True),
    ],
)
async def test_javas_exceptions_in_our_words(
    exception: str, status: int, expected: type[RemoteStorageError], retriable: bool
) -> None:
    async with answering(namenode(OPEN=lambda _: exception_response(exception, status))) as store:
        with pytest.raises(RemoteStorageError, match=exception) as error:
            await store.get("k")
    assert type(error.value) is expected
    assert error.value.retriable is retriable
    assert "a.b.c" not in str(error.value)  # no stack trace


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, StorageDenied),
        (403, StorageDenied),
        (404, StorageUnavailable),
        (429, StorageThrottled),
        (503, StorageThrottled),
        (502, StorageUnavailable),
    ],
)
async def test_something_in_between_that_is_no_namenode(
    status: int, expected: type[RemoteStorageError]
) -> None:
    page = web.Response(status=status, text="<html>no</html>")
    async with answering(lambda _: web.Response(status=status, text=page.text)) as store:
        for call in (store.get("k"), store.put("k", b"x"), store.delete("k")):
            with pytest.raises(RemoteStorageError) as error:
                await call
            assert type(error.value) is expected


async def test_a_broken_range_is_not_taken_for_the_end() -> None:
    status = {"FileStatus": {**FOLDER["FileStatus"], "type": "FILE", "length": 100}}

    def stat(request: web.Request) -> web.Response:
        return web.json_response(status if request.path.endswith("/k") else FOLDER)

    async with answering(
        namenode(GETFILESTATUS=stat, OPEN=lambda _: exception_response("IOException"))
    ) as store:
        with pytest.raises(StorageUnavailable):
            await store.get_range("k", ByteRange(99, 101))
        with pytest.raises(RangeNotSatisfiable):
            await store.get_range("k", ByteRange(100, 101))


async def test_more_bytes_than_asked_for_are_no_range() -> None:
    async with answering(namenode(OPEN_DATA=lambda _: web.Response(body=b"0123456789"))) as store:
        assert await store.get_range("k", ByteRange(0, 10)) == b"0123456789"
        with pytest.raises(StorageUnavailable):
            await store.get_range("k", ByteRange(0, 9))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"DirectoryListing": {"remainingEntries": 0}}',
        json.dumps(
            {
                "DirectoryListing": {
                    "partialListing": {"FileStatuses": {"FileStatus": []}},
                    "remainingEntries": 5,
                }
            }
        ).encode(),
    ],
)
async def test_what_is_no_listing_is_no_empty_folder(body: bytes) -> None:
    async with answering(namenode(LISTSTATUS_BATCH=lambda _: web.Response(body=body))) as store:
        with pytest.raises(StorageUnavailable):
            [stored_object async for stored_object in store.list("")]


async def test_a_page_that_does_not_go_on_ends_the_listing_with_an_error() -> None:
    """Without this, the listing of a server that ignores startAfter would never end."""
    entry = {**FOLDER["FileStatus"], "type": "FILE", "pathSuffix": "a"}
    listing = {"partialListing": {"FileStatuses": {"FileStatus": [entry]}}, "remainingEntries": 1}
    response = json.dumps({"DirectoryListing": listing}).encode()
    async with answering(namenode(LISTSTATUS_BATCH=lambda _: web.Response(body=response))) as store:
        with pytest.raises(StorageUnavailable, match="is listed after"):
            [stored_object async for stored_object in store.list("")]


async def test_a_server_that_cannot_replace_files_says_so() -> None:
    """HttpFS ignores `renameoptions` and renames only to a free name."""
    removed: list[str] = []

    def delete(request: web.Request) -> web.Response:
        removed.append(request.path)
        return web.json_response({"boolean": "~" in request.path})

    async with answering(
        namenode(
            CREATE_DATA=lambda _: web.Response(status=201),
            RENAME=lambda _: web.json_response({"boolean": False}),
            DELETE=delete,
        )
    ) as store:
        with pytest.raises(RemoteStorageError, match="HttpFS") as error:
            await store.put("f/k", b"x")
    assert not error.value.retriable
    assert re.fullmatch(r"/webhdfs/v1/a/f/~put-[0-9a-f]+", removed[0])


async def test_a_standby_is_passed_over_for_good() -> None:
    requests: list[str] = []

    def standby(request: web.Request) -> web.Response:
        requests.append("standby")
        return exception_response("StandbyException")

    def active(request: web.Request) -> web.Response:
        requests.append("active")
        return web.json_response(FOLDER)

    async with server(standby) as one, server(active) as other:
        async with HdfsObjectStore(HdfsLocation((one, other), "/a")) as store:
            await store._check_present()
            await store._check_present()
        assert requests == ["standby", "active", "active"]
        async with HdfsObjectStore(HdfsLocation((one, one), "/a")) as store:
            with pytest.raises(StorageUnavailable, match="StandbyException"):
                await store._check_present()


@pytest.mark.parametrize("exception", ["InvalidToken", "SecurityException"])
async def test_a_refused_token_is_read_again(tmp_path: Path, exception: str) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    def check(request: web.Request) -> web.Response:
        assert "user.name" not in request.query
        return (
            web.json_response(FOLDER)
            if request.query["delegation"] == "new"
            else exception_response(exception)
        )

    async with answering(check, hdfs_token_file=token) as store:
        with pytest.raises(StorageDenied, match=exception):
            await store._check_present()
        token.write_text("new\n")
        await store._check_present()
        token.write_text("unread\n")
        await store._check_present()
    token.unlink()
    async with answering(check, hdfs_token_file=token) as store:
        with pytest.raises(StorageDenied, match=r"hdfs_token_file cannot be read"):
            await store._check_present()


# --- answers larger than allowed ---
@pytest.mark.parametrize("stated", [True, False])
async def test_an_object_without_end_is_given_up(stated: bool) -> None:
    """By the stated length; HttpFS may state none, then after a number of bytes."""
    bytes_sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal bytes_sent
        if request.query["op"] == "GETFILESTATUS":
            return web.json_response(FOLDER)
        response = web.StreamResponse()
        if stated:
            response.content_length = 4 * 1024**4
        await response.prepare(request)
        with suppress(ConnectionError, asyncio.CancelledError):
            while True:
                await response.write(bytes(64 * 1024))
                bytes_sent += 64 * 1024
        return response

    async with streaming(endless) as address:
        location = HdfsLocation((address,), "/a", user="me")
        async with HdfsObjectStore(location, config=StoreConfig()) as store:
            with pytest.raises(DamagedObject, match=r"^k has \d+ bytes.*1048576 at most"):
                await store.get("k", 1024 * 1024)
            with pytest.raises(StorageUnavailable, match="bytes came"):
                await store.get_range("k", ByteRange(0, 1000))
    assert bytes_sent < 64 * 1024 * 1024  # only buffered data


@pytest.mark.parametrize(("broken", "count_expected"), [(1, 2), (2, 2)])
async def test_an_answer_that_breaks_off_is_asked_for_once_more(
    broken: int, count_expected: int
) -> None:
    """As if the file was replaced within the first response."""
    responses = 0

    async def breaking_off(request: web.Request) -> web.StreamResponse:
        nonlocal responses
        if request.query["op"] == "GETFILESTATUS":
            return web.json_response(FOLDER)
        responses += 1
        response = web.StreamResponse()
        response.content_length = 8
        await response.prepare(request)
        await response.write(b"half" if responses <= broken else b"complete")
        if responses <= broken:
            assert request.transport is not None
            request.transport.close()
        return response

    async with streaming(breaking_off) as address:
        location = HdfsLocation((address,), "/a", user="me")
        async with HdfsObjectStore(location, config=StoreConfig()) as store:
            if broken == 1:
                assert await store.get("k") == b"complete"
            else:
                with pytest.raises(StorageUnavailable):
                    await store.get("k")
    assert responses == count_expected


async def test_a_namenode_that_says_too_much_is_given_up() -> None:
    body = b"[" * (17 * 1024 * 1024)
    async with answering(lambda _: web.Response(body=body)) as store:
        with pytest.raises(StorageUnavailable, match="DELETE: 17825792 bytes"):
            await store.delete("k")


# --- the delegation token ---
SECRET = "s3cret-Token_of.me"


@pytest.mark.parametrize(
    "location",
    [
        "http://{host}:99999/x?delegation={token}",
        "http://{host}:port/x?delegation={token}",
        "http://[::1/x?delegation={token}",
        "ftp://{host}/x?delegation={token}",
        "http:///x?delegation={token}",
        "http://exa mple/x?delegation={token}",
        "http://{host}:1/x?delegation={token}",
        "/x?delegation={token}",
        "?delegation={token}",
    ],
)
async def test_a_redirect_that_cannot_be_used_shows_no_token(location: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o600)
    redirect_url = location.format(host="127.0.0.1", token=SECRET)

    def redirect(request: web.Request) -> web.Response:
        if request.query["op"] == "GETFILESTATUS":
            return web.json_response(FOLDER)
        return web.Response(status=307, headers={"Location": redirect_url})

    async with answering(redirect, hdfs_token_file=token) as store:
        for call in (store.get("k"), store.get_range("k", ByteRange(0, 1)), store.put("k", b"x")):
            with pytest.raises(StorageUnavailable) as error:
                await call
            assert SECRET not in "".join(traceback.format_exception(error.value))


async def test_an_answer_that_repeats_the_request_shows_no_token(tmp_path: Path) -> None:
    """The answer is an intermediary's error page, or no HTTP at all."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o600)

    def page(request: web.Request) -> web.Response:
        return web.Response(status=502, text=f"no way to {request.path_qs}")

    async with answering(page, hdfs_token_file=token) as store:
        with pytest.raises(StorageUnavailable, match="no way to") as error:
            await store.get("k")
        assert SECRET not in "".join(traceback.format_exception(error.value))

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 what\x00 is this\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(garbage, "127.0.0.1", 0) as listener:
        host, port = listener.sockets[0].getsockname()
        config = StoreConfig(hdfs_token_file=token)
        async with HdfsObjectStore(HdfsLocation((f"{host}:{port}",), "/a"), config=config) as store:
            with pytest.raises(StorageUnavailable) as error:
                await store.get("k")
            assert SECRET not in "".join(traceback.format_exception(error.value))


# --- Kerberos, without a KDC ---
def wants_kerberos(request: web.Request) -> web.Response:
    return web.Response(status=401, headers={"WWW-Authenticate": "Negotiate"})


async def test_kerberos_without_the_package_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    async with answering(wants_kerberos) as store:
        with pytest.raises(StorageDenied, match=r"pip install '\.\[kerberos\]'"):
            await store.get("k")


async def test_a_token_of_the_file_is_not_replaced_by_kerberos(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    operations: list[str] = []

    def refuse(request: web.Request) -> web.Response:
        operations.append(request.query["op"])
        return wants_kerberos(request)

    async with answering(refuse, hdfs_token_file=token) as store:
        with pytest.raises(StorageDenied, match="status 401"):
            await store.get("k")
    assert set(operations) == {"OPEN"}


@pytest.mark.parametrize(
    ("challenges", "expected"),
    [
        (["Negotiate"], True),
        (["Basic realm=x", "NEGOTIATE abc"], True),
        ([], False),
        ([""], False),
        (["Basic realm=negotiate"], False),
        (["Negotiated"], False),
    ],
)
def test_whether_kerberos_is_wanted(challenges: list[str], expected: bool) -> None:
    assert offered(challenges) is expected


async def test_a_file_whose_blocks_are_on_no_datanode() -> None:
    """The NameNode finds that out itself, and names no exception of its own."""
    without: set[str] = set()

    def opened(request: web.Request) -> web.Response:
        if request.path.rpartition("/")[2] in without:
            return exception_response("IOException", message="No active nodes contain this block")
        return moved(request)

    def content(request: web.Request) -> web.Response:
        return web.Response(body=b"content")

    async with answering(namenode(OPEN=opened, OPEN_DATA=content)) as inner:
        store = WatchedObjectStore(inner, "layout")
        assert await store.get("k") == b"content"
        without.add("k")
        of_object = "No active nodes contain this block; the store returns other objects"
        with pytest.raises(ObjectNotReadable, match=of_object):
            await store.get("k")
        without.add("layout")
        with tried_once(), pytest.raises(StorageUnavailable, match="No active nodes"):
            await store.get("k")
