"""The pause that a store asks for in the header of its refusal, for each kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from test_hdfs_wrong_answers import server

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.clouds import open_cloud_store
from fetchproxy.storage.stores.hdfs import HdfsObjectStore
from fetchproxy.storage.stores.locations import CloudLocation, HdfsLocation, S3Location
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.storage.stores.retries import RETRY_AFTER_MAX_S, retried, retry_pause_s, tried_once
from fetchproxy.storage.stores.s3 import S3ObjectStore

DATE = "Sat, 28 Nov 2026 19:00:00 GMT"


@pytest.mark.parametrize(
    ("header", "date", "pause_s"),
    [
        (None, DATE, 0),
        ("", DATE, 0),
        ("2", DATE, 2),
        (" 2 ", None, 2),
        ("0", DATE, 0),
        ("60", DATE, RETRY_AFTER_MAX_S),  # MinIO, always
        ("9" * 5_000, DATE, RETRY_AFTER_MAX_S),
        ("-3", DATE, 0),
        ("1.5", DATE, 0),
        ("²", DATE, 0),
        ("inf", DATE, 0),
        ("soon", DATE, 0),
        ("Sat, 28 Nov 2026 19:00:03 GMT", DATE, 3),
        ("Sat, 28 Nov 2026 18:00:00 GMT", DATE, 0),
        ("Sat, 28 Nov 9999 18:00:00 GMT", DATE, RETRY_AFTER_MAX_S),
        ("Sat, 28 Nov 2026 19:00:03 GMT", None, 0),  # whose clock?
        ("Sat, 28 Nov 2026 19:00:03 GMT", "today", 0),
        ("Sat, 99 Nov 2026 19:00:03 GMT", DATE, 0),
    ],
)
def test_what_the_header_asks_for(header: str | None, date: str | None, pause_s: float) -> None:
    assert retry_pause_s(header, date) == pause_s


def store_at(scheme: str, address: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    endpoint = f"http://{address}"
    if scheme == "webhdfs":
        return HdfsObjectStore(HdfsLocation((address,), "/a", user="me"), config=StoreConfig())
    if scheme == "s3":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        return S3ObjectStore(S3Location("b", endpoint_url=endpoint, region="us-east-1"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
    account = f"AccountName=a;AccountKey=a2V5;BlobEndpoint={endpoint}/a"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)
    return open_cloud_store(CloudLocation(scheme, "bucket", ""), StoreConfig())


@asynccontextmanager
async def refusing(
    scheme: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ObjectStore]:
    def refuse(request: web.Request) -> web.Response:
        return web.Response(status=503, headers=headers)

    async with server(refuse) as address, store_at(scheme, address, monkeypatch) as store:
        yield store


async def listed(store: ObjectStore) -> None:
    async for _ in store.list("t/"):
        pass


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("t/k"),
    "get_range": lambda store: store.get_range("t/k", ByteRange(0, 5)),
    "list": listed,
    "delete": lambda store: store.delete("t/k"),
}
LATER = {"Retry-After": "Sat, 28 Nov 2026 19:00:03 GMT", "Date": DATE}
HEADERS = [({"Retry-After": "2"}, 2), (LATER, 3), ({"Retry-After": "86400"}, RETRY_AFTER_MAX_S)]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("scheme", ["s3", "webhdfs"])
async def test_the_pause_that_a_store_asks_for_is_in_the_error(
    scheme: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for headers, pause_s in HEADERS:
        async with refusing(scheme, headers, monkeypatch) as store:
            with tried_once(), pytest.raises(RemoteStorageError) as refused:
                await CALLS[call](store)  # type: ignore[misc]
            assert (refused.value.retriable, refused.value.retry_after_s) == (True, pause_s)


@pytest.mark.parametrize("scheme", ["gs", "az"])
async def test_the_library_of_clouds_does_not_show_it(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should it ever, `obstore_error` can read it."""
    async with refusing(scheme, {"Retry-After": "1234567"}, monkeypatch) as store:
        with tried_once(), pytest.raises(RemoteStorageError) as refused:
            await store.get("t/k")
    assert refused.value.retry_after_s == 0
    assert "1234567" not in f"{refused.value.__cause__} {refused.value.__cause__!r}"


async def test_the_next_try_comes_then(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []
    clock = asyncio.get_running_loop().time

    def refuse_once(request: web.Request) -> web.Response:
        times.append(clock())
        if len(times) == 1:
            return web.Response(status=503, headers={"Retry-After": "1"})
        return web.Response(
            status=206,
            body=b"0123456789"[:5],
            headers={"Content-Range": "bytes 0-4/10", "Content-Length": "5"},
        )

    async with server(refuse_once) as address, store_at("s3", address, monkeypatch) as store:
        content = await retried("k", lambda: store.get_range("t/k", ByteRange(0, 5)))
    assert content == b"01234"
    assert times[1] - times[0] >= 1
