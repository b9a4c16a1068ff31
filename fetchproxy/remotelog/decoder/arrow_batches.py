"""Record batches of one partition to Arrow record batches with the columns of Spark's Kafka source.

    key binary, value binary, topic string, partition int, offset long, timestamp timestamp (UTC,
    µs), timestampType int (0 CreateTime, 1 LogAppendTime), headers list<struct<key, value>>

Source: Spark's KafkaRecordToRowConverter; a record without headers has null there, as it has there.
Control batches are never rows; batches of aborted transactions are not, where they are given.
Each batch's CRC-32C is checked, also of those that give no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fetchproxy.remotelog.decoder import record_rows as rows
from fetchproxy.remotelog.decoder.row_buffers import RowBuffers

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TYPES: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
COLUMNS = tuple(_TYPES)

# Spark's own measure (spark.sql.execution.arrow.maxRecordsPerBatch) is 10,000; more rows make the
# pipe to the JVM no faster from 10,000 to 50,000 on, and larger batches make it slower.
ROWS_MAX = 20_000
BATCH_BYTES_MAX = 4 * 1024 * 1024

# Of a row besides its key, value and headers: offset, timestamp, its type, partition, the ends of
# key, value, topic and headers, and their validity.
_FIXED_ROW_BYTES = 44

# What a batch's header tells of all of its records.
_IN_HEADERS = {"topic", "partition", "offset", "timestampType"}
# Rows that are made of headers at once, at some 40 bytes each. A header may claim any number; who
# claims more is looked at, record by record.
HEADER_ROWS_MAX = 2_000_000

OFFSET_MAX = 2**63 - 1
_ANY_TIMESTAMP = (-(2**63), 2**63 - 1)


def arrow_schema(columns: Sequence[str] = COLUMNS) -> Any:
    """pyarrow's; raises ValueError for a column that is none of `COLUMNS`."""
    unknown = [name for name in columns if name not in _TYPES]
    if unknown:
        raise ValueError(f"no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Which records are rows. Offsets: `offset_from` up to but not `offset_end`; timestamps in ms,
    both inclusive.
    """

    offset_from: int = 0
    offset_end: int = OFFSET_MAX
    timestamp_min: int = _ANY_TIMESTAMP[0]
    timestamp_max: int = _ANY_TIMESTAMP[1]

    @property
    def any_timestamp(self) -> bool:
        return (self.timestamp_min, self.timestamp_max) == _ANY_TIMESTAMP


class ArrowBatches:
    """Rows of one partition, in the columns that are asked for. Buffers belong to each result."""

    def __init__(
        self,
        columns: Sequence[str],
        topic: str,
        partition: int,
        *,
        rows_max: int = ROWS_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self._schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._topic = topic.encode()
        self._partition = partition
        self._rows_max = rows_max
        self._batch_bytes_max = batch_bytes_max
        named = (("key", rows.WANT_KEY), ("value", rows.WANT_VALUE), ("headers", rows.WANT_HEADERS))
        self._wanted = sum(bit for name, bit in named if name in columns)
        self._constant: dict[str, Any] = {}

    def of(self, data: Any, batches: Any, limits: RowLimits) -> Iterator[Any]:
        """pyarrow.RecordBatches of the records of `batches` (rows of `record_rows`) in `data`.
        Raises BrokenRecords, naming the batch by its place in `batches`.
        """
        cursor = np.zeros(3, np.int64)
        room_bytes = self._batch_bytes_max
        while cursor[rows.AT_BATCH] < len(batches):
            buffers = RowBuffers(self._rows_max, room_bytes, self._wanted)
            tally = np.zeros(rows.TALLY_FIELDS, np.int64)
            rows.fill_rows(
                data, batches, cursor, self._numbers(limits, room_bytes), buffers.arrays, tally
            )
            if tally[rows.FAULT]:
                raise BrokenRecords(int(cursor[rows.AT_BATCH]), rows.FAULTS[tally[rows.FAULT]])
            if tally[rows.ROWS]:
                count = int(tally[rows.ROWS])
                arrays = [self._array(name, count, buffers, tally) for name in self._columns]
                yield self._made(arrays, count)
                room_bytes = self._batch_bytes_max
            elif tally[rows.NEEDED]:
                room_bytes = int(tally[rows.NEEDED])  # one record that is larger than a batch

    def may_be_of_headers(self, counts: Any, limits: RowLimits) -> bool:
        """Whether the headers of batches say all that is asked for, if these lack no offset;
        `counts`: the records that each claims.
        """
        asked = set(self._columns) <= _IN_HEADERS and limits.any_timestamp
        return asked and int(counts.sum()) <= HEADER_ROWS_MAX

    def of_headers(
        self, first: Any, counts: Any, log_append: Any, limits: RowLimits
    ) -> Iterator[Any]:
        """As `of`, of batches (an item of each array) that lack none of their offsets."""
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        offsets = np.arange(total, dtype=np.int64) + np.repeat(first - (ends - counts), counts)
        types = np.repeat(log_append.astype(np.int32), counts)
        inside = slice(*np.searchsorted(offsets, (limits.offset_from, limits.offset_end)).tolist())
        offsets, types = offsets[inside], types[inside]
        for at in range(0, len(offsets), self._rows_max):
            numbers = {
                "offset": pa.py_buffer(offsets[at : at + self._rows_max]),
                "timestampType": pa.py_buffer(types[at : at + self._rows_max]),
            }
            count = min(len(offsets) - at, self._rows_max)
            yield self._made([self._simple(name, count, numbers) for name in self._columns], count)

    def _numbers(self, limits: RowLimits, room_bytes: int) -> Any:
        row_bytes = _FIXED_ROW_BYTES + ("topic" in self._columns) * len(self._topic)
        return np.array(
            [
                limits.offset_from,
                limits.offset_end,
                limits.timestamp_min,
                limits.timestamp_max,
                room_bytes,
                row_bytes,
                self._wanted,
            ],
            np.int64,
        )

    def _made(self, arrays: list[Any], count: int) -> Any:
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, count: int, buffers: RowBuffers, tally: Any) -> Any:
        if name == "key":
            return buffers.keys(count, tally)
        if name == "value":
            return buffers.values(count, tally)
        if name == "headers":
            return buffers.headers(_TYPES[name], count, tally)
        return self._simple(name, count, buffers.numbers)

    def _simple(self, name: str, count: int, numbers: dict[str, Any]) -> Any:
        """A column whose rows all have the same size, and the topic's; `numbers`: their buffers."""
        if name in ("topic", "partition"):
            return self._repeated(name).slice(0, count)
        return pa.Array.from_buffers(_TYPES[name], count, [None, numbers[name]])

    def _repeated(self, name: str) -> Any:
        """A column that says the same in every row is made once."""
        made = self._constant.get(name)
        if made is None:
            if name == "partition":
                filled = np.full(self._rows_max, self._partition, np.int32)
                made = pa.Array.from_buffers(
                    pa.int32(), self._rows_max, [None, pa.py_buffer(filled)]
                )
            else:
                size = len(self._topic)
                ends = np.arange(self._rows_max + 1, dtype=np.int32) * np.int32(size)
                text = pa.py_buffer(self._topic * self._rows_max)
                made = pa.Array.from_buffers(
                    pa.string(), self._rows_max, [None, pa.py_buffer(ends), text]
                )
            self._constant[name] = made
        return made


class BrokenRecords(Exception):
    """Records that cannot be read, although their batch's checksum is right or was not looked at.
    `index` is the batch's place among those that were given.
    """

    def __init__(self, index: int, what: str) -> None:
        super().__init__(what)
        self.index = index
        self.what = what
