"""Each codec as producers write it, and what a hostile batch could try."""

from __future__ import annotations

import contextlib
import gzip
import time
import zlib

import cramjam
import pytest
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from fetchproxy_protocol.apis import MalformedMessage, WireError
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import (
    CompressionType,
    TooLargeToUnpack,
    decompress,
    unpack_into,
    unpack_up_to,
)
from hypothesis import given, settings
from hypothesis import strategies as st

ENCODERS = {
    CompressionType.GZIP: gzip_encode,
    CompressionType.SNAPPY: snappy_encode,
    CompressionType.LZ4: lz4_encode,
    CompressionType.ZSTD: zstd_encode,
}


def unpacked(codec: int, data: Buffer, bytes_max: int = 1 << 29) -> Buffer:
    return decompress(codec, data, bytes_max)


@pytest.mark.parametrize("codec", ENCODERS)
def test_round_trip(codec: CompressionType) -> None:
    @settings(max_examples=30)
    @given(st.binary(min_size=1, max_size=300), st.integers(1, 2000))
    def check(data: bytes, times: int) -> None:
        packed = bytes(ENCODERS[codec](data * times))
        assert bytes(unpacked(codec, memoryview(packed))) == data * times

    check()


@pytest.mark.parametrize("codec", ENCODERS)
def test_far_larger_than_the_first_guess(codec: CompressionType) -> None:
    data = bytes(20_000_000)
    assert bytes(unpacked(codec, bytes(ENCODERS[codec](data)))) == data


def test_uncompressed_is_not_copied() -> None:
    data = memoryview(b"abc")
    assert unpacked(0, data) is data


def test_raw_snappy_block() -> None:
    packed = bytes(cramjam.snappy.compress_raw(b"abc" * 100))
    assert bytes(unpacked(2, packed)) == b"abc" * 100


def test_two_gzip_members() -> None:
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    assert bytes(unpacked(1, packed)) == b"onetwo"


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=2_000), max_size=12), st.binary(max_size=70_000))
def test_any_gzip_members(members: list[bytes], last: bytes) -> None:
    packed = b"".join(gzip.compress(member, 1) for member in (*members, last))
    assert bytes(unpacked(1, packed)) == b"".join(members) + last
    with pytest.raises(MalformedMessage):
        unpacked(1, packed[:-1])


def test_very_many_gzip_members_take_linear_time() -> None:
    """What follows a member must not be copied whole for each: that took 76 s of CPU."""
    packed = gzip.compress(b"x") * 400_000
    before = time.process_time()
    assert len(unpacked(1, packed)) == 400_000
    assert time.process_time() - before < 20


def test_what_javas_readers_take() -> None:
    """Several frames or streams, one of them empty, and bytes behind the last gzip member."""
    frame = bytes(cramjam.zstd.compress(b"one"))
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    nothing = bytes(cramjam.zstd.compress(b""))
    assert bytes(unpacked(4, skippable + frame + nothing + frame)) == b"oneone"
    stream = bytes(snappy_encode(b"one"))
    assert bytes(unpacked(2, stream + stream)) == b"oneone"
    assert bytes(unpacked(2, stream[:16] + stream)) == b"one"
    assert bytes(unpacked(1, gzip.compress(b"one") + bytes(3))) == b"one"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(MalformedMessage):
        unpacked(codec, b"")


@pytest.mark.parametrize("codec", ENCODERS)
def test_a_bomb_stops_at_the_limit(codec: int) -> None:
    exact = bytes(ENCODERS[codec](bytes(100_000)))
    assert len(unpacked(codec, exact, 100_000)) == 100_000
    with pytest.raises(TooLargeToUnpack):
        unpacked(codec, bytes(ENCODERS[codec](bytes(100_001))), 100_000)
    with pytest.raises(TooLargeToUnpack):
        unpacked(2, bytes(cramjam.snappy.compress_raw(bytes(100_001))), 100_000)


@pytest.mark.parametrize("codec", ENCODERS)
def test_the_room_holds_the_first_bytes_and_nothing_is_written_behind_it(codec: int) -> None:
    @settings(max_examples=30)
    @given(st.binary(max_size=300), st.integers(1, 600), st.integers(1, 100_000))
    def check(data: bytes, times: int, room_bytes: int) -> None:
        whole = data * times
        packed = bytes(ENCODERS[codec](whole))
        guarded = bytearray(b"\xaa" * (room_bytes + 8))
        filled, all_of_it = unpack_into(codec, packed, memoryview(guarded)[:room_bytes])
        assert all_of_it == (len(whole) <= room_bytes)
        assert guarded[:filled] == whole[:filled]
        assert guarded[room_bytes:] == b"\xaa" * 8
        assert unpack_up_to(codec, packed, room_bytes) == (guarded[:filled], all_of_it)
        # Snappy fills in whole blocks, of 32 KiB here.
        assert filled == len(whole) if all_of_it else filled > room_bytes - 32 * 1024 - 1

    check()


# Packed bytes of a kind that say little, or nothing, in very many parts.
SHAPES = {
    "gzip members": (1, gzip.compress(b"x")),
    "empty gzip members": (1, gzip.compress(b"")),
    "snappy streams": (2, bytes(snappy_encode(b"x"))),
    "snappy blocks": (2, bytes(snappy_encode(b"x"))[16:]),
    "lz4 frames": (3, bytes(lz4_encode(b"x"))),
    "zstd frames": (4, bytes(zstd_encode(b"x"))),
    "empty zstd frames": (4, bytes(zstd_encode(b""))),
    "zstd frames to be skipped": (4, b"\x50\x2a\x4d\x18\0\0\0\0"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_linear_in_parts_of_any_shape(shape: str) -> None:
    """Eight times as many parts of the same kind; a quadratic reader takes 64 times as long."""
    codec, part = SHAPES[shape]
    head = bytes(snappy_encode(b""))[:16] if codec == CompressionType.SNAPPY else b""
    took_s = []
    for parts in (8_000, 64_000):
        packed = head + part * parts
        before = time.process_time()
        unpacked(codec, packed)
        took_s.append(time.process_time() - before)
    assert took_s[1] < 24 * max(took_s[0], 0.002)


@pytest.mark.parametrize("codec", ENCODERS)
def test_truncated(codec: int) -> None:
    packed = bytes(ENCODERS[codec](b"some records, some records" * 20))
    for size in range(1, len(packed)):
        try:
            unpacked(codec, packed[:size])
        except WireError:
            continue
        # A xerial stream may end after its header; a frame's end mark may carry no data.
        assert codec in (CompressionType.SNAPPY, CompressionType.LZ4)


@pytest.mark.parametrize("codec", ENCODERS)
def test_garbage_raises_only_wire_errors(codec: int) -> None:
    @settings(max_examples=100)
    @given(st.binary(max_size=100), st.booleans())
    def check(junk: bytes, with_magic: bool) -> None:
        start = bytes(ENCODERS[codec](b"x"))[:16] if with_magic else b""
        with contextlib.suppress(WireError):
            unpacked(codec, start + junk)

    check()


def test_gzip_uses_the_gzip_form_alone() -> None:
    with pytest.raises(MalformedMessage):
        unpacked(1, zlib.compress(b"abc"))
