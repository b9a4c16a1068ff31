"""Decompression of a batch's records by Kafka's codec numbers. Compressing is nobody's job here.

The size of the result is bounded (`RECORDS_BYTES_MAX`), so a small batch cannot take all memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam

from protocol.errors import MalformedMessage
from protocol.primitives import Buffer

# Kafka frames hold at most socket.request.max.bytes (100 MiB); producers compress batches of
# message.max.bytes (1 MiB by default) *after* compression, rarely by more than 20.
RECORDS_BYTES_MAX = 512 * 1024 * 1024
_FIRST_GUESS_BYTES = 64 * 1024
_FIRST_GUESS_RATIO = 8

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


def _gzip(data: Buffer) -> Buffer:
    out = bytearray()
    rest: Buffer = data
    while rest:
        stream = zlib.decompressobj(wbits=31)
        try:
            out += stream.decompress(rest, RECORDS_BYTES_MAX + 1 - len(out))
        except zlib.error as error:
            raise MalformedMessage(f"gzip records: {error}") from None
        if len(out) > RECORDS_BYTES_MAX:
            raise MalformedMessage(f"gzip records unpack to more than {RECORDS_BYTES_MAX} bytes")
        if not stream.eof:
            raise MalformedMessage("gzip records end early")
        rest = stream.unused_data
    return out


def _snappy_block(data: Buffer) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > RECORDS_BYTES_MAX:
            raise MalformedMessage(f"snappy block claims {size} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise MalformedMessage(f"snappy records: {error}") from None


def _snappy(data: Buffer) -> Buffer:
    """A xerial stream (Java, librdkafka) or one raw block (some older producers)."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data)
    out = bytearray()
    pos = _XERIAL_HEADER_BYTES
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
        pos += 4
        if size < 0 or pos + size > len(data):
            raise MalformedMessage(f"snappy block at byte {pos} claims {size} bytes")
        out += _snappy_block(data[pos : pos + size])
        if len(out) > RECORDS_BYTES_MAX:
            raise MalformedMessage(f"snappy records unpack to more than {RECORDS_BYTES_MAX} bytes")
        pos += size
    return out


def _into_growing(unpack_into: Callable[[Buffer, bytearray], int], data: Buffer) -> Buffer:
    """These codecs do not say how large the result is: the buffer grows until it fits."""
    room = max(_FIRST_GUESS_BYTES, _FIRST_GUESS_RATIO * len(data))
    while True:
        room = min(room, RECORDS_BYTES_MAX)
        out = bytearray(room)
        try:
            return memoryview(out)[: unpack_into(data, out)]
        except cramjam.DecompressionError as error:
            # The codec's only sign of a full buffer; damage is reported in other words.
            if "whole buffer" not in str(error) or room == RECORDS_BYTES_MAX:
                raise MalformedMessage(f"compressed records: {error}") from None
        room *= 4


def _lz4(data: Buffer) -> Buffer:
    return _into_growing(cramjam.lz4.decompress_into, data)


def _zstd(data: Buffer) -> Buffer:
    return _into_growing(cramjam.zstd.decompress_into, data)


_UNPACK: dict[int, Callable[[Buffer], Buffer]] = {
    CompressionType.NONE: lambda data: data,
    CompressionType.GZIP: _gzip,
    CompressionType.SNAPPY: _snappy,
    CompressionType.LZ4: _lz4,
    CompressionType.ZSTD: _zstd,
}


def decompress(codec: int, data: Buffer) -> Buffer:
    """The records as they were before compression; `data` itself for codec 0.

    Raises `MalformedMessage` for an unknown codec, damaged data or an absurd size.
    """
    unpack = _UNPACK.get(codec)
    if unpack is None:
        raise MalformedMessage(f"compression codec {codec} is unknown")
    return unpack(data)
