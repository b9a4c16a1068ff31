"""Servers that response wrongly, slowly or in part: never wrong bytes, never a false "empty"."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pytest

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import (
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores import retries
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.retries import REQUEST_TRIES_MAX
from fetchproxy.storage.stores.s3 import S3ObjectStore

MiB = 1024 * 1024
ExpectedResponse = Callable[[str], bytes]  # from the request's head


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(retries, "PAUSES_S", (0.0,) * (REQUEST_TRIES_MAX - 1))
    monkeypatch.setattr(retries, "THROTTLED_PAUSE_S", 0.0)


def http(status: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "Connection: close", "", ""]).encode() + body


def error(status: str, code: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>"
    return http(status, body.encode(), "Content-Type: application/xml")


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close it before its loop closes, or a later test gets the warning."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def answering(
    response: ExpectedResponse, *, silent: bool = False, requester_pays: bool = False
) -> AsyncIterator[S3ObjectStore]:
    """A store whose server gives this response; `silent`: it then keeps the connection open."""

    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(response(head))
            await writer.drain()
            if silent:
                await reader.read()  # until the client gives up
        finally:
            await closed(writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        served.add(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = StoreConfig(timeout_ms=300 if silent else 60_000)
    try:
        async with S3ObjectStore(
            S3Location(
                "bucket",
                endpoint_url=f"http://127.0.0.1:{port}",
                region="us-east-1",
                requester_pays=requester_pays,
            ),
            config=config,
            part_bytes=5 * MiB,
        ) as store:
            store._checks_crc64 = False  # no probe before a first write, unless a test wants it
            yield store
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*served, return_exceptions=True)


WRONG_REGION = (
    b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>m</Message>"
    b"<Region>eu-west-1</Region></Error>"
)
UPLOADS_LEFT = (
    b"<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>u1</UploadId></Upload>"
    b"<Upload><Key>k2</Key><UploadId>u2</UploadId></Upload></ListMultipartUploadsResult>"
)
NONE_LEFT = b"<ListMultipartUploadsResult></ListMultipartUploadsResult>"
BEGUN = b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
NO_SUCH_KEY = error("404 Not Found", "NoSuchKey")
RANGE = ByteRange(10, 20)


@pytest.mark.parametrize(
    "reply",
    [
        http("200 OK", b"x" * 100),  # the whole object: Range was ignored
        http("200 OK", b"x" * 10),  # the right number of bytes, but the first ones
        http("206 Partial Content", b"x" * 10),
        http("206 Partial Content", b"x" * 10, "Content-Range: bytes 0-9/100"),
        http("206 Partial Content", b"x" * 10, "Content-Range: bytes 11-20/100"),
        http("206 Partial Content", b"x" * 9, "Content-Range: bytes 10-18/100"),
        http("206 Partial Content", b"x" * 9, "Content-Range: bytes 10-19/100"),
        http("206 Partial Content", b"x" * 9, "Content-Range: bytes 10-18/*"),
        http("206 Partial Content", b"x" * 10, "Content-Range: chapters 10-19/100"),
        http("206 Partial Content", b"x" * 4, "Content-Range: bytes 10-19/100", length=10),
        http("206 Partial Content", b"", "Content-Range: bytes 10-19/100", length=10),
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-19/100\r\n\r\n" + b"x" * 10,
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"",
    ],
)
async def test_another_range_than_asked_for(reply: bytes) -> None:
    async with answering(lambda _: reply) as store:
        with pytest.raises(StorageUnavailable):
            await store.get_range("k", RANGE)


async def test_ranges_that_are_right() -> None:
    full = http("206 Partial Content", b"0123456789", "Content-Range: bytes 10-19/100")
    short = http("206 Partial Content", b"01234", "Content-Range: bytes 10-14/15")
    unsized = http("206 Partial Content", b"0123456789", "Content-Range: bytes 10-19/*")
    for reply, expected in ((full, b"0123456789"), (short, b"01234"), (unsized, b"0123456789")):
        async with answering(lambda _, reply=reply: reply) as store:
            assert await store.get_range("k", RANGE) == expected


async def test_the_whole_object_for_its_whole_range() -> None:
    async with answering(lambda _: http("200 OK", b"0123456789")) as store:
        assert await store.get_range("k", ByteRange(0, 10)) == b"0123456789"
        assert await store.get_range("k", ByteRange(0, 50)) == b"0123456789"
        with pytest.raises(StorageUnavailable, match="ignores ranges"):
            await store.get_range("k", ByteRange(0, 9))


async def test_an_object_cut_short() -> None:
    async with answering(lambda _: http("200 OK", b"x" * 50, length=100)) as store:
        with pytest.raises(StorageUnavailable):
            await store.get("k")


@pytest.mark.parametrize("bytes_sent", [0, 50])
async def test_silence_within_an_answer(bytes_sent: int) -> None:
    head = http("200 OK", b"x" * bytes_sent, length=100) if bytes_sent else b""
    async with answering(lambda _: head, silent=True) as store, asyncio.timeout(60):
        with pytest.raises(StorageUnavailable):
            await store.get("k")


async def test_silence_after_a_body(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x" * MiB)
    async with answering(lambda _: b"", silent=True) as store, asyncio.timeout(60):
        with pytest.raises(StorageUnavailable):
            await store.put("k", b"x")
        with pytest.raises(StorageUnavailable):
            await store.put_file("k", path)


async def test_a_server_that_stops_taking_bytes() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    config = StoreConfig(timeout_ms=100)
    async with S3ObjectStore(
        S3Location("bucket", endpoint_url=f"http://127.0.0.1:{port}", region="us-east-1"),
        config=config,
    ) as store:
        async with asyncio.timeout(60):
            with pytest.raises(StorageUnavailable):
                await store.put("k", bytes(32 * MiB))
    server.close()
    for writer in connections:
        await closed(writer)
    await server.wait_closed()


Call = Callable[[S3ObjectStore], Awaitable[object]]


async def listed(store: S3ObjectStore) -> list[str]:
    return [stored_object.key async for stored_object in store.list("")]


async def folders(store: S3ObjectStore) -> list[str]:
    return [name async for name in store.list_folders("")]


def listing(*keys: str, extra: str = "<IsTruncated>false</IsTruncated>") -> bytes:
    contents = "".join(
        f'<Contents><Key>{key}</Key><Size>1</Size><ETag>"e"</ETag></Contents>' for key in keys
    )
    body = f"<?xml version='1.0'?><ListBucketResult>{extra}{contents}</ListBucketResult>"
    return http("200 OK", body.encode(), "Content-Type: application/xml")


@pytest.mark.parametrize(
    "reply",
    [
        http("200 OK", b"<html><body>Sign in to this network</body></html>"),
        http("200 OK", b""),
        http("200 OK", b"<?xml version='1.0'?><ListBucketResult><Contents><Key>a"),
        listing("a", extra=""),
        listing("b", "a"),
        listing("a", "a"),
        listing("a", extra="<IsTruncated>true</IsTruncated>"),
        error("404 Not Found", "NoSuchBucket"),
        error("404 Not Found", "NoSuchKey"),
        http("404 Not Found", b""),
        http("404 Not Found", b"<html>nginx</html>"),
        http("502 Bad Gateway", b"<html>nginx</html>"),
        b"",
    ],
)
@pytest.mark.parametrize("call", [listed, folders])
async def test_no_wrong_listing_looks_empty(reply: bytes, call: Call) -> None:
    async with answering(lambda _: reply) as store:
        if call is folders and b"<Contents>" in reply and b"<IsTruncated>false" in reply:
            return  # listing folders ignores the order of objects
        with pytest.raises(StorageUnavailable):
            await call(store)


async def test_a_listing_of_several_pages() -> None:
    def page(head: str) -> bytes:
        path = head.split(" ")[1]
        if "continuation-token=two" in path:
            return listing("c", "d/")
        more = "<IsTruncated>true</IsTruncated><NextContinuationToken>two</NextContinuationToken>"
        return listing("a", "b", extra=more)

    async with answering(page) as store:
        assert await listed(store) == ["a", "b", "c"]  # "d/" is a console's folder, not an object


async def test_a_second_page_that_fails_is_not_the_end() -> None:
    def page(head: str) -> bytes:
        if "continuation-token=two" in head.split(" ")[1]:
            return error("500 Internal Server Error", "InternalError")
        more = "<IsTruncated>true</IsTruncated><NextContinuationToken>two</NextContinuationToken>"
        return listing("a", extra=more)

    async with answering(page) as store:
        with pytest.raises(StorageUnavailable):
            await listed(store)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error("404 Not Found", "NoSuchKey"), ObjectNotFound),
        (http("404 Not Found", b""), ObjectNotFound),
        (error("404 Not Found", "NoSuchBucket"), StorageUnavailable),
        (error("416 Range Not Satisfiable", "InvalidRange"), RangeNotSatisfiable),
        (http("416 Range Not Satisfiable", b""), RangeNotSatisfiable),
        (error("403 Forbidden", "AccessDenied"), StorageDenied),
        (error("403 Forbidden", "SignatureDoesNotMatch"), StorageDenied),
        (error("401 Unauthorized", "Whatever"), StorageDenied),
        (error("400 Bad Request", "ExpiredToken"), StorageDenied),
        (error("503 Slow Down", "SlowDown"), StorageThrottled),
        (error("429 Too Many Requests", "Whatever"), StorageThrottled),
        (error("503 Service Unavailable", "ServiceUnavailable"), StorageThrottled),
        (http("503 Service Unavailable", b""), StorageThrottled),
        (error("500 Internal Server Error", "InternalError"), StorageUnavailable),
        (http("502 Bad Gateway", b"<html>nginx</html>"), StorageUnavailable),
        (http("504 Gateway Timeout", b""), StorageUnavailable),
        (error("408 Request Timeout", "Whatever"), StorageUnavailable),
        (error("400 Bad Request", "RequestTimeout"), StorageUnavailable),
        (error("409 Conflict", "OperationAborted"), StorageUnavailable),
        (error("400 Bad Request", "InvalidRequest"), RemoteStorageError),
        (error("501 Not Implemented", "NotImplemented"), StorageUnavailable),
    ],
)
async def test_what_the_store_says(reply: bytes, expected: type[RemoteStorageError]) -> None:
    async with answering(lambda _: reply) as store:
        with pytest.raises(RemoteStorageError) as error:
            await store.get_range("k", RANGE)
    assert type(error.value) is expected
    assert "k" in str(error.value)


async def test_a_clock_that_is_wrong_is_named() -> None:
    reply = error("403 Forbidden", "RequestTimeTooSkewed")
    async with answering(lambda _: reply) as store:
        for call in (store.get("k"), listed(store), store.put("k", b"")):
            with pytest.raises(StorageDenied, match="correct this machine's clock"):
                await call


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
@pytest.mark.parametrize("place", ["", "Location: https://127.0.0.1:9/bucket/k"])
async def test_a_server_that_sends_all_requests_elsewhere(
    status: str, place: str, tmp_path: Path
) -> None:
    """As a load balancer before the store that wants TLS, or a portal. One sentence says so."""
    path = tmp_path / "segment"
    path.write_bytes(b"x" * MiB)
    async with answering(lambda _: http(status, b"", *[place] * bool(place))) as store:
        for call in (
            store.get("k"),
            store.get_range("k", RANGE),
            listed(store),
            folders(store),
            store.delete("k"),
            store.clock_ms("k"),
            store.put("k", b""),
            store.put_new("k", b""),
            store.put_file("k", path),
        ):
            with pytest.raises(StorageUnavailable, match=r"sends requests elsewhere|redirect"):
                await call


async def test_a_page_is_asked_for_again_and_the_caller_repeats_all_else() -> None:
    heads: list[str] = []

    def refuse(head: str) -> bytes:
        heads.append(head)
        return error("503 Slow Down", "SlowDown")

    async with answering(refuse) as store:
        for call in (store.get("k"), store.put("k", b""), store.delete("k"), listed(store)):
            heads.clear()
            with pytest.raises(StorageThrottled):
                await call
            assert len(heads) == (REQUEST_TRIES_MAX if "list-type" in heads[0] else 1)


async def test_where_conditions_are_not_known_it_looks_before_it_puts() -> None:
    there: set[str] = set()

    def response(head: str) -> bytes:
        method, target = head.split(" ")[:2]
        path = target.partition("?")[0]
        if method == "GET":
            is_there = path in there
            return http("200 OK", b"x", 'ETag: "x"') if is_there else NO_SUCH_KEY
        if "if-none-match" in head.lower():
            return error("501 Not Implemented", "NotImplemented")
        there.add(path)
        return http("200 OK", b"", 'ETag: "x"')

    async with answering(response) as store:
        assert await store.put_new("k", b"x")
        assert not await store.put_new("k", b"y")
        assert there == {"/bucket/k"}


async def test_a_body_is_protected_on_its_way() -> None:
    heads: list[str] = []

    def take(head: str) -> bytes:
        heads.append(head)
        return http("200 OK", b"", 'ETag: "x"')

    async with answering(take) as store:
        await store.put("k", b"hello")
        await store.put("k", b"x" * MiB)
    assert not any("expect:" in head.lower() for head in heads)
    for head, content in zip(heads, (b"hello", b"x" * MiB), strict=True):
        assert f"x-amz-content-sha256: {sha256(content).hexdigest()}" in head.lower()
        assert "x-amz-content-sha256" in re.search(r"SignedHeaders=(\S+)", head)[1]  # type: ignore[index]


async def test_an_upload_goes_where_the_store_is_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upload library reads its own environment variables; boto's were read before."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    heads: list[str] = []

    def take(head: str) -> bytes:
        heads.append(head)
        return http("200 OK", b"", 'ETag: "x"')

    async with answering(take) as store:
        await store.put("k", b"hello")
    assert heads[0].startswith("PUT /bucket/k ")
    assert "/us-east-1/s3/aws4_request" in heads[0]


async def test_who_asks_pays_for_every_request() -> None:
    heads: list[str] = []

    def take(head: str) -> bytes:
        heads.append(head)
        if "list-type" in head:
            return listing()
        return http("200 OK", b"x", 'ETag: "x"') if "GET" in head else http("200 OK", b"")

    async with answering(take, requester_pays=True) as store:
        await store.get("k")
        await store.get_range("k", ByteRange(0, 1))
        await listed(store)
        await folders(store)
        await store.delete("k")
        with suppress(RemoteStorageError):
            await store.put("k", b"x")
    assert len(heads) == 6
    assert all("x-amz-request-payer: requester" in head.lower() for head in heads)


async def test_an_upload_to_a_bucket_of_another_region() -> None:
    regions: list[str] = []

    def server(head: str) -> bytes:
        region = re.search(r"Credential=[^/]+/\d+/([^/]+)/s3", head)[1]  # type: ignore[index]
        regions.append(head.split(" ")[0] + " " + region)
        if region != "eu-west-1":
            body = b"" if head.startswith("HEAD") else WRONG_REGION
            return http("400 Bad Request", body, "x-amz-bucket-region: eu-west-1")
        return http("200 OK", b"", 'ETag: "x"', "x-amz-bucket-region: eu-west-1")

    async with answering(server) as store:
        await store.put("k", b"hello")
        await store.put("k", b"again")
    assert regions[0] == "PUT us-east-1"
    assert [region for region in regions if region.startswith("PUT")][1:] == ["PUT eu-west-1"] * 2


async def test_a_failed_part_fails_and_aborts_the_upload(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(16 * MiB))
    requests: list[str] = []

    def server(head: str) -> bytes:
        method, target = head.split(" ")[:2]
        requests.append(f"{method} {target.partition('?')[2]}")
        if method == "POST":
            return http("200 OK", BEGUN, "Content-Type: application/xml")
        if method == "DELETE":
            return http("204 No Content", b"")
        if method == "GET":
            uploads_stay = not any("DELETE" in request for request in requests)
            return http(
                "200 OK",
                UPLOADS_LEFT if uploads_stay else NONE_LEFT,
                "Content-Type: application/xml",
            )
        if "partNumber=2" in target:
            return error("503 Slow Down", "SlowDown")
        return http("200 OK", b"", 'ETag: "x"')

    async with answering(server) as store:
        with pytest.raises(StorageThrottled):
            await store.put_file("k", path)
    assert [request for request in requests if "POST" in request] == ["POST uploads="]
    assert "DELETE uploadId=u1" in requests


@pytest.mark.parametrize(
    "responses",
    [
        pytest.param([error("500 Internal Server Error", "InternalError")], id="that fails"),
        pytest.param([http("204 No Content", b"")] * 2, id="a late part brings it back"),
    ],
)
async def test_an_upload_is_aborted_until_it_is_gone(
    tmp_path: Path, responses: list[bytes]
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(6 * MiB))
    aborts = [*responses, error("404 Gone", "NoSuchUpload")]
    requests: list[str] = []

    def server(head: str) -> bytes:
        method = head.split(" ")[0]
        if method == "POST":
            return http("200 OK", BEGUN, "Content-Type: application/xml")
        if method == "DELETE":
            requests.append(head.split(" ")[1].partition("?")[2])
            return aborts.pop(0)
        if method == "GET":
            uploads_listed = UPLOADS_LEFT if aborts else NONE_LEFT
            return http("200 OK", uploads_listed, "Content-Type: application/xml")
        return error("403 Forbidden", "AccessDenied")

    async with answering(server) as store:
        with pytest.raises(RemoteStorageError):  # perhaps the error of the abort
            await store.put_file("k", path)
    assert aborts == []
    assert set(requests) == {"uploadId=u1"}, "an upload to another key is somebody else's"


async def test_an_error_within_a_good_answer_to_complete(tmp_path: Path) -> None:
    """S3 answers 200 before it knows whether it can join the parts."""
    path = tmp_path / "segment"
    path.write_bytes(bytes(6 * MiB))

    def server(head: str) -> bytes:
        method, target = head.split(" ")[:2]
        if method == "POST" and "uploadId" in target:
            return error("200 OK", "InternalError")
        if method == "POST":
            return http("200 OK", BEGUN, "Content-Type: application/xml")
        return http("200 OK", b"", 'ETag: "x"')

    async with answering(server) as store:
        with pytest.raises(StorageUnavailable):
            await store.put_file("k", path)


@pytest.mark.parametrize(
    ("reply", "known"),
    [
        (error("400 Bad Request", "BadDigest"), True),
        (error("400 Bad Request", "XAmzContentChecksumMismatch"), True),
        (error("400 Bad Request", "InvalidRequest"), False),
        (error("501 Not Implemented", "NotImplemented"), False),
        (http("200 OK", b"", 'ETag: "x"'), False),
        (error("503 Slow Down", "SlowDown"), None),
        (error("403 Forbidden", "AccessDenied"), None),
        (b"", None),
    ],
)
async def test_a_probe_tells_whether_a_checksum_is_checked(
    reply: bytes, known: bool | None, tmp_path: Path
) -> None:
    """`known` None: the store has trouble, and the next write probes again."""
    path = tmp_path / "segment"
    path.write_bytes(b"x" * MiB)
    there: set[str] = set()

    def server(head: str) -> bytes:
        method, target = head.split(" ")[:2]
        if method == "POST":
            there.add("u1")
            return http("200 OK", BEGUN, "Content-Type: application/xml")
        if method == "DELETE":
            there.clear()
            return http("204 No Content", b"")
        if method == "GET":
            return http(
                "200 OK", UPLOADS_LEFT if there else NONE_LEFT, "Content-Type: application/xml"
            )
        if "partNumber=1" in target:
            assert "x-amz-checksum-crc64nvme: aaaaaaaaaaa=" in head.lower()
            return reply
        heads.append(head.lower())
        return http("200 OK", b"", 'ETag: "x"')

    heads: list[str] = []
    async with answering(server) as store:
        store._checks_crc64 = None
        for _ in range(2):
            if known is None:
                with pytest.raises(RemoteStorageError):
                    await store.put_file("k", path)
            else:
                await store.put_file("k", path)
            assert store._checks_crc64 is known
    assert not there
    assert len(heads) == (0 if known is None else 2)
    for head in heads:
        assert ("x-amz-checksum-crc64nvme" in head) is known
        assert ("x-amz-content-sha256: unsigned-payload" in head) is known
