"""What a person sees of archived records: the query, the form of each field, and what is masked."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from fetchproxy_protocol.records import Record
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.config.values import MASK
from fetchproxy.console.archived_records import (
    HEADERS_SHOWN_MAX,
    MASKED_BYTES_MAX,
    RECORDS_DEFAULT,
    RECORDS_MAX,
    SHOWN_BYTES_MAX,
    BadQuery,
    RecordQuery,
    field_view,
    masked_names,
    parse_record_query,
    record_view,
)

NO_MASK: frozenset[str] = frozenset()


def test_a_query_has_defaults() -> None:
    assert parse_record_query({"topic": "t"}) == RecordQuery("t", 0, None, None, RECORDS_DEFAULT)
    whole = {"topic": "t", "partition": "3", "offset": "12", "count": "999", "as": "hex"}
    assert parse_record_query(whole) == RecordQuery("t", 3, 12, None, RECORDS_MAX, as_hex=True)


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"topic": ""}, "topic is missing"),
        ({"partition": "-1"}, "partition"),
        ({"partition": str(2**31)}, "partition is above"),
        ({"offset": "٣"}, "offset"),
        ({"offset": "9" * 20}, "offset"),
        ({"offset": str(2**63)}, "offset is above"),
        ({"count": "many"}, "count"),
        ({"as": "avro"}, "as must be text or hex"),
        ({"offset": "1", "timestamp_ms": "1"}, "not both"),
    ],
)
def test_a_query_that_cannot_be_understood_is_named(more: dict[str, str], names: str) -> None:
    with pytest.raises(BadQuery, match=names):
        parse_record_query({"topic": "t"} | more)


def test_text_is_shown_as_text_and_all_else_as_hex() -> None:
    assert field_view("grüße\n\tx".encode(), NO_MASK, False) == {"bytes": 10, "text": "grüße\n\tx"}
    assert field_view(b"\xff\x00", NO_MASK, False) == {"bytes": 2, "hex": "ff00"}
    assert field_view(b"ab", NO_MASK, True) == {"bytes": 2, "hex": "6162"}
    assert field_view(b"", NO_MASK, False) == {"bytes": 0, "text": ""}


def test_what_harms_a_page_is_shown_escaped() -> None:
    text = field_view("\x1b[2J\u202eabc\x00".encode(), NO_MASK, False)["text"]
    assert text == "\\x1b[2J\\u202eabc\\x00"


@given(st.text())
def test_a_cut_never_splits_a_character(text: str) -> None:
    content = ("é" + text + "ü" * SHOWN_BYTES_MAX).encode()
    about = field_view(content, NO_MASK, False)
    assert about["cut"] is True
    assert "text" in about
    assert field_view(content[1:], NO_MASK, False).keys() == {"bytes", "cut", "hex"}


def test_masked_fields_are_hidden_at_any_depth() -> None:
    names = masked_names("Password, ssn,")
    value = {"id": 1, "PASSWORD": {"deep": 1}, "list": [{"ssn": "1-2"}, {"x": "ssn"}]}
    text = field_view(json.dumps(value).encode(), names, False)["text"]
    assert json.loads(text) == {
        "id": 1,
        "PASSWORD": MASK,
        "list": [{"ssn": MASK}, {"x": "ssn"}],
    }
    as_hex = field_view(json.dumps(value).encode(), names, True)["hex"]
    assert b"1-2".hex() not in as_hex


@pytest.mark.parametrize(
    "content",
    [
        b"password=x",
        b'{"password": "x"',
        b"\xff",
        b"[" * 100_000,
        b'"\\ud800"',
        b'{"a": "' + b"x" * MASKED_BYTES_MAX + b'"}',
    ],
    ids=["not JSON", "JSON cut short", "bytes", "nested", "surrogate", "long"],
)
def test_what_cannot_be_masked_is_not_shown(content: bytes) -> None:
    about = field_view(content, masked_names("password"), False)
    assert about.keys() == {"bytes", "hidden"}
    assert about["bytes"] == len(content)


def test_a_masked_header_and_nulls() -> None:
    headers = ((b"Token", b"secret"), (b"trace", b"1"), (b"token", None), (b"\xff", b"\xfe"))
    record = record_view(Record(7, 1, None, None, headers), masked_names("token"), False)
    assert (record["key"], record["value"]) == (None, None)
    assert [h["name"] for h in record["headers"]] == ["Token", "trace", "token", "ff"]
    assert record["headers"][0]["value"] == {"bytes": 6, "hidden": "a masked header"}
    assert record["headers"][1]["value"] == {"bytes": 1, "text": "1"}
    assert record["headers"][2]["value"] is None


def test_many_headers_are_counted() -> None:
    headers = ((b"h", b"v"),) * (HEADERS_SHOWN_MAX + 3)
    record = record_view(Record(0, 0, b"", b"", headers), NO_MASK, False)
    assert (len(record["headers"]), record["more_headers"]) == (HEADERS_SHOWN_MAX, 3)


def test_a_large_value_costs_no_copy_of_itself() -> None:
    content = b"x" * (16 * 1024 * 1024)
    tracemalloc.start()
    try:
        assert field_view(content, NO_MASK, False)["bytes"] == len(content)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
