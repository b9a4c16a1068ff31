"""Ranges of S3 objects, read past the S3 client: it only signs, once for all reads of an object.

Whatever is not just the part that was asked for is not judged here but asked for again, through the
client: it knows redirects, regions, and what an error means. Where a store takes no signed URLs
(a bucket policy may say so), that is noticed and they are not tried any more.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from typing import Any

import structlog
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from cachetools import TTLCache

from fetchproxy.config.sections import StoreConfig
from fetchproxy.storage.range_requests import OtherAnswer, RangeRequests, Wanted
from fetchproxy.storage.s3_errors import by_status

log = structlog.get_logger(__name__)

# A URL is used for a minute and is good for ten: clocks may differ by the rest.
URL_AGE_MAX_S = 60
_URL_VALID_S = 600
_URLS_MAX = 10_000  # half a KiB each
# After so many in a row that were refused, where the client's own request then was not.
NEEDLESS_MAX = 3


class S3RangeReads:
    def __init__(self, client: Any, bucket: str, requests: RangeRequests) -> None:
        self._client = client
        self._bucket = bucket
        self._requests = requests
        self._urls: TTLCache[str, str] = TTLCache(
            _URLS_MAX, URL_AGE_MAX_S, timer=asyncio.get_running_loop().time
        )
        self._needless = 0

    async def get(self, key: str, wanted: Wanted, what: str) -> bytearray | None:
        """None: the client is to be asked.

        Raises the error of a store in trouble, which has no time for a second request; OSError and
        the client's errors where it cannot be asked.
        """
        if self._needless >= NEEDLESS_MAX:
            return None
        try:
            content = await self._requests.get(await self.signed_url(key), wanted)
        except OtherAnswer as error:
            if error.status == 429 or error.status >= 500:
                raise by_status(error.status)(f"{what}: {error}") from error
            return None
        self._needless = 0
        return content

    async def signed_url(self, key: str) -> str:
        """Raises the client's errors."""
        url: str | None = self._urls.get(key)
        if url is None:
            url = await self._client.generate_presigned_url(
                "get_object", {"Bucket": self._bucket, "Key": key}, ExpiresIn=_URL_VALID_S
            )
            self._urls[key] = url
        return url

    def was_needless(self, key: str) -> None:
        """The client's own request had the very part."""
        self._urls.pop(key, None)
        self._needless += 1
        if self._needless == NEEDLESS_MAX:
            log.warning("s3_signed_urls_refused", bucket=self._bucket, key=key)


async def open_range_reads(
    resources: AsyncExitStack, session: Any, client: Any, bucket: str, config: StoreConfig
) -> S3RangeReads | None:
    """None where an HTTP proxy stands before the store: that is for the client. Raises OSError."""
    endpoint = client.meta.endpoint_url
    if get_environ_proxies(endpoint):
        return None
    # Else botocore signs URLs with version 2, which newer buckets refuse, and for the endpoint of
    # all regions, which a network may have no way to.
    client.meta.events.register_first("choose-signer.s3.GetObject", _version_4)
    client.meta.events.register_first("before-endpoint-resolution.s3", _regional)
    tls = None
    if endpoint.startswith("https:"):
        bundle = get_cert_path(session.get_config_variable("ca_bundle") or True)
        tls = await asyncio.to_thread(ssl.create_default_context, cafile=bundle)
    requests = RangeRequests(
        config.connections_max, config.connect_max_ms / 1000, config.read_max_ms / 1000, tls
    )
    return S3RangeReads(client, bucket, await resources.enter_async_context(requests))


def _regional(context: dict[str, Any], **_: Any) -> None:
    context["use_global_endpoint"] = False


def _version_4(signature_version: str, **_: Any) -> str | None:
    return "s3v4-query" if signature_version in ("v4-query", "s3v4-query") else None
