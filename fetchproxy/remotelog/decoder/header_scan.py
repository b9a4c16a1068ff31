"""Reads the headers of many record batches at once into columns. Compiled; reads no record.

The layout is Kafka's DefaultRecordBatch. `record_batch` is the reference: a test compares both.
A row of the table is one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numba
import numpy as np
from fetchproxy_protocol.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
)

F = TypeVar("F", bound=Callable[..., Any])

# START and END: the bytes of a batch's records, in the data or in the buffer they were unpacked to.
POSITION, SIZE, START, END, BASE_OFFSET, LAST_OFFSET, CRC, ATTRIBUTES = range(8)
BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, COUNT = range(8, 12)
_COLUMNS = 12

# Results of a scan.
WHOLE, CUT, WRONG_MAGIC, WRONG_LENGTH, WRONG_DELTA, WRONG_COUNT = range(6)
HEADER_FAULTS = {
    CUT: "is cut off",
    WRONG_MAGIC: f"has a magic other than {MAGIC}",
    WRONG_LENGTH: "has an impossible length",
    WRONG_DELTA: "has a negative last offset delta",
    WRONG_COUNT: "has a negative number of records",
}


def compiled(function: F) -> F:
    """Numba compiles the function at its first call with arguments of a type, once a machine.

    It keeps the machine code beside the source, in `$NUMBA_CACHE_DIR`, or in the user's cache
    folder if the source's folder is not writable. The function runs without the GIL.
    """
    return cast(F, numba.njit(cache=True, nogil=True)(function))


@dataclass(frozen=True, slots=True)
class ScannedHeaders:
    """`table`: int64, one row a batch. `fault`: what is wrong with the bytes at `end`; WHOLE:
    nothing.
    """

    data: Any
    table: Any  # numpy.ndarray
    end: int
    fault: int

    def has(self, attribute: int) -> Any:
        """A boolean for each batch. `attribute`: the attribute's mask."""
        return (self.table[:, ATTRIBUTES] & attribute) != 0


def scan_headers(data: Any, start: int, end: int) -> ScannedHeaders:
    """Scans `data[start:end]` (a read-only uint8 array) up to its end or the first fault."""
    rows_max = max(16, (end - start) // 1024)
    while True:
        table = np.empty((rows_max, _COLUMNS), np.int64)
        rows, stopped, fault = _scan(data, start, end, table)
        if rows < rows_max:
            return ScannedHeaders(data, table[:rows], int(stopped), int(fault))
        rows_max *= 4


@compiled
def _number(data: Any, position: int, size: int) -> Any:
    """A big-endian number: signed if it has eight bytes, otherwise unsigned."""
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | np.int64(data[position + i])
    return value


@compiled
def _int32(data: Any, position: int) -> Any:
    value = _number(data, position, 4)
    return value - (value >> 31 << 32)


@compiled
def _scan(data: Any, start: int, end: int, table: Any) -> Any:
    """(rows filled, position after them, fault). If all rows are filled, there may be more."""
    position = start
    row = 0
    while position < end and row < table.shape[0]:
        if end - position < HEADER_BYTES:
            return row, position, CUT
        length = _int32(data, position + 8)
        if data[position + MAGIC_POSITION] != MAGIC:
            return row, position, WRONG_MAGIC
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            return row, position, WRONG_LENGTH
        size = length + LOG_OVERHEAD_BYTES
        if position + size > end:
            return row, position, CUT
        delta = _int32(data, position + 23)
        if delta < 0:
            return row, position, WRONG_DELTA
        count = _int32(data, position + 57)
        if count < 0:
            return row, position, WRONG_COUNT
        base = _number(data, position, 8)
        table[row, POSITION] = position
        table[row, SIZE] = size
        table[row, START] = position + HEADER_BYTES
        table[row, END] = position + size
        table[row, BASE_OFFSET] = base
        table[row, LAST_OFFSET] = base + delta
        table[row, CRC] = _number(data, position + 17, 4)
        table[row, ATTRIBUTES] = _number(data, position + 21, 2)
        table[row, BASE_TIMESTAMP] = _number(data, position + 27, 8)
        table[row, MAX_TIMESTAMP] = _number(data, position + 35, 8)
        table[row, PRODUCER_ID] = _number(data, position + 43, 8)
        table[row, COUNT] = count
        row += 1
        position += size
    return row, position, WHOLE
