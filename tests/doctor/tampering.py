"""An HTTP proxy in front of a real S3 server, which changes what passes. Not a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from lab.s3 import S3Endpoint

_HOP_BY_HOP = ("Connection", "Transfer-Encoding", "Content-Length", "Keep-Alive")


@dataclass(frozen=True)
class Tampering:
    """`whole`: reads of a range get the whole object, as it was written. `refuses`: requests that
    get 403. `statuses`: other statuses of responses. `date`: their Date header. `hides`: listings
    get this body. `pause_s`: before each response.
    """

    whole: bool = False
    statuses: Mapping[int, int] = field(default_factory=dict)
    written: dict[str, bytes] = field(default_factory=dict)
    refuses: Callable[[web.BaseRequest], bool] = lambda request: False
    date: str | None = None
    hides: bytes | None = None
    pause_s: float = 0.0


@asynccontextmanager
async def tampered(server: S3Endpoint, bucket: str, how: Tampering) -> AsyncIterator[str]:
    """The URL of a store behind the proxy."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await _forward(session, server, request, how)

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        endpoint = quote(f"http://127.0.0.1:{port}", safe="")
        try:
            yield f"s3://{bucket}/archive?endpoint_url={endpoint}&region={server.region}"
        finally:
            await runner.cleanup()


async def _forward(
    session: aiohttp.ClientSession, server: S3Endpoint, request: web.BaseRequest, how: Tampering
) -> web.StreamResponse:
    await asyncio.sleep(how.pause_s)
    body = await request.read()
    if how.refuses(request):
        text = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        return web.Response(status=403, text=text, content_type="application/xml")
    if how.hides is not None and request.method == "GET" and "list-type" in request.query:
        return web.Response(body=how.hides, content_type="application/xml")
    if request.method == "PUT":
        how.written[request.path] = body
    if how.whole and "Range" in request.headers and request.path in how.written:
        return web.Response(body=how.written[request.path], headers={"ETag": '"x"'})
    headers = CIMultiDict(request.headers)
    for name in _HOP_BY_HOP:
        headers.popall(name, None)
    url = URL(f"{server.endpoint_url}{request.raw_path}", encoded=True)
    async with session.request(
        request.method, url, headers=headers, data=body or None, allow_redirects=False
    ) as answer:
        content = await answer.read()
        return _response(answer.status, answer.headers, content, how, request.method == "HEAD")


def _response(
    status: int,
    headers: CIMultiDictProxy[str],
    content: bytes,
    how: Tampering,
    is_head: bool,
) -> web.Response:
    headers_kept = CIMultiDict(headers)
    for name in _HOP_BY_HOP:
        if not (is_head and name == "Content-Length"):
            headers_kept.popall(name, None)
    if how.date is not None:
        headers_kept["Date"] = how.date
    return web.Response(
        status=how.statuses.get(status, status),
        headers=headers_kept,
        body=None if is_head else content,
    )
