"""Writes records of many batches into the buffers of Arrow columns.

Compiled: makes no Python object a record. The layout of a record is Kafka's DefaultRecord. Callers
pass and get arrays, indexed by the constants below and in `header_scan`. `arrow_batches` makes the
columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from fetchproxy_protocol.record_batch import TIMESTAMP_TYPE_MASK
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fetchproxy.model import OFFSET_MAX
from fetchproxy.remotelog.decoder.header_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    END,
    MAX_TIMESTAMP,
    START,
    compiled,
)

# The cursor: the place at which the next call continues.
AT_BATCH, AT_POSITION, AT_RECORD = range(3)

_ANY_TIMESTAMP = (-(2**63), 2**63 - 1)

SOUND, BAD_VARINT, TOO_LONG, BAD_LENGTH, BAD_HEADERS, BYTES_LEFT = range(6)
RECORD_FAULTS = {
    BAD_VARINT: "a number in a record has no end",
    TOO_LONG: "a record is longer than its batch",
    BAD_LENGTH: "a key or a value is longer than its record",
    BAD_HEADERS: "a record's headers do not fill their part of the record",
    BYTES_LEFT: "bytes follow the last record",
}

# Bytes of a header besides its key and value: their ends, and the flag for a value.
HEADER_OVERHEAD_BYTES = 12

_VARINT_BYTES_MAX = 10

# Timestamps, in ms, that have microseconds. Kafka allows any int64; Spark's own Kafka source ends
# the query at a timestamp beyond these. Here it is null, so that it costs no other record.
TIMESTAMP_MIN_MS, TIMESTAMP_MAX_MS = -(2**63 // 1000), 2**63 // 1000
NO_MICROSECONDS = -(2**63)


class RowLimits(NamedTuple):
    """Limits of the records that give rows.

    Offsets: from `offset_from`, below `offset_end`. Timestamps: in ms, both inclusive.
    """

    offset_from: int = 0
    offset_end: int = OFFSET_MAX
    timestamp_min: int = _ANY_TIMESTAMP[0]
    timestamp_max: int = _ANY_TIMESTAMP[1]

    @property
    def any_timestamp(self) -> bool:
        return (self.timestamp_min, self.timestamp_max) == _ANY_TIMESTAMP


class Values(NamedTuple):
    """Buffers of keys, or of other values that differ in size."""

    ends: Any  # int32, one more than values, the first is 0
    data: Any  # uint8
    present: Any  # uint8, 1 or 0


class Buffers(NamedTuple):
    """The buffers of Arrow columns; empty for a column that is not wanted."""

    offsets: Any  # int64
    timestamps: Any  # int64, in µs, or NO_MICROSECONDS; in ms if the rows are exact
    timestamp_types: Any  # int32
    key: Values
    value: Values
    header_ends: Any  # int32 by row, as `Values.ends`
    headers_present: Any  # uint8 by row
    header_key: Values
    header_value: Values


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _copy_bytes(typing_context: Any, to: Any, origin: Any, size: Any) -> Any:
    """memcpy between two addresses; a loop over bytes takes several times as long.

    Like `_byte_at`, it checks nothing: the caller has to know that the bytes are there.
    """
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target = builder.inttoptr(arguments[0], pointer)
        source = builder.inttoptr(arguments[1], pointer)
        size = arguments[2]
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, size.type])
        builder.call(memcpy, [target, source, size, ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _byte_at(typing_context: Any, address: Any) -> Any:
    """The byte at an address, as an int64. An array item would cost the checks of its index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _put_byte(typing_context: Any, address: Any, value: Any) -> Any:
    """Writes the low byte of an int64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        builder.store(builder.trunc(arguments[1], ir.IntType(8)), pointer)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


# Below, places are addresses in memory: `at` is the next byte to read, `end` the first byte that
# may not be read. Every step checks `end` before it reads.


@compiled
def _varint(position: int, end: int) -> Any:
    """Reads a zigzag varint or varlong: (value, address after it).

    The address is 0 if the number has no end.
    """
    if position < end:
        byte = _byte_at(position)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
    value = np.int64(0)
    shift = np.int64(0)
    for _ in range(_VARINT_BYTES_MAX):
        if position >= end:
            return np.int64(0), np.int64(0)
        byte = _byte_at(position)
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position
        shift += 7
    return np.int64(0), np.int64(0)


@compiled
def _field(position: int, end: int) -> Any:
    """(length, address of the bytes, address after them, fault). A length of -1 means null."""
    length, start = _varint(position, end)
    if start == 0:
        return length, start, start, BAD_VARINT
    if length < -1 or length > end - start:
        return length, start, start, BAD_LENGTH
    return length, start, start + max(length, 0), SOUND


# Text as Java's `new String(bytes, UTF_8)` reads it, and so Kafka's and Spark's clients: each
# malformed part becomes U+FFFD. Which bytes are one part differs from Python's rule: a surrogate
# in three bytes is one part here. `tests/remotelog/test_java_text.py` asks a JVM.


@compiled
def _is_no_continuation(byte: int) -> bool:
    return byte & 0xC0 != 0x80


@compiled
def _is_two_byte_character(position: int, end: int) -> Any:
    if end - position < 2 or _is_no_continuation(_byte_at(position + 1)):
        return 1, False
    return 2, True


@compiled
def _is_three_byte_character(first: int, position: int, end: int) -> Any:
    bytes_left = end - position
    second = _byte_at(position + 1) if bytes_left > 1 else 0
    if bytes_left < 2 or _is_no_continuation(second) or (first == 0xE0 and second < 0xA0):
        return 1, False
    if bytes_left < 3 or _is_no_continuation(_byte_at(position + 2)):
        return 2, False
    return 3, not (first == 0xED and second >= 0xA0)  # a surrogate


@compiled
def _is_four_byte_character(first: int, position: int, end: int) -> Any:
    bytes_left = end - position
    second = _byte_at(position + 1) if bytes_left > 1 else 0
    if bytes_left < 2 or first > 0xF4 or _is_no_continuation(second):
        return 1, False
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 1, False
    if bytes_left < 3 or _is_no_continuation(_byte_at(position + 2)):
        return 2, False
    if bytes_left < 4 or _is_no_continuation(_byte_at(position + 3)):
        return 3, False
    return 4, True


@compiled
def _character(position: int, end: int) -> Any:
    """(bytes of the character, or of a malformed part; True: it is a character)."""
    first = _byte_at(position)
    if first < 0x80:
        return 1, True
    if 0xC2 <= first < 0xE0:
        return _is_two_byte_character(position, end)
    if 0xE0 <= first < 0xF0:
        return _is_three_byte_character(first, position, end)
    if 0xF0 <= first < 0xF8:
        return _is_four_byte_character(first, position, end)
    return 1, False


@compiled
def _text_bytes(position: int, end: int) -> Any:
    """Bytes of the text that `_put_text` writes."""
    total = np.int64(0)
    while position < end:
        size, sound = _character(position, end)
        total += size if sound else 3
        position += size
    return total


@compiled
def _put_text(position: int, end: int, to: int) -> Any:
    """Writes the text to the address `to`. Returns the address after it."""
    while position < end:
        size, sound = _character(position, end)
        if sound:
            for i in range(size):
                _put_byte(to + i, _byte_at(position + i))
            to += size
        else:
            _put_byte(to, 0xEF)
            _put_byte(to + 1, 0xBF)
            _put_byte(to + 2, 0xBD)
            to += 3
        position += size
    return to


@compiled
def _headers_bytes(position: int, end: int, count: int, exact: bool) -> Any:
    """(bytes of keys, bytes of values, fault). The headers end where the record ends."""
    keys = values = np.int64(0)
    if count > end - position:
        return keys, values, BAD_HEADERS
    for _ in range(count):
        length, start, position, fault = _field(position, end)
        if fault != SOUND or length < 0:
            return keys, values, BAD_HEADERS
        keys += length if exact else _text_bytes(start, position)
        length, _, position, fault = _field(position, end)
        if fault != SOUND:
            return keys, values, BAD_HEADERS
        values += max(length, 0)
    return keys, values, SOUND if position == end else BAD_HEADERS


@compiled
def _put(length: int, origin: int, position: int, to: Any) -> None:
    """Writes the value with index `position` of `to` (Values)."""
    used = np.int64(to.ends[position])
    to.present[position] = length >= 0
    if length > 0:
        _copy_bytes(np.int64(to.data.ctypes.data) + used, origin, length)
        used += length
    to.ends[position + 1] = used


@compiled
def _put_headers(position: int, end: int, count: int, row: int, exact: bool, to: Any) -> None:
    """Writes the headers of one row, which `_headers_bytes` has found sound."""
    entry = np.int64(to.header_ends[row])
    for _ in range(count):
        length, start, position, _ = _field(position, end)
        if exact:
            _put(length, start, entry, to.header_key)
        else:
            base = np.int64(to.header_key.data.ctypes.data)
            text = base + np.int64(to.header_key.ends[entry])
            to.header_key.present[entry] = 1
            to.header_key.ends[entry + 1] = _put_text(start, position, text) - base
        length, start, position, _ = _field(position, end)
        _put(length, start, entry, to.header_value)
        entry += 1
    to.headers_present[row] = count > 0
    to.header_ends[row + 1] = entry


@compiled
def _micros(timestamp: int) -> int:
    if TIMESTAMP_MIN_MS <= timestamp <= TIMESTAMP_MAX_MS:
        return timestamp * 1000
    return NO_MICROSECONDS


@compiled
def _parse(position: int, end: int) -> Any:
    """(fault, end of the record, timestamp and offset deltas, key and value as length and address,
    number of headers and their address).
    """
    none = np.int64(0)
    size, body = _varint(position, end)
    if body == 0:
        return BAD_VARINT, none, none, none, none, none, none, none, none, none
    stop = body + size
    if size < 0 or size > end - body:
        return TOO_LONG, none, none, none, none, none, none, none, none, none
    timestamp, position = _varint(body + 1, stop)  # skips one byte of unused attributes
    if position == 0:
        return BAD_VARINT, none, none, none, none, none, none, none, none, none
    offset, position = _varint(position, stop)
    if position == 0:
        return BAD_VARINT, none, none, none, none, none, none, none, none, none
    key_length, key, position, fault = _field(position, stop)
    if fault != SOUND:
        return fault, none, none, none, none, none, none, none, none, none
    value_length, value, position, fault = _field(position, stop)
    if fault != SOUND:
        return fault, none, none, none, none, none, none, none, none, none
    headers, position = _varint(position, stop)
    if position == 0 or headers < 0:
        return BAD_HEADERS, none, none, none, none, none, none, none, none, none
    return SOUND, stop, timestamp, offset, key_length, key, value_length, value, headers, position


@compiled
def fill_rows(
    data: Any,
    batches: Any,
    cursor: Any,
    limits: Any,
    row_bytes: int,
    bytes_left: int,
    exact: bool,
    to: Any,
) -> Any:
    """Writes as many rows of `batches` as fit into `to` and `bytes_left`; moves `cursor`.

    `batches`: rows of a ScannedHeaders' table. `limits`: RowLimits. `row_bytes`: bytes of a row
    besides its key, value and headers. `exact`: headers' keys as their bytes, and timestamps in
    ms. `to`: Buffers.

    Returns (rows, bytes of the next record if it did not fit, fault). At a fault the cursor is in
    the faulty batch.
    """
    base = np.int64(data.ctypes.data)
    keys, values, headers = len(to.key.ends) > 0, len(to.value.ends) > 0, len(to.header_ends) > 0
    offset_from, offset_end, timestamp_min, timestamp_max = limits
    row = np.int64(0)
    while cursor[AT_BATCH] < batches.shape[0]:
        number = cursor[AT_BATCH]
        position = base + max(cursor[AT_POSITION], batches[number, START])
        end = base + batches[number, END]
        first_offset, first_time = batches[number, BASE_OFFSET], batches[number, BASE_TIMESTAMP]
        is_append = (batches[number, ATTRIBUTES] & TIMESTAMP_TYPE_MASK) != 0
        append_time = batches[number, MAX_TIMESTAMP]
        for record in range(cursor[AT_RECORD], batches[number, COUNT]):
            fault, after, delta, offset, key_length, key, value_length, value, count, headers_at = (
                _parse(position, end)
            )
            if fault != SOUND:
                return row, np.int64(0), fault
            timestamp = append_time if is_append else first_time + delta
            offset += first_offset
            if offset_from <= offset < offset_end and timestamp_min <= timestamp <= timestamp_max:
                needed = row_bytes + keys * max(key_length, 0) + values * max(value_length, 0)
                if headers:
                    key_bytes, value_bytes, fault = _headers_bytes(headers_at, after, count, exact)
                    if fault != SOUND:
                        return row, np.int64(0), fault
                    needed += key_bytes + value_bytes + count * HEADER_OVERHEAD_BYTES
                if row == len(to.offsets) or needed > bytes_left:
                    cursor[AT_POSITION], cursor[AT_RECORD] = position - base, record
                    return row, needed, SOUND
                bytes_left -= needed
                to.offsets[row] = offset
                to.timestamps[row] = timestamp if exact else _micros(timestamp)
                to.timestamp_types[row] = is_append
                if keys:
                    _put(key_length, key, row, to.key)
                if values:
                    _put(value_length, value, row, to.value)
                if headers:
                    _put_headers(headers_at, after, count, row, exact, to)
                row += 1
            position = after
        if position != end:
            return row, np.int64(0), BYTES_LEFT
        cursor[AT_BATCH], cursor[AT_POSITION], cursor[AT_RECORD] = number + 1, 0, 0
    return row, np.int64(0), SOUND


@compiled
def sizes_of_next(data: Any, batches: Any, cursor: Any, exact: bool) -> Any:
    """Of the record that did not fit: number of headers, bytes of key, value, headers' keys and
    headers' values.
    """
    base, number = np.int64(data.ctypes.data), cursor[AT_BATCH]
    position = base + max(cursor[AT_POSITION], batches[number, START])
    end = base + batches[number, END]
    _, after, _, _, key_length, _, value_length, _, count, headers_at = _parse(position, end)
    key_bytes, value_bytes, _ = _headers_bytes(headers_at, after, count, exact)
    return count, max(key_length, 0), max(value_length, 0), key_bytes, value_bytes


@compiled
def fault_in(data: Any, batch: Any, offset_from: int, offset_end: int, headers: bool) -> Any:
    """The fault of a batch's records. `headers`: whether to check the records' headers, too."""
    base = np.int64(data.ctypes.data)
    position, end = base + batch[START], base + batch[END]
    for _ in range(batch[COUNT]):
        fault, after, _, offset, _, _, _, _, count, headers_at = _parse(position, end)
        if fault != SOUND:
            return fault
        if headers and offset_from <= batch[BASE_OFFSET] + offset < offset_end:
            _, _, fault = _headers_bytes(headers_at, after, count, True)
            if fault != SOUND:
                return fault
        position = after
    return SOUND if position == end else BYTES_LEFT
