"""When the store reads ranges without the S3 client, and when through it after all."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiobotocore.session import get_session
from botocore.awsrequest import AWSPreparedRequest
from certificates import Authority

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ObjectNotFound, StorageThrottled, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.object_store import StoredObject
from fetchproxy.storage.stores.retries import tried_once
from fetchproxy.storage.stores.s3 import SMALL_OBJECT, S3ObjectStore
from fetchproxy.storage.stores.s3_ranges import NEEDLESS_MAX, open_range_reads

CONTENT = b"0123456789" * 100
PART = ByteRange(10, 20)
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>m</Message></Error>"
ABSENT = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>m</Message></Error>"

ExpectedResponse = Callable[[str], bytes]  # from the request's head


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def signed_url(head: str) -> bool:
    return "X-Amz-Signature=" in head.split("\r\n", 1)[0]


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def part(head: str) -> bytes:
    match = re.search(r"(?i)\r\nrange: bytes=(\d+)-(\d+)\r\n", head)
    assert match is not None
    first, last = int(match[1]), int(match[2])
    content_range = f"Content-Range: bytes {first}-{last}/{len(CONTENT)}"
    return http("206 Partial Content", CONTENT[first : last + 1], content_range)


@asynccontextmanager
async def store(
    response: ExpectedResponse, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[S3ObjectStore, list[bool]]]:
    """(a store at a server with these responses, whether each request had a signed URL)."""
    signed_requests: list[bool] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    signed_requests.append(signed_url(head))
                    writer.write(response(head))
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with S3ObjectStore(
            S3Location("bucket", endpoint_url=url, region="us-east-1")
        ) as opened:
            yield opened, signed_requests
    finally:
        server.close()
        await server.wait_closed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_range_takes_one_request_with_a_signed_url() -> None:
    async with store(part) as (s3, signed_requests):
        for _ in range(3):
            assert await s3.get_range("k", PART) == b"0123456789"
        assert signed_requests == [True] * 3


async def test_a_small_object_takes_one_request_and_a_large_one_two() -> None:
    sizes = iter((1, 1000, SMALL_OBJECT.length, SMALL_OBJECT.length + 1))
    size = 0

    def response(head: str) -> bytes:
        content = bytes(size)
        if not signed_url(head):
            return http("200 OK", content)
        body = content[: SMALL_OBJECT.length]
        content_range = f"Content-Range: bytes 0-{len(body) - 1}/{size}"
        return http("206 Partial Content", body, content_range)

    async with store(response) as (s3, signed_requests):
        for size in sizes:
            assert await s3.get("k") == bytes(size)
        assert signed_requests == [True] * 3 + [True, False]


async def test_whole_objects_of_a_store_without_ranges() -> None:
    async with store(lambda _: http("200 OK", CONTENT)) as (s3, signed_requests):
        for _ in range(NEEDLESS_MAX + 2):
            assert await s3.get("k") == CONTENT
        assert signed_requests == [True, False] * NEEDLESS_MAX + [False] * 2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("503 Slow Down", StorageThrottled),
        ("429 Too Many Requests", StorageThrottled),
        ("500 Internal Server Error", StorageUnavailable),
    ],
)
async def test_a_store_in_trouble_is_not_asked_twice(status: str, error: type[Exception]) -> None:
    async with store(lambda _: http(status, b"")) as (s3, signed_requests):
        for read in (s3.get_range("k", PART), listed(s3)):
            with pytest.raises(error), tried_once():
                await read
        assert signed_requests == [True, True]


PAGE = (
    b"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k</Key>"
    b'<Size>7</Size><ETag>"e"</ETag></Contents></ListBucketResult>'
)
LISTED = [StoredObject("k", 7, "e")]


async def listed(s3: S3ObjectStore) -> list[StoredObject]:
    return [stored async for stored in s3.list("")]


def in_chunks(body: bytes) -> bytes:
    chunks = (body[n : n + 50] for n in range(0, len(body), 50))
    encoded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + encoded


@pytest.mark.parametrize("reply", [http("200 OK", PAGE), in_chunks(PAGE)])
async def test_a_page_takes_one_request_with_a_signed_url(reply: bytes) -> None:
    async with store(lambda head: part(head) if "ange:" in head else reply) as (s3, signed):
        for _ in range(3):
            assert await listed(s3) == LISTED
            assert await s3.get_range("k", PART) == b"0123456789"  # by the same connection
        assert signed == [True] * 6


@pytest.mark.parametrize(
    "reply",
    [
        http("403 Forbidden", DENIED),
        http("200 OK", b"<html/>"),
        http("200 OK", PAGE, "Content-Encoding: br"),
        http("200 OK", PAGE, "Transfer-Encoding: chunked"),
        http("200 OK", b""),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
    ],
)
async def test_a_page_that_only_the_client_gets_is_soon_asked_for_by_it_alone(reply: bytes) -> None:
    def response(head: str) -> bytes:
        return reply if signed_url(head) else http("200 OK", PAGE)

    async with store(response) as (s3, signed_requests):
        for _ in range(NEEDLESS_MAX + 3):
            assert await listed(s3) == LISTED
        assert signed_requests == [True, False] * NEEDLESS_MAX + [False] * 3


async def test_what_an_answer_means_is_for_the_client_to_say() -> None:
    async with store(lambda _: http("404 Not Found", ABSENT)) as (s3, signed_requests):
        for _ in range(NEEDLESS_MAX + 1):
            with pytest.raises(ObjectNotFound):
                await s3.get_range("k", PART)
        assert signed_requests == [True, False] * (NEEDLESS_MAX + 1)  # signed URLs stay in use


async def test_a_store_that_takes_no_signed_urls_is_soon_not_asked_with_them() -> None:
    def response(head: str) -> bytes:
        return http("403 Forbidden", DENIED) if signed_url(head) else part(head)

    async with store(response) as (s3, signed_requests):
        for _ in range(NEEDLESS_MAX + 3):
            assert await s3.get_range("k", PART) == b"0123456789"
        assert signed_requests == [True, False] * NEEDLESS_MAX + [False] * 3


async def test_an_address_that_was_refused_once_is_made_anew() -> None:
    addresses: list[str] = []

    def response(head: str) -> bytes:
        if not signed_url(head):
            return part(head)
        addresses.append(head.split(" ")[1])
        return http("403 Forbidden", DENIED) if len(addresses) == 1 else part(head)

    async with store(response) as (s3, _):
        await s3.get_range("k", PART)
        await asyncio.sleep(1.1)  # signatures have a resolution of seconds
        for _ in range(2):
            await s3.get_range("k", PART)
    assert len(set(addresses)) == 2
    assert addresses[1] == addresses[2]


@pytest.mark.parametrize("region", ["eu-central-1", "us-east-1", "cn-north-1"])
@pytest.mark.parametrize("bucket", ["plain", "with.dots"])
async def test_a_signed_url_is_of_the_host_that_the_client_asks(region: str, bucket: str) -> None:
    urls: list[str] = []

    def no_request(request: AWSPreparedRequest, **_: object) -> None:
        urls.append(request.url)
        raise ConnectionError

    async with AsyncExitStack() as resources:
        session = get_session()
        client = await resources.enter_async_context(
            session.create_client("s3", region_name=region)
        )
        ranges = await open_range_reads(resources, session, client, bucket, StoreConfig())
        assert ranges is not None
        url = await ranges.signed_url("t/0/k")
        client.meta.events.register("before-send.s3", no_request)
        with pytest.raises(ConnectionError):
            await client.get_object(Bucket=bucket, Key="t/0/k")
    assert url.partition("?")[0] == urls[0]
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url


async def test_what_goes_through_an_http_proxy_is_the_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with store(part) as (_, signed_requests):
        pass
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with store(part) as (s3, signed_requests):
        with pytest.raises(StorageUnavailable):
            await s3.get_range("k", PART)  # no proxy listens there
        assert signed_requests == []


@pytest.mark.parametrize("trusted", [True, False])
async def test_by_tls_only_from_whom_the_bundle_trusts(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own_authority.issue("s3"))
    monkeypatch.setenv("AWS_CA_BUNDLE", str((own_authority if trusted else other).file))
    async with store(part, tls) as (s3, signed_requests):
        if trusted:
            assert await s3.get_range("k", PART) == b"0123456789"
            assert signed_requests == [True]
        else:
            with pytest.raises(StorageUnavailable, match=r"(?i)certificate"):
                await s3.get_range("k", PART)
            assert signed_requests == []
