"""Values of the metadata topic's records: what is taken out of batches, and what is refused."""

from __future__ import annotations

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from fetchproxy.brokers.messages import values_in
from fetchproxy.errors import CorruptSegment

GZIP = 1


def batch(base_offset: int, values: list[bytes | None], compression: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    for number, value in enumerate(values):
        builder.append(number, 1_000 + number, None, value, [])
    raw = builder.build()
    raw[0:8] = base_offset.to_bytes(8, "big")  # as the broker does; no checksum covers it
    return bytes(raw)


def values(records: bytes) -> list[tuple[int, bytes]]:
    return [(offset, value) for offset, value in values_in(records) if value is not None]


@pytest.mark.parametrize("compression", [0, GZIP])
def test_every_value_has_its_offset(compression: int) -> None:
    large = b"x" * 5_000
    records = batch(7, [b"a", large], compression) + batch(20, [b"b"])
    assert values(records) == [(7, b"a"), (8, large), (20, b"b")]


def test_a_record_without_a_value_is_passed() -> None:
    values_read = list(values_in(batch(3, [None, b"a", None])))
    assert [value for _, value in values_read if value is not None] == [b"a"]
    assert max(offset for offset, _ in values_read) == 5


def test_a_batch_that_is_cut_off_is_left_for_the_next_read() -> None:
    whole, cut = batch(0, [b"a"]), batch(1, [b"b"])[:-1]
    assert values(whole + cut) == [(0, b"a")]


def test_a_bit_that_flipped_is_found() -> None:
    records = bytearray(batch(0, [b"event"]))
    records[-3] ^= 1
    with pytest.raises(CorruptSegment, match="offset 0 fails its CRC"):
        list(values_in(bytes(records)))


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(CorruptSegment):
        list(values_in(b"\x01" * 100))
