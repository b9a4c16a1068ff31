"""Record batches: headers, records, and decompression. Pure."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from enum import IntEnum
from functools import partial
from struct import Struct
from typing import NamedTuple

import cramjam
from fastcrc.crc32 import iscsi as crc32c

from fetchproxy_protocol.apis import MalformedMessage, Truncated, WireError
from fetchproxy_protocol.primitives import Buffer

_FIRST_GUESS_BYTES = 64 * 1024
_FIRST_GUESS_RATIO = 8
# Packed bytes that are read at once, and how many are unpacked at once beside those before.
_GZIP_PIECE_BYTES_MIN = 256
_GZIP_PIECE_BYTES_MAX = 64 * 1024
_GZIP_UNPACKED_BYTES = 1024 * 1024

# The snappy-java stream that Kafka's producers write: magic, two version numbers, blocks.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_GZIP_MAGIC = b"\x1f\x8b"
# The first bytes of the records up to a limit, and whether these are all bytes.
Unpacked = tuple[Buffer, bool]
# The number of bytes in the room, and whether these are all.
Filled = tuple[int, bool]
LOG_OVERHEAD_BYTES = 12
HEADER_BYTES = 61
MAGIC = 2
MAGIC_POSITION = 16
CRC_COVERS_FROM = 21
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
CONTROL_ABORT = 0
CONTROL_COMMIT = 1
CONTROL_EMPTY = -1  # compaction has taken the marker's record, after all data of its transaction
_HEADER = Struct(">qiixIhiqqqhii")  # all fields except the magic
# base offset, length, magic, last offset delta: enough for a walk that returns positions.
_BOUNDS = Struct(">qi4xb6xi")
_CONTROL_KEY = Struct(">hh")
_VARLONG_BYTES_MAX = 10
# A search by time reads at most this much of one batch. Batches usually have 1 MiB and unpack to
# 20 MiB; a search up to this limit takes 0.05 to 0.2 s.
SEARCHED_BYTES_MAX = 32 * 1024 * 1024
SEARCHED_RECORDS_MAX = 200_000
# Records between two pauses of a search. They take 0.2 ms, up to 2 ms if each timestamp fits.
RECORDS_A_STEP = 1_000
# To look at a record takes about as long as to unpack this much.
_RECORD_WORK_BYTES = 100
_FIRST_ROOM_BYTES = 64 * 1024
_ROOM_GROWTH = 8
_TIMESTAMP_MIN = -(2**63)
_NO_DELTA = 2**70  # above each delta


class CompressionType(IntEnum):
    """The three low bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TooLargeToUnpack(WireError):
    """Records unpack to more bytes than the caller has room for. They are not damaged."""


