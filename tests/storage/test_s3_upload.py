from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp.payload import BytesIOPayload
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.s3 import PARTS_MAX, Body, FileSpan, plan_parts, read_part

MiB = 1024 * 1024


@given(st.integers(1, 5 * 1024**4), st.integers(5 * MiB, 100 * MiB))
def test_parts_cover_the_file_once(size_bytes: int, part_bytes: int) -> None:
    spans = plan_parts(size_bytes, part_bytes)
    ranges = [span.byte_range for span in spans if span.byte_range is not None]
    assert [span.number for span in spans] == list(range(1, len(spans) + 1))
    assert len(spans) <= PARTS_MAX
    assert [r.start for r in ranges] == [0] + [r.end for r in ranges[:-1]]
    assert ranges[-1].end == size_bytes
    # S3 takes no part but the last below 5 MiB.
    assert all(r.length >= part_bytes for r in ranges[:-1])
    if size_bytes <= PARTS_MAX * part_bytes:
        assert all(r.length <= part_bytes for r in ranges)


def test_an_empty_file_is_one_empty_part(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    [span] = plan_parts(0, 5 * MiB)
    assert read_part(path, span, lambda content: "digest").content == b""


def test_a_file_that_shrank_is_not_uploaded(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    assert read_part(path, FileSpan(2, ByteRange(3, 7)), str).content == b"3456"
    with pytest.raises(RemoteStorageError, match="shorter"):
        read_part(path, FileSpan(2, ByteRange(3, 11)), str)


def test_a_body_is_sent_without_a_copy() -> None:
    content = bytes(range(256)) * 1024
    payload = BytesIOPayload(Body(content))
    assert payload.size == len(content)
    body = Body(content)
    with body.getbuffer() as view:
        assert view.obj is content
    assert body.read(1000) + body.read() == content
    body.seek(0)  # as for a request that is sent again
    assert body.read() == content
