"""Which store URLs name the same place, or a place inside another."""

from __future__ import annotations

import pytest

from fetchproxy.storage.stores.registry import is_within

SERVER = "endpoint_url=http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("url", "other", "expected"),
    [
        ("file:///a/b", "file:///a", True),
        ("file:///a", "file:///a/b", False),
        ("file:///a", "file:///a", False),
        ("file:///ab", "file:///a", False),
        ("file:///a/../b/c", "file:///b", True),
        ("s3://bucket/archive/copy", "s3://bucket/archive", True),
        ("s3://bucket/copy", "s3://bucket", True),
        ("s3://bucket/archive-2", "s3://bucket/archive", False),
        ("s3://bucket/archive", "s3://bucket/archive?region=eu-west-1", False),
        ("s3://other/copy", "s3://bucket", False),
        (f"s3://bucket/copy?{SERVER}", "s3://bucket", False),
        (f"s3://bucket/copy?{SERVER}", f"s3://bucket?{SERVER}&region=eu", True),
        ("gs://bucket/copy", "gs://bucket", True),
        ("az://bucket/copy", "gs://bucket", False),
        ("webhdfs://one:9870,two:9870/a/b", "webhdfs://two:9870/a", True),
        ("webhdfs://one:9870/a/b", "webhdfs://two:9870/a", False),
        ("webhdfs://one:9870/ab", "webhdfs://one:9870/a", False),
        ("file:///bucket/copy", "s3://bucket", False),
    ],
)
def test_a_place_inside_another(url: str, other: str, expected: bool) -> None:
    assert is_within(url, other) is expected
