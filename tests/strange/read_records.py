"""Reads records as bytes, header keys as well: what clients' readers turn into text. Not a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fetchproxy_protocol.record_batch import HEADER_BYTES, decompress, walk
from legal_logs import Aborted, Header, LegalLog, wrapped


class PlainRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def records_of(log: LegalLog, end: int, aborted: Iterable[Aborted]) -> list[PlainRecord]:
    """What a consumer gets of the log from its start to `end`, without control records."""
    ended = list(aborted)
    return [
        PlainRecord(offset, batch.timestamp_of(record), *record_parts)
        for batch in log.batches
        if not batch.is_control
        for record in batch.records
        for offset in [batch.base_offset + record.offset_delta]
        for record_parts in [(record.key, record.value, record.headers)]
        if log.log_start <= offset < end
        and not any(
            txn.producer_id == batch.producer_id
            and batch.flags & 0x10
            and txn.first_offset <= batch.base_offset <= txn.marker
            for txn in ended
        )
    ]


def read_records(content: bytes) -> Iterator[PlainRecord]:
    """Of whole batches, without control records."""
    for header in walk(content):
        if header.is_control:
            continue
        stored = memoryview(content)[header.position + HEADER_BYTES : header.end]
        cursor = _Cursor(bytes(decompress(header.compression, stored, 2**30)))
        for _ in range(header.records_count):
            cursor.varint()
            cursor.at += 1
            timestamp = wrapped(header.base_timestamp + cursor.varint())
            if header.is_log_append_time:
                timestamp = header.max_timestamp
            offset = header.base_offset + cursor.varint()
            key, value = cursor.sized(), cursor.sized()
            count = cursor.varint()
            headers = tuple((cursor.sized() or b"", cursor.sized()) for _ in range(count))
            yield PlainRecord(offset, timestamp, key, value, headers)


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def sized(self) -> bytes | None:
        size = self.varint()
        if size < 0:
            return None
        self.at += size
        return self._data[self.at - size : self.at]
