"""Decodes a partition's stored log to Arrow: headers, checksums, aborted batches, decompression."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.apis import MalformedMessage
from fetchproxy_protocol.record_batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    CRC_COVERS_FROM,
    TRANSACTIONAL_MASK,
    TooLargeToUnpack,
    unpack_into,
)

from fetchproxy.model import OFFSET_MAX, AbortedTxn
from fetchproxy.remotelog.decoder.arrow_batches import ArrowBatches, BrokenRecords
from fetchproxy.remotelog.decoder.header_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    COUNT,
    CRC,
    END,
    HEADER_FAULTS,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_ID,
    SIZE,
    START,
    WHOLE,
    ScannedHeaders,
    scan_headers,
)
from fetchproxy.remotelog.decoder.record_rows import RowLimits
from fetchproxy.remotelog.options import TASK_UNPACKED_BYTES_MAX

# Holds many batches, so that compiled code is called seldom. A larger batch makes it grow.
ARENA_BYTES = 8 * 1024 * 1024
_ROOM_BYTES = 4 * 1024 * 1024  # enough for a batch of usual size
# Arguments: byte position in the log, offset, text of the fault. If it raises, decoding ends.
OnFault = Callable[[int, int, str], None]
# Arguments: byte position in the log, the batch's first and last offset.
OnTooLarge = Callable[[int, int, int], None]


class AbortedBatches:
    """Finds aborted batches by the rule of Kafka's consumer (CompletedFetch).

    It needs no walk from the log's beginning. A batch is aborted if it is transactional and lies
    between the first offset and the marker of an aborted transaction of its producer. A producer
    has one transaction at a time.
    """

    def __init__(self, entries: Iterable[AbortedTxn]) -> None:
        """`entries` may have any order. If a transaction has several, the last end counts."""
        by_producer: dict[int, dict[int, int]] = {}
        for entry in entries:
            ends = by_producer.setdefault(entry.producer_id, {})
            ends[entry.first_offset] = max(entry.last_offset, ends.get(entry.first_offset, 0))
        self._ranges = {
            producer: (
                np.array(sorted(ends), np.int64),
                np.array([ends[first] for first in sorted(ends)], np.int64),
            )
            for producer, ends in by_producer.items()
        }

    def among(self, headers: ScannedHeaders) -> Any:
        """A boolean for each batch."""
        producers = headers.table[:, PRODUCER_ID]
        bases = headers.table[:, BASE_OFFSET]
        aborted_mask = np.zeros(len(bases), np.bool_)
        if not self._ranges:
            return aborted_mask
        for producer in np.unique(producers).tolist():
            if producer in self._ranges:
                firsts, lasts = self._ranges[producer]
                batches_of_producer = np.flatnonzero(producers == producer)
                place = np.searchsorted(firsts, bases[batches_of_producer], side="right") - 1
                aborted_mask[batches_of_producer] = (place >= 0) & (
                    bases[batches_of_producer] <= lasts[place]
                )
        return aborted_mask & headers.has(TRANSACTIONAL_MASK)


class Arena:
    """Holds decompressed records, one batch after the other, until `clear`."""

    def __init__(self, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._bytes: Any = np.empty(ARENA_BYTES, np.uint8)
        self._used = 0

    @property
    def data(self) -> Any:
        """A read-only uint8 array of all bytes added since `clear`; valid until the next `add`."""
        view = self._bytes[: self._used]
        view.flags.writeable = False
        return view

    @property
    def has_room(self) -> bool:
        """True: one more batch of usual size fits."""
        return ARENA_BYTES - self._used >= _ROOM_BYTES

    def clear(self) -> None:
        self._used = 0
        if len(self._bytes) > ARENA_BYTES:
            self._bytes = np.empty(ARENA_BYTES, np.uint8)

    def add(self, codec: int, stored: memoryview) -> tuple[int, int]:
        """Unpacks a batch's records and returns their (start, end) in `data`.

        Raises MalformedMessage for an unknown codec or damaged data, TooLargeToUnpack.
        """
        start = self._used
        free_bytes = min(len(self._bytes) - start, self._batch_bytes_max)
        filled, is_whole = self._unpack(codec, stored, free_bytes)
        if not is_whole and free_bytes < self._batch_bytes_max:
            self._grow_to(start + self._batch_bytes_max)
            filled, is_whole = self._unpack(codec, stored, self._batch_bytes_max)
        if not is_whole:
            raise TooLargeToUnpack(f"records unpack to more than {self._batch_bytes_max} bytes")
        self._used += filled
        return start, self._used

    def _unpack(self, codec: int, stored: memoryview, free_bytes: int) -> tuple[int, bool]:
        return unpack_into(
            codec, stored, memoryview(self._bytes)[self._used : self._used + free_bytes]
        )

    def _grow_to(self, size: int) -> None:
        """Pages that nothing is written to take no memory. Only the batches before are copied, and
        the old buffer goes first.
        """
        buffer = self._bytes = self._bytes[: self._used].copy()
        self._bytes = np.empty(size, np.uint8)
        self._bytes[: len(buffer)] = buffer


def _outside(begin: int, end: int, limits: RowLimits) -> bool:
    """True: no offset from `begin` up to but not including `end` is wanted. `end` may be wrong, as
    in a damaged header: then `begin` counts alone.
    """
    return begin >= limits.offset_end or max(end, begin + 1) <= limits.offset_from


class LogDecoder:
    """Decodes one partition's log by chunks. Calls `on_fault` once for each batch with a fault.

    Damage is what `verify` finds in a batch, too: a header that is none, another place, a wrong
    checksum. Records that cannot be read below a right checksum are no damage: the broker has them
    just so, and no Kafka client reads them. They go to `on_unreadable` (None: to `on_fault`).
    Records that unpack to more than `unpacked_bytes_max` may be sound, and go to `on_too_large`.
    """

    def __init__(
        self,
        rows: ArrowBatches,
        on_fault: OnFault,
        on_unreadable: OnFault | None = None,
        *,
        goes_on: bool = False,
        on_too_large: OnTooLarge | None = None,
        unpacked_bytes_max: int = TASK_UNPACKED_BYTES_MAX,
    ) -> None:
        """`goes_on`: `on_unreadable` may return, so a batch's records are checked whole before they
        give rows. `on_too_large` None: `on_unreadable` gets these, too.
        """
        self._rows = rows
        self._on_fault = on_fault
        self._on_unreadable = on_unreadable or on_fault
        self._on_too_large = on_too_large
        self._goes_on = goes_on
        self._arena = Arena(unpacked_bytes_max)
        self._position = 0  # of the chunk in the log
        self._fault_at = -1  # the last faulty batch's position in the log
        # Records of skipped damaged batches. After a broken header, each offset counts as one.
        self.records_skipped = 0
        self.next_offset = 0  # the offset after the last batch that was read or skipped

    def decode(
        self,
        chunk: bytes | bytearray,
        limits: RowLimits,
        *,
        position: int = 0,
        first_offset: int = 0,
        last_offset: int = OFFSET_MAX,
        borders: Sequence[int] = (),
        aborted: AbortedBatches | None = None,
    ) -> Iterator[Any]:
        """Yields pyarrow.RecordBatches of a chunk that begins and ends between batches.

        `position`: the chunk's byte position in the log. The chunk's offsets lie between
        `first_offset` and `last_offset`, both inclusive. `borders`: rising positions in the log
        at which a batch begins; after a broken header, decoding resumes at the next of them.
        `aborted`: these batches give no rows. None: all batches do.
        """
        data = np.frombuffer(memoryview(chunk).toreadonly(), np.uint8)
        data.flags.writeable = False
        self._position = position
        at = 0
        while at < len(data):
            headers = scan_headers(data, at, len(data))
            broken_at = headers.end
            at = len(data)
            after = last_offset + 1  # the first offset behind what the scan could read
            if headers.fault != WHOLE:
                index = bisect_right(borders, position + broken_at)
                if index < len(borders):
                    at = borders[index] - position
                    after = min(int.from_bytes(data[at : at + 8], "big"), after)
            placed = self._batches_in_order(headers, first_offset, last_offset, limits)
            yield from self._rows_of(headers, placed, limits, aborted)
            if placed.any():
                first_offset = int(headers.table[placed, LAST_OFFSET].max()) + 1
                self.next_offset = first_offset
            if headers.fault == WHOLE:
                return
            after = max(first_offset, after)
            if _outside(first_offset, after, limits):
                continue
            last = int(headers.table[-1, POSITION]) + position if len(headers.table) else -1
            if last < 0 or last != self._fault_at:  # else its size is wrong, and has led here
                message = f"batch {HEADER_FAULTS[headers.fault]}"
                self._on_fault(position + broken_at, first_offset, message)
            self.next_offset = after
            self.records_skipped += after - first_offset

    def _rows_of(
        self,
        headers: ScannedHeaders,
        placed: Any,
        limits: RowLimits,
        aborted: AbortedBatches | None,
    ) -> Iterator[Any]:
        table = headers.table
        in_range = (
            placed
            & (table[:, LAST_OFFSET] >= limits.offset_from)
            & (table[:, BASE_OFFSET] < limits.offset_end)
        )
        sound = self._sound(headers, np.flatnonzero(in_range))
        # A batch without timestamps has -1, and so have its records.
        gives_rows = (
            in_range
            & ~headers.has(CONTROL_MASK)
            & (table[:, MAX_TIMESTAMP] >= limits.timestamp_min)
            & (table[:, COUNT] > 0)
        )
        if aborted is not None:
            gives_rows &= ~aborted.among(headers)
        chosen = [i for i in np.flatnonzero(gives_rows).tolist() if i in sound]
        if self._rows.headers_suffice(table[chosen], limits):
            yield from self._rows.of_headers(table[chosen], limits)
        else:
            yield from self._rows_of_records(headers, chosen, limits)

    def _rows_of_records(
        self, headers: ScannedHeaders, chosen: Sequence[int], limits: RowLimits
    ) -> Iterator[Any]:
        codecs = (headers.table[:, ATTRIBUTES] & COMPRESSION_MASK).tolist()
        stored: list[int] = []  # consecutive batches that need no decompression
        packed: list[int] = []  # consecutive batches in the arena
        for i in chosen:
            if stored and codecs[i]:
                yield from self._flush(headers, headers.data, stored, limits)
            if packed and not (codecs[i] and self._arena.has_room):
                yield from self._flush(headers, self._arena.data, packed, limits)
                self._arena.clear()
            if codecs[i]:
                if self._unpack(headers, i, codecs[i], limits):
                    packed.append(i)
            elif self._looks_sound(headers, headers.data, i, limits):
                stored.append(i)
        yield from self._flush(headers, headers.data, stored, limits)
        yield from self._flush(headers, self._arena.data, packed, limits)
        self._arena.clear()

    def _batches_in_order(
        self, headers: ScannedHeaders, first_offset: int, last_offset: int, limits: RowLimits
    ) -> Any:
        """A boolean for each batch: its offsets rise and lie within the index's bounds.

        The checksum does not cover base offsets. A batch that is not in its place is a fault if an
        asked offset may have been there.
        """
        table = headers.table
        bases, lasts = table[:, BASE_OFFSET], table[:, LAST_OFFSET]
        placed = (bases >= first_offset) & (lasts <= last_offset)
        inside = np.flatnonzero(placed)
        placed[inside[1:][bases[inside[1:]] <= lasts[inside[:-1]]]] = False
        for i in np.flatnonzero(~placed).tolist():
            before, after = lasts[:i][placed[:i]], bases[i + 1 :][placed[i + 1 :]]
            begin = int(before[-1]) + 1 if len(before) else first_offset
            end = int(after[0]) if len(after) else last_offset + 1
            if not _outside(begin, end, limits):
                message = f"batch has offsets {bases[i]} to {lasts[i]}, where others belong"
                self._fault_in(headers, i, message)
        return placed

    def _sound(self, headers: ScannedHeaders, indices: Any) -> set[int]:
        """The `indices` of the batches whose bytes match the checksum in their header."""
        sound = set()
        view = memoryview(headers.data)
        columns = (POSITION, SIZE, CRC)
        rows = headers.table[indices][:, columns].tolist()
        for i, (start, size, crc) in zip(indices.tolist(), rows, strict=True):
            computed_crc = crc32c(view[start + CRC_COVERS_FROM : start + size])
            if computed_crc == crc:
                sound.add(i)
            else:
                message = f"batch has CRC-32C {computed_crc:08x}, its header says {crc:08x}"
                self._fault_in(headers, i, message)
        return sound

    def _unpack(self, headers: ScannedHeaders, i: int, codec: int, limits: RowLimits) -> bool:
        """True: the batch's records are now in the arena, and sound."""
        batch = headers.table[i]
        start, end = batch[START], batch[END]
        try:
            batch[START], batch[END] = self._arena.add(codec, memoryview(headers.data)[start:end])
        except MalformedMessage as error:
            self._fault_in(headers, i, str(error), self._on_unreadable)
            return False
        except TooLargeToUnpack as error:
            if self._on_too_large is None:
                self._fault_in(headers, i, str(error), self._on_unreadable)
            else:
                place = self._skip_batch(headers, i)
                self._on_too_large(place, int(batch[BASE_OFFSET]), int(batch[LAST_OFFSET]))
            return False
        return self._looks_sound(headers, self._arena.data, i, limits)

    def _looks_sound(self, headers: ScannedHeaders, data: Any, i: int, limits: RowLimits) -> bool:
        if not self._goes_on:
            return True
        fault = self._rows.first_fault(data, headers.table[i], limits)
        if fault is not None:
            self._fault_in(headers, i, fault, self._on_unreadable)
        return fault is None

    def _flush(
        self, headers: ScannedHeaders, data: Any, chosen: list[int], limits: RowLimits
    ) -> Iterator[Any]:
        """Yields the rows of the `chosen` batches, with records in `data`; empties `chosen`."""
        try:
            yield from self._rows.of(data, headers.table[chosen], limits)
        except BrokenRecords as broken:
            self._fault_in(headers, chosen[broken.index], broken.what, self._on_unreadable)
        chosen.clear()

    def _fault_in(
        self, headers: ScannedHeaders, i: int, message: str, tell: OnFault | None = None
    ) -> None:
        place = self._skip_batch(headers, i)
        self._fault_at = place
        (tell or self._on_fault)(place, int(headers.table[i, BASE_OFFSET]), message)

    def _skip_batch(self, headers: ScannedHeaders, i: int) -> int:
        """Counts the batch's records. Returns its position in the log."""
        batch = headers.table[i]
        # The count itself may be damaged; a batch has no more records than offsets.
        span = int(batch[LAST_OFFSET]) - int(batch[BASE_OFFSET]) + 1
        self.records_skipped += min(int(batch[COUNT]), span)
        return self._position + int(batch[POSITION])
