"""Entries that are alike are read at once, and no entry is taken for one that is not so."""

from __future__ import annotations

from struct import Struct

from fetchproxy_protocol.primitives import Cursor
from hypothesis import given
from hypothesis import strategies as st

ROW = Struct(">bxhx")
FIXED = {1: 7, -1: 0}
ENTRY = st.tuples(st.integers(-9, 9), st.sampled_from((7, 7, 7, 8)), st.sampled_from((0, 0, 0, 1)))


@given(st.lists(ENTRY), st.integers(0, 12), st.binary(max_size=4), st.binary(max_size=6))
def test_the_first_that_is_not_so_ends_them(
    entries: list[tuple[int, int, int]], count_max: int, lead: bytes, torn: bytes
) -> None:
    whole = b"".join(
        value.to_bytes(1, signed=True) + bytes([length]) + b"\x00\x05" + bytes([tags])
        for value, length, tags in entries
    )
    cursor = Cursor(lead + whole + torn, len(lead), len(lead) + len(whole))
    alike = 0
    while alike < min(count_max, len(entries)) and entries[alike][1:] == (7, 0):
        alike += 1
    count, rows = cursor.rows(ROW, count_max, FIXED)
    assert count == alike
    assert list(rows) == [(value, 5) for value, _, _ in entries[:alike]]
    assert cursor.pos == len(lead) + alike * ROW.size
