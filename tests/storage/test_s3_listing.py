"""Pages of a listing, split before the S3 client parses them."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

import pytest

from fetchproxy.storage.stores.s3 import PARSED_AT_ONCE_BYTES, _take_objects

SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def page(keys: list[str], space: str = SPACE, root: str = "ListBucketResult") -> bytes:
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{number}&quot;</ETag><Size>{number}</Size><Owner><ID>o</ID></Owner></Contents>"
        for number, key in enumerate(keys)
    )
    text = f"<{root}{space}><Name>b</Name>{contents}<IsTruncated>false</IsTruncated></{root}>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


async def taken(body: bytes, status: int = 200) -> tuple[bytes, dict[str, Any]]:
    response: dict[str, Any] = {"status_code": status, "body": body}
    customized: dict[str, Any] = {}
    await _take_objects(response, customized)
    return response["body"], customized


@pytest.mark.parametrize("space", [SPACE, ""])
@pytest.mark.parametrize("count", [0, 1, 2, 1000])
async def test_objects_are_as_the_page_has_them(space: str, count: int) -> None:
    keys = [f"t/{n}/é & <{'x' * (n % 50)}>" for n in range(count)]
    body = page(keys, space)
    assert count < 1000 or len(body) > 5 * PARSED_AT_ONCE_BYTES
    rest, customized = await taken(body)
    assert customized["Contents"] == [
        {"Key": key, "Size": str(number), "ETag": f'"{number}"'} for number, key in enumerate(keys)
    ]
    assert b"Contents" not in rest
    assert b"IsTruncated>false<" in rest
    assert b"Name>b<" in rest


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"no XML", page(["k"])[:-5], page(["k"], root="Error"), b"<a>&b;</a>"],
)
async def test_what_is_no_listing_is_left_to_the_client(body: bytes) -> None:
    assert await taken(body) == (body, {})


async def test_an_error_is_left_to_the_client() -> None:
    body = page(["k"])
    assert await taken(body, status=500) == (body, {})
