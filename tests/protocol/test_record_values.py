"""Records of batches that other people's builders have made, as values."""

from __future__ import annotations

import contextlib

import pytest
from fetchproxy_protocol.apis import MalformedMessage, Truncated, WireError
from fetchproxy_protocol.record_batch import decompress, walk
from fetchproxy_protocol.records import Record, records_in
from hypothesis import given
from hypothesis import strategies as st
from made_batches import BUILDERS, CODECS, READERS, made_batch
from made_batches import Record as Made

CONTENT = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=8), CONTENT), max_size=3).map(tuple)
MADE = st.builds(Made, CONTENT, CONTENT, st.integers(0, 2**62), HEADERS)


def read(batch: bytes, from_offset: int = 0) -> list[Record | None]:
    (header,) = walk(batch)
    stored = batch[header.records_at : header.position + header.size]
    return list(records_in(decompress(header.compression, stored, 2**24), header, from_offset))


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("codec", CODECS)
@given(made=st.lists(MADE, min_size=1, max_size=8), base=st.integers(0, 2**62))
def test_they_are_what_kafkas_clients_read(
    builder: type, codec: int, made: list[Made], base: int
) -> None:
    batch = made_batch(base, made, codec=codec, builder=builder)
    for reader in READERS:
        expected = [
            Record(
                r.offset,
                r.timestamp,
                r.key,
                r.value,
                tuple((name.encode(), content) for name, content in r.headers),
            )
            for r in reader(bytearray(batch))
        ]
        assert read(batch) == expected


def test_those_before_the_first_are_passed_over() -> None:
    batch = made_batch(10, [Made(b"%d" % n) for n in range(5)])
    assert [r and r.offset for r in read(batch, 13)] == [None, None, None, 13, 14]


def test_the_logs_own_time_counts_where_the_batch_says_so() -> None:
    batch = made_batch(0, [Made(timestamp=1), Made(timestamp=2)], append_time=77)
    assert [r and r.timestamp for r in read(batch)] == [77, 77]


@given(made=st.lists(MADE, min_size=1, max_size=4), data=st.data())
def test_damage_is_an_error_of_the_protocol_or_other_values(
    made: list[Made], data: st.DataObject
) -> None:
    batch = bytearray(made_batch(0, made))
    at = data.draw(st.integers(61, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        read(bytes(batch))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"\x7f", Truncated),  # a size below 0
        (b"\x10\x00\x00\x00\x01\x01\x00", Truncated),  # a record behind the end
        (b"\x0c\x00\x00\x00\x01\x01\x01", MalformedMessage),  # -1 headers
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", MalformedMessage),  # a byte too many
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", MalformedMessage),  # a header without name
        (b"\x0c\x00\x00\x00\x40\x01\x00", Truncated),  # a key longer than its record
    ],
)
def test_what_does_not_fit_is_refused(body: bytes, error: type[WireError]) -> None:
    (header,) = walk(made_batch(0, [Made()]))
    with pytest.raises(error):
        list(records_in(body, header))
