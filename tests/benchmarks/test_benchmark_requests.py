"""What the count of requests takes each line of the store's log for."""

from __future__ import annotations

import pytest

from benchmarks.requests import REQUEST, kind_of

LISTING = "/archive?list-type=2&prefix=kafka%2F"


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", f"{LISTING}orders-bkhNYRq6sN3tfM4nQXQ%2F0%2F", "listing of a partition"),
        ("GET", f"{LISTING}orders-bkhNYRq6sN3tfM4nQXQ%2F12%2F&start-after=x",
         "listing of a partition"),
        ("GET", f"{LISTING}archivers%2F", "other listing"),
        ("GET", LISTING, "other listing"),
        ("GET", "/archive/kafka/orders-x/0/00.log", "read"),
        ("HEAD", "/archive/kafka/remote-log-layout", "read"),
        ("PUT", "/archive/kafka/orders-x/0/00.log?partNumber=1&uploadId=y", "write"),
        ("POST", "/archive/kafka/orders-x/0/00.log?uploads", "write"),
        ("DELETE", "/archive/kafka/orders-x/0/00.log", "deletion"),
    ],
)  # fmt: skip
def test_each_request_has_its_kind(method: str, target: str, kind: str) -> None:
    line = f'127.0.0.1 - - [29/Nov/2026 18:00:00] "{method} {target} HTTP/1.1" 200 -'
    (parts_of_line,) = REQUEST.findall(line)
    assert kind_of(*parts_of_line) == kind
