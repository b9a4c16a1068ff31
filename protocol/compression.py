"""Decompression of a batch's records by Kafka's codec numbers. Compressing is nobody's job here.

The size of the result is bounded (`RECORDS_BYTES_MAX`), so a small batch cannot take all memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from functools import partial

import cramjam

from protocol.errors import MalformedMessage
from protocol.primitives import Buffer

# Kafka frames hold at most socket.request.max.bytes (100 MiB); producers compress batches of
# message.max.bytes (1 MiB by default) *after* compression, rarely by more than 20.
RECORDS_BYTES_MAX = 512 * 1024 * 1024
_FIRST_GUESS_BYTES = 64 * 1024
_FIRST_GUESS_RATIO = 8
_GZIP_PIECE_BYTES = 8 * 1024 * 1024  # unpacked at once, beside what is there already

# The snappy-java stream that Kafka's producers write: magic, two version numbers, blocks.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


class CompressionType(IntEnum):
    """The three low bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# The first bytes of the records, up to so many, and whether these are all.
Unpacked = tuple[Buffer, bool]


def _gzip(data: Buffer, bytes_max: int) -> Unpacked:
    out = bytearray()
    rest: Buffer = data
    while rest:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            if not rest:
                raise MalformedMessage("gzip records end early")
            piece_max = min(_GZIP_PIECE_BYTES, bytes_max + 1 - len(out))
            try:
                out += stream.decompress(rest, piece_max)
            except zlib.error as error:
                raise MalformedMessage(f"gzip records: {error}") from None
            if len(out) > bytes_max:
                return memoryview(out)[:bytes_max], False
            rest = stream.unconsumed_tail
        rest = stream.unused_data
    return out, True


def _snappy_block(data: Buffer, bytes_max: int) -> bytes | None:
    """None: it is larger. A block is not taken apart."""
    try:
        if cramjam.snappy.decompress_raw_len(data) > bytes_max:
            return None
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise MalformedMessage(f"snappy records: {error}") from None


def _snappy(data: Buffer, bytes_max: int) -> Unpacked:
    """A xerial stream (Java, librdkafka) or one raw block (some older producers)."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        only = _snappy_block(data, bytes_max)
        return (b"", False) if only is None else (only, True)
    out = bytearray()
    pos = _XERIAL_HEADER_BYTES
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
        pos += 4
        if size < 0 or pos + size > len(data):
            raise MalformedMessage(f"snappy block at byte {pos} claims {size} bytes")
        block = _snappy_block(data[pos : pos + size], bytes_max - len(out))
        if block is None:
            return out, False
        out += block
        pos += size
    return out, True


def _filled(
    unpack_into: Callable[[Buffer, bytearray], int], data: Buffer, bytes_max: int
) -> Unpacked:
    """These codecs do not say how large the result is, and fill what they are given."""
    out = bytearray(bytes_max)
    try:
        return memoryview(out)[: unpack_into(data, out)], True
    except cramjam.DecompressionError as error:
        # The codec's only sign of a full buffer; damage is reported in other words.
        if "whole buffer" in str(error):
            return out, False
        raise MalformedMessage(f"compressed records: {error}") from None


_UNPACK: dict[int, Callable[[Buffer, int], Unpacked]] = {
    CompressionType.NONE: lambda data, _: (data, True),
    CompressionType.GZIP: _gzip,
    CompressionType.SNAPPY: _snappy,
    CompressionType.LZ4: partial(_filled, cramjam.lz4.decompress_into),
    CompressionType.ZSTD: partial(_filled, cramjam.zstd.decompress_into),
}


def unpack_up_to(codec: int, data: Buffer, bytes_max: int) -> Unpacked:
    """The first bytes of the records, and whether these are all; no more memory is taken.

    Snappy gives whole blocks: less than `bytes_max` where the next one does not fit. Records that
    were not compressed are `data` itself, whatever its size.
    Raises `MalformedMessage` for an unknown codec or damaged data.
    """
    unpack = _UNPACK.get(codec)
    if unpack is None:
        raise MalformedMessage(f"compression codec {codec} is unknown")
    return unpack(data, bytes_max)


def decompress(codec: int, data: Buffer) -> Buffer:
    """The records as they were before compression; `data` itself for codec 0.

    Raises `MalformedMessage` for an unknown codec, damaged data or an absurd size.
    """
    room = RECORDS_BYTES_MAX
    if codec in (CompressionType.LZ4, CompressionType.ZSTD):  # they begin anew with more room
        room = max(_FIRST_GUESS_BYTES, _FIRST_GUESS_RATIO * len(data))
    while True:
        room = min(room, RECORDS_BYTES_MAX)
        records, whole = unpack_up_to(codec, data, room)
        if whole:
            return records
        if room == RECORDS_BYTES_MAX:
            raise MalformedMessage(f"records unpack to more than {RECORDS_BYTES_MAX} bytes")
        room *= 4
