"""Records of many batches into the buffers of Arrow columns. Compiled: no Python object a record.

The layout of a record is Kafka's DefaultRecord. What a caller gives and gets is arrays, by the
constants below; `arrow_batches` makes the columns of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fetchproxy.remotelog.decoder.compiled import byte_at, compiled, copy_bytes

# A batch's records, as a row of int64: their bytes in the data, how many they are, and what of the
# batch's header counts for them.
START, END, COUNT, BASE_OFFSET, BASE_TIMESTAMP, LOG_APPEND, APPEND_TIMESTAMP = range(7)
BATCH_FIELDS = 7

# Where the next call goes on.
AT_BATCH, AT_POSITION, AT_RECORD = range(3)

# What a call may do: rows have offsets from the first up to but not the second, timestamps (ms)
# from the third up to and with the fourth; the bytes of all rows, and what a row costs besides
# those of its key, value and headers; which columns are built.
OFFSET_FROM, OFFSET_END, TIMESTAMP_MIN, TIMESTAMP_MAX, ROOM_BYTES, ROW_BYTES, WANTED = range(7)

# Which columns are built, as bits.
WANT_KEY, WANT_VALUE, WANT_HEADERS = 1, 2, 4

# What a call has found. NEEDED is above 0 where the next record did not fit: its bytes.
(
    ROWS,
    KEY_BYTES,
    VALUE_BYTES,
    NULL_KEYS,
    NULL_VALUES,
    HEADERS,
    HEADER_KEY_BYTES,
    HEADER_VALUE_BYTES,
    NULL_HEADER_VALUES,
    NULL_HEADERS,
    NEEDED,
    FAULT,
) = range(12)
TALLY_FIELDS = 12

SOUND, BAD_VARINT, TOO_LONG, BAD_LENGTH, BAD_HEADERS, BYTES_LEFT, BAD_TIMESTAMP = range(7)
FAULTS = {
    BAD_VARINT: "a number in a record has no end",
    TOO_LONG: "a record is longer than its batch",
    BAD_LENGTH: "a key or a value is longer than its record",
    BAD_HEADERS: "a record's headers do not fill what it has for them",
    BYTES_LEFT: "bytes are left behind the last record",
    BAD_TIMESTAMP: "a timestamp is beyond what microseconds can say",
}

# What a header costs besides its key and value: their ends, and whether there is a value.
HEADER_BYTES = 12

_VARINT_BYTES_MAX = 10
_TIMESTAMP_MAX_MS = 2**63 // 1000 - 1


class Buffers(NamedTuple):
    """What Arrow columns are made of; those of columns that are not wanted are empty."""

    offsets: Any  # int64
    timestamps: Any  # int64, in µs
    timestamp_types: Any  # int32
    key_ends: Any  # int32, one more than rows, the first is 0
    key_data: Any  # uint8
    key_there: Any  # uint8, 1 or 0
    value_ends: Any
    value_data: Any
    value_there: Any
    header_ends: Any  # int32 by row
    headers_there: Any  # uint8 by row
    header_key_ends: Any  # int32 by header
    header_key_data: Any
    header_value_ends: Any
    header_value_data: Any
    header_value_there: Any


# From here on places are addresses in memory: `at` is where to read on, `end` the first byte that
# may not be read, and every step looks at `end` before it reads.


@compiled
def _varint(at: int, end: int) -> Any:
    """(value, address after it), a zigzag varint or varlong; the address is 0 where it has no
    end.
    """
    if at < end:
        byte = byte_at(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    value = np.int64(0)
    shift = np.int64(0)
    for _ in range(_VARINT_BYTES_MAX):
        if at >= end:
            return np.int64(0), np.int64(0)
        byte = byte_at(at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at
        shift += 7
    return np.int64(0), np.int64(0)


@compiled
def _field(at: int, end: int) -> Any:
    """(length, address of the bytes, address after them, fault); a length of -1 is null."""
    length, start = _varint(at, end)
    if start == 0:
        return length, start, start, BAD_VARINT
    if length < -1 or length > end - start:
        return length, start, start, BAD_LENGTH
    return length, start, start + max(length, 0), SOUND


@compiled
def _headers_bytes(at: int, end: int, count: int) -> Any:
    """(bytes of keys and values, fault); they have to end where the record ends."""
    total = np.int64(0)
    if count > end - at:
        return total, BAD_HEADERS
    for _ in range(count):
        length, _, at, fault = _field(at, end)
        if fault != SOUND or length < 0:
            return total, BAD_HEADERS
        total += length
        length, _, at, fault = _field(at, end)
        if fault != SOUND:
            return total, BAD_HEADERS
        total += max(length, 0)
    return total, SOUND if at == end else BAD_HEADERS


@compiled
def _put_headers(at: int, end: int, count: int, to: Any, tally: Any) -> None:
    """Of one row, whose headers `_headers_bytes` has found sound."""
    keys, values = np.int64(to.header_key_data.ctypes.data), to.header_value_data.ctypes.data
    for _ in range(count):
        entry = tally[HEADERS]
        length, start, at, _ = _field(at, end)
        copy_bytes(keys + tally[HEADER_KEY_BYTES], start, length)
        tally[HEADER_KEY_BYTES] += length
        to.header_key_ends[entry + 1] = tally[HEADER_KEY_BYTES]
        length, start, at, _ = _field(at, end)
        to.header_value_there[entry] = length >= 0
        tally[NULL_HEADER_VALUES] += length < 0
        if length > 0:
            copy_bytes(np.int64(values) + tally[HEADER_VALUE_BYTES], start, length)
            tally[HEADER_VALUE_BYTES] += length
        to.header_value_ends[entry + 1] = tally[HEADER_VALUE_BYTES]
        tally[HEADERS] += 1
    row = tally[ROWS]
    to.headers_there[row] = count > 0
    tally[NULL_HEADERS] += count == 0
    to.header_ends[row + 1] = tally[HEADERS]


@compiled
def _parse(at: int, end: int) -> Any:
    """(fault, end of the record, timestamp and offset deltas, key and value as length and address,
    number of headers and their address).
    """
    none = np.int64(0)
    size, body = _varint(at, end)
    if body == 0:
        return BAD_VARINT, none, none, none, none, none, none, none, none, none
    stop = body + size
    if size < 0 or size > end - body:
        return TOO_LONG, none, none, none, none, none, none, none, none, none
    timestamp, at = _varint(body + 1, stop)  # one byte of attributes, which nobody uses
    if at == 0:
        return BAD_VARINT, none, none, none, none, none, none, none, none, none
    offset, at = _varint(at, stop)
    if at == 0:
        return BAD_VARINT, none, none, none, none, none, none, none, none, none
    key_length, key, at, fault = _field(at, stop)
    if fault != SOUND:
        return fault, none, none, none, none, none, none, none, none, none
    value_length, value, at, fault = _field(at, stop)
    if fault != SOUND:
        return fault, none, none, none, none, none, none, none, none, none
    headers, at = _varint(at, stop)
    if at == 0 or headers < 0:
        return BAD_HEADERS, none, none, none, none, none, none, none, none, none
    return SOUND, stop, timestamp, offset, key_length, key, value_length, value, headers, at


@compiled
def _row_bytes(limits: Any, key: int, value: int, headers: int, of_headers: int) -> Any:
    """Of a row: `key` and `value` are lengths, `headers` is how many, of `of_headers` bytes."""
    needed = limits[ROW_BYTES]
    if limits[WANTED] & WANT_KEY:
        needed += max(key, 0)
    if limits[WANTED] & WANT_VALUE:
        needed += max(value, 0)
    if limits[WANTED] & WANT_HEADERS:
        needed += of_headers + headers * HEADER_BYTES
    return needed


@compiled
def _put_field(
    length: int, origin: int, row: int, used: int, there: Any, ends: Any, data: Any
) -> Any:
    """How many bytes of `data` are used now."""
    there[row] = length >= 0
    if length > 0:
        copy_bytes(np.int64(data.ctypes.data) + used, origin, length)
        used += length
    ends[row + 1] = used
    return used


@compiled
def fill_rows(data: Any, batches: Any, cursor: Any, limits: Any, to: Any, tally: Any) -> None:
    """As many rows as fit into `to` (Buffers) and the limits, from `cursor` on, which is moved.
    Ends early at a fault; the cursor then stands in the batch that has it.
    """
    base = np.int64(data.ctypes.data)
    wanted, room = limits[WANTED], limits[ROOM_BYTES]
    offset_from, offset_end = limits[OFFSET_FROM], limits[OFFSET_END]
    timestamp_min, timestamp_max = limits[TIMESTAMP_MIN], limits[TIMESTAMP_MAX]
    row = np.int64(0)
    while cursor[AT_BATCH] < batches.shape[0]:
        number = cursor[AT_BATCH]
        at = base + max(cursor[AT_POSITION], batches[number, START])
        end = base + batches[number, END]
        first_offset, first_time = batches[number, BASE_OFFSET], batches[number, BASE_TIMESTAMP]
        is_append, append_time = batches[number, LOG_APPEND], batches[number, APPEND_TIMESTAMP]
        for record in range(cursor[AT_RECORD], batches[number, COUNT]):
            fault, after, delta, offset, key_length, key, value_length, value, headers, place = (
                _parse(at, end)
            )
            timestamp = append_time if is_append else first_time + delta
            of_headers = np.int64(0)
            if fault == SOUND and wanted & WANT_HEADERS:
                of_headers, fault = _headers_bytes(place, after, headers)
            if fault == SOUND and abs(timestamp) > _TIMESTAMP_MAX_MS:
                fault = BAD_TIMESTAMP
            if fault != SOUND:
                tally[FAULT] = fault
                return
            offset += first_offset
            if offset_from <= offset < offset_end and timestamp_min <= timestamp <= timestamp_max:
                needed = _row_bytes(limits, key_length, value_length, headers, of_headers)
                if row == to.offsets.shape[0] or needed > room:
                    cursor[AT_POSITION], cursor[AT_RECORD] = at - base, record
                    tally[NEEDED] = needed
                    return
                room -= needed
                to.offsets[row] = offset
                to.timestamps[row] = timestamp * 1000
                to.timestamp_types[row] = is_append
                if wanted & WANT_KEY:
                    tally[NULL_KEYS] += key_length < 0
                    used, there, ends = tally[KEY_BYTES], to.key_there, to.key_ends
                    used = _put_field(key_length, key, row, used, there, ends, to.key_data)
                    tally[KEY_BYTES] = used
                if wanted & WANT_VALUE:
                    tally[NULL_VALUES] += value_length < 0
                    used, there, ends = tally[VALUE_BYTES], to.value_there, to.value_ends
                    used = _put_field(value_length, value, row, used, there, ends, to.value_data)
                    tally[VALUE_BYTES] = used
                if wanted & WANT_HEADERS:
                    _put_headers(place, after, headers, to, tally)
                row += 1
                tally[ROWS] = row
            at = after
        if at != end:
            tally[FAULT] = BYTES_LEFT
            return
        cursor[AT_BATCH], cursor[AT_POSITION], cursor[AT_RECORD] = number + 1, 0, 0


@compiled
def first_fault(data: Any, batch: Any) -> Any:
    """What `fill_rows` would find wrong in a batch's records, headers included; SOUND: nothing. For
    whoever goes on without a damaged batch and must not have given out rows of it.
    """
    base = np.int64(data.ctypes.data)
    at, end = base + batch[START], base + batch[END]
    for _ in range(batch[COUNT]):
        fault, after, delta, _, _, _, _, _, headers, place = _parse(at, end)
        if fault == SOUND:
            _, fault = _headers_bytes(place, after, headers)
        timestamp = batch[APPEND_TIMESTAMP] if batch[LOG_APPEND] else batch[BASE_TIMESTAMP] + delta
        if fault == SOUND and abs(timestamp) > _TIMESTAMP_MAX_MS:
            fault = BAD_TIMESTAMP
        if fault != SOUND:
            return fault
        at = after
    return SOUND if at == end else BYTES_LEFT
