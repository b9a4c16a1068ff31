"""The records of one batch, as values, for a reader who looks at a few of them.

Bulk readers do not use this: Python takes some 3 µs for each record. Layout: Kafka's DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fetchproxy_protocol.apis import MalformedMessage, Truncated
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import BatchHeader, varlong, wrapped_int64


class Record(NamedTuple):
    """`timestamp`: ms since the epoch, that of the log if the batch says so. None: Kafka's null."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def records_in(
    records: Buffer, header: BatchHeader, from_offset: int = 0
) -> Iterator[Record | None]:
    """Each record of a batch in order; None in place of one below `from_offset`.

    `records`: uncompressed, without the batch's header. Raises `MalformedMessage`, `Truncated` at
    the first record that does not fit its own length.
    """
    at = 0
    for _ in range(header.records_count):
        size, body = varlong(records, at)
        end = body + size
        if size < 0 or end > len(records):
            raise Truncated(f"record at byte {at} of its batch goes on behind its end")
        timestamp_delta, at = varlong(records, body + 1)  # after the attributes
        offset_delta, at = varlong(records, at)
        offset = header.base_offset + offset_delta
        if offset < from_offset:
            yield None
        else:
            timestamp = wrapped_int64(header.base_timestamp + timestamp_delta)
            if header.is_log_append_time:
                timestamp = header.max_timestamp
            yield _record(records, at, end, offset, timestamp)
        at = end


def _record(records: Buffer, at: int, end: int, offset: int, timestamp: int) -> Record:
    key, at = _field(records, at, end)
    value, at = _field(records, at, end)
    count, at = varlong(records, at)
    if count < 0:
        raise MalformedMessage(f"the record at offset {offset} has {count} headers")
    headers = []
    for _ in range(count):
        name, at = _field(records, at, end)
        content, at = _field(records, at, end)
        if name is None:
            raise MalformedMessage(f"the record at offset {offset} has a header without a name")
        headers.append((name, content))
    if at != end:
        raise MalformedMessage(f"the record at offset {offset} ends at byte {at}, not at {end}")
    return Record(offset, timestamp, key, value, tuple(headers))


def _field(records: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    """(content, position after it) of bytes with a varint length; None: a length of -1."""
    size, at = varlong(records, at)
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise Truncated(f"a field of {size} bytes at byte {at} goes on behind its record")
    return bytes(records[at : at + size]), at + size