def _gzip(data: Buffer, room: memoryview) -> Filled:
    """Time is linear in both sizes, also for records in very many members: what a member leaves of
    a piece is copied, so pieces begin small in each.
    """
    packed, pos, filled = memoryview(data), 0, 0
    while pos < len(packed):
        stream = zlib.decompressobj(wbits=31)
        piece_bytes = _GZIP_PIECE_BYTES_MIN
        while not stream.eof:
            piece: Buffer = stream.unconsumed_tail
            if not piece:
                piece = packed[pos : pos + piece_bytes]
                if not piece:
                    raise MalformedMessage("gzip records end early")
                pos += len(piece)
                piece_bytes = min(2 * piece_bytes, _GZIP_PIECE_BYTES_MAX)
            bytes_left = len(room) - filled
            try:
                unpacked = stream.decompress(piece, min(_GZIP_UNPACKED_BYTES, bytes_left + 1))
            except zlib.error as error:
                raise MalformedMessage(f"gzip records: {error}") from None
            if len(unpacked) > bytes_left:
                room[filled:] = unpacked[:bytes_left]
                return len(room), False
            room[filled : filled + len(unpacked)] = unpacked
            filled += len(unpacked)
        pos -= len(stream.unused_data)
        if packed[pos : pos + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            break  # Java's reader, too, passes over what follows the last member
    return filled, True


def _snappy_block_bytes(data: Buffer) -> int:
    try:
        return int(cramjam.snappy.decompress_raw_len(data))
    except cramjam.DecompressionError as error:
        raise MalformedMessage(f"snappy records: {error}") from None


def _snappy_block(data: Buffer, room: memoryview) -> int | None:
    """None: the block is larger than the room. Blocks are not split."""
    size = _snappy_block_bytes(data)
    if size > len(room):
        return None
    try:
        if size == 0:  # cramjam takes no empty buffer
            return len(cramjam.snappy.decompress_raw(data))
        return int(cramjam.snappy.decompress_raw_into(data, room))
    except cramjam.DecompressionError as error:
        raise MalformedMessage(f"snappy records: {error}") from None


def _is_xerial(data: Buffer) -> bool:
    """Otherwise it is one raw block."""
    return bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _snappy(data: Buffer, room: memoryview) -> Filled:
    """Xerial streams (Java, librdkafka) or one raw block (some older producers)."""
    if not _is_xerial(data):
        only = _snappy_block(data, room)
        return (0, False) if only is None else (only, True)
    pos, filled = _XERIAL_HEADER_BYTES, 0
    while pos < len(data):
        if bytes(data[pos : pos + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            pos += _XERIAL_HEADER_BYTES  # another stream follows
            continue
        size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
        pos += 4
        if size < 0 or pos + size > len(data):
            raise MalformedMessage(f"snappy block at byte {pos} claims {size} bytes")
        block = _snappy_block(data[pos : pos + size], room[filled:])
        if block is None:
            return filled, False
        filled += block
        pos += size
    return filled, True


def _whole(
    unpack_into: Callable[[Buffer, memoryview], int], data: Buffer, room: memoryview
) -> Filled:
    """These codecs do not tell the result's size, and fill the buffer that they get."""
    try:
        return unpack_into(data, room), True
    except cramjam.DecompressionError as error:
        # The codec's only sign of a full buffer; damage gives other words.
        if "whole buffer" in str(error):
            return len(room), False
        raise MalformedMessage(f"compressed records: {error}") from None


_UNPACK: dict[int, Callable[[Buffer, memoryview], Filled]] = {
    CompressionType.GZIP: _gzip,
    CompressionType.SNAPPY: _snappy,
    CompressionType.LZ4: partial(_whole, cramjam.lz4.decompress_into),
    CompressionType.ZSTD: partial(_whole, cramjam.zstd.decompress_into),
}


def unpack_into(codec: int, data: Buffer, room: memoryview) -> Filled:
    """Fills `room` with the first bytes of compressed records, in time that is linear in `data` and
    `room`. Snappy fills in whole blocks. Takes no other memory that grows with either, except a
    window of zstd: at most as much as was unpacked, and 128 MiB.

    Raises `MalformedMessage` for an unknown codec or damaged data.
    """
    unpack = _UNPACK.get(codec)
    if unpack is None:
        raise MalformedMessage(f"compression codec {codec} is unknown")
    return unpack(data, room)


def unpack_up_to(codec: int, data: Buffer, bytes_max: int) -> Unpacked:
    """As `unpack_into`, with a room of `bytes_max`. Uncompressed records are `data` itself,
    whatever its size.
    """
    if codec == CompressionType.NONE:
        return data, True
    if codec == CompressionType.SNAPPY and not _is_xerial(data):
        size = _snappy_block_bytes(data)
        bytes_max = size if size <= bytes_max else 0  # blocks are not split
    room = memoryview(bytearray(bytes_max))
    filled, is_whole = unpack_into(codec, data, room)
    return room[:filled], is_whole


def decompress(codec: int, data: Buffer, bytes_max: int) -> Buffer:
    """The records before compression; `data` itself for codec 0. Raises `MalformedMessage` as
    `unpack_into`, `TooLargeToUnpack` for more than `bytes_max`.
    """
    room = max(_FIRST_GUESS_BYTES, _FIRST_GUESS_RATIO * len(data))
    while True:
        room = min(room, bytes_max)
        records, is_whole = unpack_up_to(codec, data, room)
        if is_whole:
            return records
        if room == bytes_max:
            raise TooLargeToUnpack(f"records unpack to more than {bytes_max} bytes")
        del records  # before the next buffer is made
        room *= 4


# Record batches (magic 2), read by their fixed 61-byte header. Layout: Kafka's DefaultRecordBatch.
# Records are read in two cases only: for a control batch's type, and in a search by timestamp.


class BatchHeader(NamedTuple):
    """One batch's header and place. A tuple, because making a frozen dataclass costs 4 times more.

    `position` counts from the start of the walked buffer. `size` is the whole batch in bytes.
    `batch_length` is as stored, without the first 12 bytes (base offset and length).
    """

    position: int
    size: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def records_at(self) -> int:
        """The position of its records, which may be compressed."""
        return self.position + HEADER_BYTES

    @property
    def last_offset(self) -> int:
        """Compaction keeps this offset, so it may be above the last record's offset."""
        return self.base_offset + self.last_offset_delta

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def compression(self) -> int:
        """Kafka's codec number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK


def _check(buf: Buffer, pos: int, limit: int) -> None:
    """Raises if the bytes cannot be a batch; fewer than 61 bytes may be a cut batch."""
    bytes_left = limit - pos
    if bytes_left > MAGIC_POSITION and (magic := buf[pos + MAGIC_POSITION]) != MAGIC:
        raise MalformedMessage(f"batch at byte {pos} has magic {magic}, not {MAGIC}")
    if bytes_left >= LOG_OVERHEAD_BYTES:
        length = int.from_bytes(buf[pos + 8 : pos + 12], "big", signed=True)
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            raise MalformedMessage(f"batch at byte {pos} has length {length}")
    if bytes_left >= HEADER_BYTES and (delta := _BOUNDS.unpack_from(buf, pos)[3]) < 0:
        raise MalformedMessage(f"batch at byte {pos} has last offset delta {delta}")


def walk(buf: Buffer, pos: int = 0, end: int | None = None) -> Iterator[BatchHeader]:
    """The whole batches of `buf[pos:end]` in order, without a partial batch at the end.

    Raises `MalformedMessage` for another magic, an impossible length, or a last offset below the
    base offset. Does not check the CRC: see `check_crc`.
    """
    limit = len(buf) if end is None else min(end, len(buf))
    unpack_from = _HEADER.unpack_from
    make = tuple.__new__
    while limit - pos >= HEADER_BYTES:
        fields = unpack_from(buf, pos)
        length = fields[1]
        if buf[pos + 16] != 2 or length < 49 or fields[5] < 0:
            _check(buf, pos, limit)
        size = length + 12
        if pos + size > limit:
            return
        yield make(BatchHeader, (pos, size, *fields))
        pos += size
    _check(buf, pos, limit)


def cut(buf: Buffer, from_offset: int, bytes_max: int, min_one: bool) -> tuple[int, int]:
    """(start, end) of the batches that response a fetch at `from_offset`, as LogSegment.read does.

    They begin with the first batch whose last offset is at or above `from_offset` (its first
    records may lie below it: clients skip those) and end at the last batch border within
    `bytes_max` bytes. With `min_one` the first batch comes whole even if it alone is larger
    (KIP-74). start == end: no batch found. Raises as `walk` for the bytes that it passes.
    """
    limit = len(buf)
    pos = 0
    start = -1
    stop = limit
    unpack_from = _BOUNDS.unpack_from
    while limit - pos >= HEADER_BYTES:
        base, length, magic, delta = unpack_from(buf, pos)
        if magic != 2 or length < 49 or delta < 0:
            _check(buf, pos, limit)
        after = pos + length + 12
        if after > limit:
            break
        if start < 0 and base + delta >= from_offset:
            start = pos
            stop = pos + (max(bytes_max, after - pos) if min_one else bytes_max)
        if start >= 0 and after > stop:
            break
        pos = after
    else:
        _check(buf, pos, limit)
    return (pos, pos) if start < 0 else (start, pos)


def check_crc(buf: Buffer, header: BatchHeader) -> bool:
    """Whether the batch's bytes have the CRC-32C in its header. Makes no copy."""
    view = memoryview(buf)[header.position + CRC_COVERS_FROM : header.position + header.size]
    return bool(crc32c(view) == header.crc)


def _raw_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """(value before zigzag, position after it) of a varint or varlong."""
    value = shift = 0
    for position in range(pos, pos + _VARLONG_BYTES_MAX):
        if position >= len(buf):
            break
        byte = buf[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    else:
        raise MalformedMessage(f"varint in a record at byte {pos} is too long")
    raise Truncated(f"varint in a record at byte {pos} has no end")


def varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """(value, position after it) of a zigzag varint or varlong."""
    value, after = _raw_varlong(buf, pos)
    return (value >> 1) ^ -(value & 1), after


def wrapped_int64(value: int) -> int:
    """As it overflows in Java: any two timestamps may be in one batch, their delta is an int64."""
    return (value + 2**63) % 2**64 - 2**63


def _stored_records(buf: Buffer, header: BatchHeader) -> Buffer:
    return memoryview(buf)[header.records_at : header.position + header.size]


def control_type(buf: Buffer, header: BatchHeader) -> int:
    """The type in the first control record's key: `CONTROL_ABORT`, `CONTROL_COMMIT` or newer.

    `CONTROL_EMPTY` if the batch has no record. Source: Kafka's ControlRecordType. Raises
    `MalformedMessage` if the batch is not a control batch, `Truncated` for a key shorter than 4
    bytes.
    """
    if not header.is_control:
        raise MalformedMessage(f"batch at offset {header.base_offset} is not a control batch")
    if header.records_count <= 0:
        return CONTROL_EMPTY
    stored_records = _stored_records(buf, header)
    records, _ = unpack_up_to(header.compression, stored_records, _FIRST_ROOM_BYTES)
    size, body = varlong(records, 0)
    if size < 0 or body + size > len(records):
        raise Truncated(f"control record claims {size} bytes")
    _, position = varlong(records, body + 1)  # the timestamp
    _, position = varlong(records, position)  # the offset
    key_bytes, key = varlong(records, position)
    if key_bytes < _CONTROL_KEY.size or key + _CONTROL_KEY.size > len(records):
        raise Truncated(f"control record key of {key_bytes} bytes")
    kind: int = _CONTROL_KEY.unpack_from(records, key)[1]
    return kind


class BatchSearch:
    """The first record of a batch with at least `timestamp_ms` and `from_offset`, searched in
    short steps, so that other work can go in between.

    As Kafka's FileRecords.searchForTimestamp within one batch: under LogAppendTime every record has
    the batch's maximum as its timestamp. While `room` is not None, call `unpack`, then take all
    steps of `steps`. Then `position` has (offset, timestamp in ms); None: no record qualifies. If
    SEARCHED_BYTES_MAX or SEARCHED_RECORDS_MAX is reached first, it has the first unread offset with
    the batch's largest timestamp: a client that reads from there gets some earlier records and
    misses none. Both methods raise `WireError` for broken records.

    `room`: the most bytes that the next `unpack` makes. `work`: this search's time, as the bytes
    that are unpacked in about as long.
    """

    def __init__(
        self, buf: Buffer, header: BatchHeader, timestamp_ms: int, from_offset: int = 0
    ) -> None:
        self._buf = buf
        self._header = header
        self._timestamp_ms = timestamp_ms
        self._from_offset = from_offset
        within = header.max_timestamp >= timestamp_ms and header.last_offset >= from_offset
        self.room: int | None = _FIRST_ROOM_BYTES if within else None
        self.position: tuple[int, int] | None = None
        self._left = min(header.records_count, SEARCHED_RECORDS_MAX)
        self._pos = 0  # of the next record
        self._offset_at = -1  # where the previous record's offset is
        # Only a record with a delta outside these two can have such a timestamp. Below the second,
        # it overflows.
        self._delta_min = timestamp_ms - header.base_timestamp
        if header.is_log_append_time:
            self._delta_min = -(2**70)
        self._overflows_below = -(2**63) - header.base_timestamp

    @property
    def work(self) -> int:
        return self._header.size + _RECORD_WORK_BYTES * max(self._left, 1)

    def unpack(self) -> Unpacked:
        """The records as far as `room` reaches. May run in a thread."""
        assert self.room is not None
        stored_records = _stored_records(self._buf, self._header)
        return unpack_up_to(self._header.compression, stored_records, self.room)

    def steps(self, unpacked: Unpacked) -> Generator[None, None, None]:
        """Look at the unpacked records, RECORDS_A_STEP at a time. The caller drops `unpacked`
        before it unpacks more.
        """
        records, is_whole = unpacked
        room = self.room
        assert room is not None
        try:
            while self._left > 0:
                if self._look(records, min(self._left, RECORDS_A_STEP)):
                    self.room = None
                    return
                yield
        except (MalformedMessage, Truncated):
            if is_whole:
                raise
            if room != SEARCHED_BYTES_MAX:
                self.room = min(_ROOM_GROWTH * room, SEARCHED_BYTES_MAX)
                return
        self.room = None
        if self._left > 0 or self._header.records_count > SEARCHED_RECORDS_MAX:
            self.position = self._first_unread(records), self._header.max_timestamp

    def _first_unread(self, records: Buffer) -> int:
        unread = self._header.base_offset
        if self._offset_at >= 0:
            unread += varlong(records, self._offset_at)[0] + 1
        return max(self._from_offset, min(unread, self._header.last_offset))

    def _look(self, records: Buffer, count: int) -> bool:
        """Look at the next `count` records. True: `position` is set.

        Varints of one or two bytes are read in place, and offsets only where the timestamp fits: a
        call for each varint would take ten times as long.
        """
        limit, pos, records_left = len(records), self._pos, self._left
        delta_min, overflows_below = self._delta_min, self._overflows_below
        try:
            for _ in range(count):
                size, body = records[pos], pos + 1
                if size > 0x7F:
                    size += (records[body] << 7) - 0x80
                    body += 1
                    if records[body - 1] > 0x7F:
                        size, body = _raw_varlong(records, pos)
                end = body + (size >> 1)
                if size & 1 or end > limit:
                    raise Truncated(f"record at byte {pos} of its batch goes on behind its end")
                delta, position = records[body + 1], body + 2
                if delta > 0x7F:
                    delta += (records[position] << 7) - 0x80
                    position += 1
                    if records[position - 1] > 0x7F:
                        delta, position = _raw_varlong(records, body + 1)
                delta = (delta >> 1) ^ -(delta & 1)
                if position >= end:
                    raise MalformedMessage(f"record at byte {pos} of its batch has no offset")
                if delta >= delta_min or delta < overflows_below:
                    if self._matches(records, delta, position, end):
                        return True
                    delta_min = self._delta_min
                pos, self._offset_at, records_left = end, position, records_left - 1
        except IndexError:
            raise Truncated(f"record at byte {pos} of its batch has no end") from None
        finally:
            self._pos, self._left = pos, records_left
        return False

    def _matches(self, records: Buffer, timestamp_delta: int, position: int, end: int) -> bool:
        offset, timestamp = self._record(records, timestamp_delta, position, end)
        if timestamp < self._timestamp_ms or offset < self._from_offset:
            return False
        self.position = offset, timestamp
        return True

    def _record(
        self, records: Buffer, timestamp_delta: int, position: int, end: int
    ) -> tuple[int, int]:
        """Offset and timestamp (ms)."""
        offset_delta, after = varlong(records, position)
        if after > end:
            raise MalformedMessage(f"record that ends at byte {end} of its batch is too short")
        header = self._header
        timestamp = wrapped_int64(header.base_timestamp + timestamp_delta)
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        return header.base_offset + offset_delta, timestamp


class BatchTimes:
    """The records of a batch with a later timestamp than each record before them: all that a
    search may find there. `timestamps` (ms) rise, and so do the `offsets` beside them.
    """

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("q")

    @property
    def memory_bytes(self) -> int:
        return 16 * len(self.offsets) + 300

    def first(self, timestamp_ms: int, from_offset: int) -> tuple[bool, tuple[int, int] | None]:
        """(True, what a `BatchSearch` finds), or (False, None): that is not among these records."""
        number = bisect_left(self.timestamps, timestamp_ms)
        if number == len(self.timestamps):
            return True, None
        if self.offsets[number] < from_offset:
            return False, None
        return True, (self.offsets[number], self.timestamps[number])


class BatchTimesSearch(BatchSearch):
    """Reads all records of a batch, in the steps of `BatchSearch`. `times`: the result, unless the
    batch is too large; then `position` is set, as by `BatchSearch`.
    """

    def __init__(self, buf: Buffer, header: BatchHeader) -> None:
        super().__init__(buf, header, _TIMESTAMP_MIN)
        self.times = BatchTimes()

    def _matches(self, records: Buffer, timestamp_delta: int, position: int, end: int) -> bool:
        offset, timestamp = self._record(records, timestamp_delta, position, end)
        timestamps = self.times.timestamps
        if not timestamps or timestamp > timestamps[-1]:
            timestamps.append(timestamp)
            self.times.offsets.append(offset)
        # Only a later record counts now; under LogAppendTime none is.
        header = self._header
        later = timestamps[-1] + 1 - header.base_timestamp
        self._delta_min = _NO_DELTA if header.is_log_append_time else later
        return False


def first_record_at_or_after(
    buf: Buffer, header: BatchHeader, timestamp_ms: int, from_offset: int = 0
) -> tuple[int, int] | None:
    """See `BatchSearch`: its result, at once."""
    search = BatchSearch(buf, header, timestamp_ms, from_offset)
    while search.room is not None:
        for _ in search.steps(search.unpack()):
            pass
    return search.position
