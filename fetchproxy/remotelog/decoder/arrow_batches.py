"""Makes a partition's record batches into Arrow batches with the columns of Spark's Kafka source.

    key binary, value binary, topic string, partition int, offset long, timestamp timestamp (UTC,
    µs), timestampType int (0 CreateTime, 1 LogAppendTime), headers list<struct<key, value>>

Source: Spark's KafkaRecordToRowConverter. As there, a record without headers has null headers, and
a header's key is text as Java decodes it. A timestamp that has no microseconds is null.
Control batches never give rows. Batches of aborted transactions give none if those are known.
`log_decoder` checks the CRC-32C of each batch in the offset range, also if it gives no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from fetchproxy_protocol.record_batch import TIMESTAMP_TYPE_MASK

from fetchproxy.remotelog.decoder import record_rows as rows
from fetchproxy.remotelog.decoder.header_scan import ATTRIBUTES, BASE_OFFSET, COUNT, LAST_OFFSET
from fetchproxy.remotelog.decoder.record_rows import RowLimits

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
# Types of exact rows, for copies: header keys of any bytes, any timestamp.
_EXACT_HEADER = pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.binary())])
_EXACT_TYPES = {
    **_TYPES,
    "timestamp": pa.int64(),
    "headers": pa.list_(pa.field("element", _EXACT_HEADER)),
}

# Spark's own limit (spark.sql.execution.arrow.maxRecordsPerBatch) is 10,000 rows. The pipe to the
# JVM is no faster with 10,000 to 50,000 rows, and slower with larger batches.
ROWS_MAX = 20_000
BATCH_BYTES_MAX = 4 * 1024 * 1024

# Bytes of a row besides its key, value and headers: offset, timestamp, timestamp type, partition,
# the ends of key, value, topic and headers, and their validity.
_FIXED_ROW_BYTES = 44

# Columns that need no look at the records: the batch header suffices.
_IN_HEADERS = {"topic", "partition", "offset", "timestampType"}
# Rows made from headers at once, at some 40 bytes each. A header may claim any number of records;
# above this limit the decoder reads the records one by one.
HEADER_ROWS_MAX = 2_000_000


def arrow_schema(columns: Sequence[str] = COLUMNS, *, exact: bool = False) -> Any:
    """A pyarrow schema; each column is one of `COLUMNS`."""
    kinds = _EXACT_TYPES if exact else _TYPES
    return pa.schema([pa.field(name, kinds[name]) for name in columns])


class ArrowBatches:
    """Makes rows of one partition in the requested columns. Each result owns its buffers."""

    def __init__(
        self,
        columns: Sequence[str],
        topic: str,
        partition: int,
        *,
        exact: bool = False,
        rows_max: int = ROWS_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        """`exact`: header keys as bytes, timestamps as int64 in ms."""
        self._exact = exact
        self._schema = arrow_schema(columns, exact=exact)
        self._columns = tuple(columns)
        self._rows_max = rows_max
        self._batch_bytes_max = batch_bytes_max
        self._row_bytes = _FIXED_ROW_BYTES + ("topic" in columns) * len(topic.encode())
        self._same_in_all = {
            name: pa.repeat(pa.scalar(value, _TYPES[name]), rows_max)
            for name, value in (("topic", topic), ("partition", partition))
            if name in columns
        }

    def of(self, data: Any, batches: Any, limits: RowLimits) -> Iterator[Any]:
        """Yields pyarrow.RecordBatches of the records of `batches` in `data`.

        `batches`: rows of a ScannedHeaders' table. Raises BrokenRecords with the index of the
        batch in `batches`.
        """
        cursor = np.zeros(3, np.int64)
        sizes = usual_sizes = BufferSizes.of_any(self._rows_max, self._batch_bytes_max)
        while cursor[rows.AT_BATCH] < len(batches):
            # In a list, so that this generator keeps none while its rows are used.
            buffers = [RowBuffers(sizes, self._schema)]
            count, needed, fault = rows.fill_rows(
                data,
                batches,
                cursor,
                limits,
                self._row_bytes,
                sizes.all_bytes,
                self._exact,
                buffers[0].arrays,
            )
            if fault:
                raise BrokenRecords(int(cursor[rows.AT_BATCH]), rows.RECORD_FAULTS[fault])
            if count:
                yield self._filled(buffers.pop(), count)
                sizes = usual_sizes
            elif needed:  # one record that is larger than a batch
                buffers.clear()
                sizes = BufferSizes(
                    1, needed, *rows.sizes_of_next(data, batches, cursor, self._exact)
                )

    def first_fault(self, data: Any, batch: Any, limits: RowLimits) -> str | None:
        """The fault that `of` would find in a batch's records.

        A caller that skips damaged batches asks first, so that it gives out no rows of them.
        """
        headers = "headers" in self._columns
        fault = rows.fault_in(data, batch, limits.offset_from, limits.offset_end, headers)
        return rows.RECORD_FAULTS.get(fault)

    def headers_suffice(self, batches: Any, limits: RowLimits) -> bool:
        """True: the headers give every requested column, so the records stay compressed.

        Offsets rise within a batch, so it lacks none if it has as many records as offsets.
        """
        counts = batches[:, COUNT]
        spans = batches[:, LAST_OFFSET] - batches[:, BASE_OFFSET] + 1
        columns = set(self._columns) <= _IN_HEADERS and limits.any_timestamp
        return columns and int(counts.sum()) <= HEADER_ROWS_MAX and bool((spans == counts).all())

    def of_headers(self, batches: Any, limits: RowLimits) -> Iterator[Any]:
        """As `of`, if the headers suffice."""
        counts = batches[:, COUNT]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        before = np.repeat(batches[:, BASE_OFFSET] - (ends - counts), counts)
        offsets = np.arange(total, dtype=np.int64) + before
        log_append = (batches[:, ATTRIBUTES] & TIMESTAMP_TYPE_MASK) != 0
        types = np.repeat(log_append.astype(np.int32), counts)
        inside = slice(*np.searchsorted(offsets, (limits.offset_from, limits.offset_end)).tolist())
        offsets, types = offsets[inside], types[inside]
        for first_row in range(0, len(offsets), self._rows_max):
            columns = {
                "offset": pa.array(offsets[first_row : first_row + self._rows_max]),
                "timestampType": pa.array(types[first_row : first_row + self._rows_max]),
            }
            yield self._make_array(len(columns["offset"]), columns)

    def _filled(self, buffers: RowBuffers, count: int) -> Any:
        built_columns = [name for name in self._columns if name not in self._same_in_all]
        return self._make_array(
            count, {name: buffers.column(name, count) for name in built_columns}
        )

    def _make_array(self, count: int, columns: Mapping[str, Any]) -> Any:
        """`columns`: the columns that differ from row to row."""
        if not self._columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        arrays = [
            columns[name] if name in columns else self._same_in_all[name].slice(0, count)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Memory:
    """A buffer from Arrow's pool, which keeps freed pages: the next batch uses them again.

    `array`: a view to fill the buffer; do not use it after a column was made.
    """

    def __init__(self, items: int, kind: Any) -> None:
        self._buffer = pa.allocate_buffer(items * np.dtype(kind).itemsize, resizable=True)
        self.array = np.frombuffer(self._buffer, kind)

    def cut(self, items: int) -> Any:
        """Frees the rest at once: a caller that accumulates batches would hold it otherwise."""
        self._buffer.resize(items * self.array.itemsize, shrink_to_fit=True)
        return self._buffer


class _ValuesMemory:
    """Buffers for `count` values (0: the column is not wanted), of `bytes_max` bytes in all."""

    def __init__(self, count: int, bytes_max: int) -> None:
        self._ends = _Memory(count and count + 1, np.int32)
        self._data = _Memory(bytes_max * (count > 0), np.uint8)
        self._ends.array[:1] = 0
        present = _Memory(count, np.uint8).array
        self.arrays = rows.Values(self._ends.array, self._data.array, present)

    def column(self, kind: Any, count: int) -> Any:
        size = int(self.arrays.ends[count])
        validity = _validity(self.arrays.present, count)
        buffers = [validity, self._ends.cut(count + 1), self._data.cut(size)]
        return pa.Array.from_buffers(kind, count, buffers)


class BufferSizes(NamedTuple):
    """The most that buffers hold. `all_bytes`: keys, values, headers and all else."""

    rows_max: int
    all_bytes: int
    headers_max: int
    key_bytes: int
    value_bytes: int
    header_key_bytes: int
    header_value_bytes: int

    @classmethod
    def of_any(cls, rows_max: int, all_bytes: int) -> BufferSizes:
        """For rows in which one column may have all bytes."""
        return cls(rows_max, all_bytes, all_bytes // rows.HEADER_OVERHEAD_BYTES, *[all_bytes] * 4)


class RowBuffers:
    """Memory for rows. `fill_rows` writes into `arrays`."""

    def __init__(self, sizes: BufferSizes, schema: Any) -> None:
        self._schema = schema
        rows_max = sizes.rows_max

        def rows_of(name: str) -> int:
            return rows_max * (name in schema.names)

        self._numbers = {
            "offset": _Memory(rows_max, np.int64),
            "timestamp": _Memory(rows_max, np.int64),
            "timestampType": _Memory(rows_max, np.int32),
        }
        self._values = {
            "key": _ValuesMemory(rows_of("key"), sizes.key_bytes),
            "value": _ValuesMemory(rows_of("value"), sizes.value_bytes),
        }
        with_headers = rows_of("headers")
        self._header_ends = _Memory(with_headers and with_headers + 1, np.int32)
        self._header_ends.array[:1] = 0
        entries = max(sizes.headers_max, 1) * (with_headers > 0)
        header_sizes = sizes.header_key_bytes, sizes.header_value_bytes
        self._entries = [_ValuesMemory(entries, size) for size in header_sizes]
        self.arrays = rows.Buffers(
            offsets=self._numbers["offset"].array,
            timestamps=self._numbers["timestamp"].array,
            timestamp_types=self._numbers["timestampType"].array,
            key=self._values["key"].arrays,
            value=self._values["value"].arrays,
            header_ends=self._header_ends.array,
            headers_present=_Memory(with_headers, np.uint8).array,
            header_key=self._entries[0].arrays,
            header_value=self._entries[1].arrays,
        )

    def column(self, name: str, count: int) -> Any:
        kind = self._schema.field(name).type
        if name in self._values:
            return self._values[name].column(kind, count)
        if name != "headers":
            validity = None
            if pa.types.is_timestamp(kind):
                validity = _validity(self.arrays.timestamps != rows.NO_MICROSECONDS, count)
            return pa.Array.from_buffers(kind, count, [validity, self._numbers[name].cut(count)])
        entries = int(self._header_ends.array[count])
        pairs = zip(kind.value_type, self._entries, strict=True)
        columns = [memory.column(field.type, entries) for field, memory in pairs]
        structs = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
        validity = _validity(self.arrays.headers_present, count)
        buffers = [validity, self._header_ends.cut(count + 1)]
        return pa.Array.from_buffers(kind, count, buffers, children=[structs])


def _validity(is_present: Any, count: int) -> Any:
    """None: no value is null."""
    if is_present[:count].all():
        return None
    return pa.py_buffer(np.packbits(is_present[:count], bitorder="little"))


class BrokenRecords(Exception):
    """Records are unreadable, although their batch's checksum is right or was not checked.

    `index`: the batch's index among the given batches.
    """

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index
        self.what = message
