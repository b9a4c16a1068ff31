"""The memory of one Arrow record batch: filled by `record_rows`, handed to Arrow without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fetchproxy.remotelog.decoder import record_rows as rows


class RowBuffers:
    """Room for `rows_max` rows and `room_bytes` bytes of keys, values and headers each.

    Memory comes from Arrow's pool, which keeps it: a batch's pages are used again by the next one.
    What a column did not need goes back at once, as who gathers batches would hold it otherwise.
    `arrays` are for filling: they are not to be looked at once a column was made.
    """

    def __init__(self, rows_max: int, room_bytes: int, wanted: int) -> None:
        key, value = bool(wanted & rows.WANT_KEY), bool(wanted & rows.WANT_VALUE)
        headers = bool(wanted & rows.WANT_HEADERS)
        header_rows = room_bytes // rows.HEADER_BYTES * headers
        sizes = {  # (items, their type)
            "offsets": (rows_max, np.int64),
            "timestamps": (rows_max, np.int64),
            "timestamp_types": (rows_max, np.int32),
            "key_ends": ((rows_max + 1) * key, np.int32),
            "key_data": (room_bytes * key, np.uint8),
            "key_there": (rows_max * key, np.uint8),
            "value_ends": ((rows_max + 1) * value, np.int32),
            "value_data": (room_bytes * value, np.uint8),
            "value_there": (rows_max * value, np.uint8),
            "header_ends": ((rows_max + 1) * headers, np.int32),
            "headers_there": (rows_max * headers, np.uint8),
            "header_key_ends": ((header_rows + 1) * headers, np.int32),
            "header_key_data": (room_bytes * headers, np.uint8),
            "header_value_ends": ((header_rows + 1) * headers, np.int32),
            "header_value_data": (room_bytes * headers, np.uint8),
            "header_value_there": (header_rows * headers, np.uint8),
        }
        self._buffers = {
            name: pa.allocate_buffer(count * np.dtype(kind).itemsize, resizable=True)
            for name, (count, kind) in sizes.items()
        }
        arrays = {
            name: np.frombuffer(self._buffers[name], kind) for name, (_, kind) in sizes.items()
        }
        for name in (
            "key_ends",
            "value_ends",
            "header_ends",
            "header_key_ends",
            "header_value_ends",
        ):
            arrays[name][:1] = 0
        self.arrays = rows.Buffers(**arrays)

    @property
    def numbers(self) -> dict[str, Any]:
        """By column."""
        names = {"offset": "offsets", "timestamp": "timestamps", "timestampType": "timestamp_types"}
        return {column: self._buffers[name] for column, name in names.items()}

    def keys(self, count: int, tally: Any) -> Any:
        there = self._validity(self.arrays.key_there, count, tally[rows.NULL_KEYS])
        return self._variable(pa.binary(), "key", count, there, tally[rows.KEY_BYTES])

    def values(self, count: int, tally: Any) -> Any:
        there = self._validity(self.arrays.value_there, count, tally[rows.NULL_VALUES])
        return self._variable(pa.binary(), "value", count, there, tally[rows.VALUE_BYTES])

    def headers(self, kind: Any, count: int, tally: Any) -> Any:
        """`kind` is a list of structs of key and value."""
        entries = int(tally[rows.HEADERS])
        there = self._validity(
            self.arrays.header_value_there, entries, tally[rows.NULL_HEADER_VALUES]
        )
        keys = self._variable(
            pa.string(), "header_key", entries, None, tally[rows.HEADER_KEY_BYTES]
        )
        values = self._variable(
            pa.binary(), "header_value", entries, there, tally[rows.HEADER_VALUE_BYTES]
        )
        structs = pa.StructArray.from_arrays([keys, values], fields=list(kind.value_type))
        validity = self._validity(self.arrays.headers_there, count, tally[rows.NULL_HEADERS])
        ends = self._cut("header_ends", count + 1)
        return pa.Array.from_buffers(kind, count, [validity, ends], children=[structs])

    def _variable(self, kind: Any, name: str, count: int, validity: Any, size: int) -> Any:
        data = self._cut(f"{name}_data", int(size))
        ends = self._cut(f"{name}_ends", count + 1)
        return pa.Array.from_buffers(kind, count, [validity, ends, data])

    def _cut(self, name: str, items: int) -> Any:
        buffer = self._buffers[name]
        buffer.resize(items * getattr(self.arrays, name).itemsize, shrink_to_fit=True)
        return buffer

    @staticmethod
    def _validity(there: Any, count: int, nulls: int) -> Any:
        """None: every one is there."""
        if not nulls:
            return None
        return pa.py_buffer(np.packbits(there[:count], bitorder="little"))
