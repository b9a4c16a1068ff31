"""Pages of a listing: as they arrive, and what is in them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.storage.stores.s3_pages import (
    LISTING_PAGE_BYTES_MAX,
    PARSED_AT_ONCE_BYTES,
    PageBody,
    parsed_page,
    take_objects,
)

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
    await take_objects(response, customized)
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


@pytest.mark.parametrize("space", [SPACE, ""])
@pytest.mark.parametrize("is_encoded", [True, False])
async def test_a_page_is_as_the_client_gives_it(space: str, is_encoded: bool) -> None:
    keys = ["t/a b", "t/é+%/"]
    named = [quote(key) for key in keys] if is_encoded else keys
    encoding = b"<EncodingType>url</EncodingType>" if is_encoded else b""
    folder = f"<CommonPrefixes><Prefix>{named[1]}</Prefix></CommonPrefixes>".encode()
    body = page(named[:1], space).replace(b"</Name>", b"</Name>" + folder + encoding)
    expected = {
        "Contents": [{"Key": keys[0], "Size": "0", "ETag": '"0"'}],
        "CommonPrefixes": [{"Prefix": keys[1]}],
        "IsTruncated": False,
    }
    assert await parsed_page(body) == expected
    more = b"true</IsTruncated><NextContinuationToken>t+%2B</NextContinuationToken>"
    truncated = {"IsTruncated": True, "NextContinuationToken": "t+%2B"}
    assert await parsed_page(body.replace(b"false</IsTruncated>", more)) == expected | truncated
    assert await parsed_page(body.replace(b"IsTruncated", b"Another")) == {
        name: value for name, value in expected.items() if name != "IsTruncated"
    }


@pytest.mark.parametrize("body", [b"", b"<html/>", b"no XML", page(["k"])[:-5], b"<a>&b;</a>"])
async def test_what_is_no_listing_is_no_page(body: bytes) -> None:
    assert await parsed_page(body) is None


def taken_in_pieces(body: PageBody, raw: bytes, cuts: list[int]) -> bool:
    """Whether it is whole after all of `raw`, and at no cut before."""
    borders = sorted({cut for cut in cuts if cut < len(raw)} | {0, len(raw)})
    pieces = [raw[start:end] for start, end in pairwise(borders)]
    whole = [body.take(piece) for piece in pieces]
    assert not any(whole[:-1])
    return whole[-1]


@given(
    st.lists(st.binary(min_size=1, max_size=20), max_size=4),
    st.lists(st.integers(1, 80)),
    st.data(),
)
def test_a_body_in_any_pieces(chunks: list[bytes], cuts: list[int], data: st.DataObject) -> None:
    content = b"".join(chunks)
    if content:
        body = PageBody(len(content))
        assert taken_in_pieces(body, content, cuts)
        assert body.content == content
    extensions = [data.draw(st.sampled_from((b"", b";a=b", b" "))) for _ in chunks]
    raw = b"".join(
        b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk)
        for chunk, extension in zip(chunks, extensions, strict=True)
    )
    body = PageBody(None)
    assert taken_in_pieces(body, raw + b"0\r\n\r\n", cuts)
    assert body.content == content


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n",
        b"-1\r\n",
        b"0x1\r\na\r\n",
        b"1_0\r\n",
        b"2\r\nabc\r\n",
        b"0\r\nTrailer: 1\r\n\r\n",
        b"0\r\n\r\nmore",
        b"1" * 2000,
        b"%x\r\n" % (LISTING_PAGE_BYTES_MAX + 1),
    ],
)
def test_chunks_that_are_none(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"chunk|too long"):
        PageBody(None).take(raw)


def test_a_page_that_is_longer_than_it_says_or_may_be() -> None:
    with pytest.raises(ValueError, match="more bytes"):
        PageBody(1).take(b"ab")
    with pytest.raises(ValueError, match="a page of"):
        PageBody(LISTING_PAGE_BYTES_MAX + 1)
