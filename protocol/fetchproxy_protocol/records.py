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
    position = 0
    for _ in range(header.records_count):
        size, body = varlong(records, position)
        end = body + size
        if size < 0 or end > len(records):
            raise Truncated(f"record at byte {position} of its batch goes on behind its end")
        timestamp_delta, position = varlong(records, body + 1)  # after the attributes
        offset_delta, position = varlong(records, position)
        offset = header.base_offset + offset_delta
        if offset < from_offset:
            yield None
        else:
            timestamp = wrapped_int64(header.base_timestamp + timestamp_delta)
            if header.is_log_append_time:
                timestamp = header.max_timestamp
            yield _record(records, position, end, offset, timestamp)
        position = end


def _record(records: Buffer, position: int, end: int, offset: int, timestamp: int) -> Record:
    key, position = _field(records, position, end)
    value, position = _field(records, position, end)
    count, position = varlong(records, position)
    if count < 0:
        raise MalformedMessage(f"the record at offset {offset} has {count} headers")
    headers = []
    for _ in range(count):
        name, position = _field(records, position, end)
        content, position = _field(records, position, end)
        if name is None:
            raise MalformedMessage(f"the record at offset {offset} has a header without a name")
        headers.append((name, content))
    if position != end:
        raise MalformedMessage(
            f"the record at offset {offset} ends at byte {position}, not at {end}"
        )
    return Record(offset, timestamp, key, value, tuple(headers))


def _field(records: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    """(content, position after it) of bytes with a varint length; None: a length of -1."""
    size, position = varlong(records, position)
    if size == -1:
        return None, position
    if size < 0 or position + size > end:
        raise Truncated(f"a field of {size} bytes at byte {position} goes on behind its record")
    return bytes(records[position : position + size]), position + size
