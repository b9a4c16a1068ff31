"""Reads one task: fetches ranges of segments' logs ahead of the decoder, which makes Arrow."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from fetchproxy.errors import (
    CorruptSegment,
    DamagedObject,
    FetchProxyError,
    ObjectNotFound,
    RangeNotSatisfiable,
    RecordsTooLarge,
    RemoteStorageError,
)
from fetchproxy.model import ByteRange, IsolationLevel, SegmentRef
from fetchproxy.remotelog.decoder.arrow_batches import ArrowBatches
from fetchproxy.remotelog.decoder.log_decoder import AbortedBatches, LogDecoder
from fetchproxy.remotelog.decoder.record_rows import RowLimits
from fetchproxy.remotelog.file_names import file_stem
from fetchproxy.remotelog.options import SourceOptions
from fetchproxy.remotelog.planning import (
    SKIPPED_RECORDS,
    OffsetSpan,
    ReadTask,
    SegmentPart,
    parts_of,
    view_now,
)
from fetchproxy.remotelog.session import share_one_heap
from fetchproxy.remotelog.store_thread import LoopThread, opened_store, with_retries
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import IndexSpan, RemoteLogIndex
from fetchproxy.segments.side_files import decode_aborted
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import Content

log = structlog.get_logger(__name__)
T = TypeVar("T")
# A worker's memory is bounded: `RANGES_AHEAD_MAX` + 2 ranges of `TASK_RANGE_BYTES` (a larger batch
# makes a range longer), the decoder's arena, one Arrow batch being made and one being sent. A range
# above LARGE_RANGE_BYTES is alone, and is gone when its last Arrow batch is sent.
TASK_RANGE_BYTES = 8 * 1024 * 1024
RANGES_AHEAD_MAX = 1
LARGE_RANGE_BYTES = 2 * TASK_RANGE_BYTES


def logged(task: ReadTask, batches: Iterator[Any]) -> Iterator[Any]:
    """Yields `batches`, then writes a line in the worker's log.

    A Python source cannot add a figure to Spark's page. A task that fails reports itself.
    """
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
        del batch  # it may be large, and the next one is made now
    start, end = task.offsets
    log.info(
        "archive_task_read",
        partition=str(task.tp),
        offsets=f"{start} to {end - 1}",
        rows=rows,
        segments=len({part.segment.raw_id for part in task.parts}),
        stored_bytes_max=task.size_bytes,
    )


@dataclass(slots=True)
class _Range:
    """Consecutive spans of one part's segment."""

    part: SegmentPart
    key: str
    span: IndexSpan
    borders: Sequence[int]
    aborted: AbortedBatches | None
    data: list[Future[Content]]  # one; taken out to be decoded


@dataclass(slots=True)
class SkippedRecords:
    """Data that a task skipped by its options. `records`: an upper bound that includes markers."""

    # Damaged batches and indexes (corruptBatches=skip); missing objects, reads beyond their ends,
    # unreadable records, batches that are too large to unpack (failOnDataLoss=false); objects that
    # cannot be read (either option).
    faults: int = 0
    records: int = 0
    # First and last offsets of batches that were left out although the options fail at them, as
    # they are too large to unpack. None: the task fails there.
    too_large: list[tuple[int, int]] | None = None
    # Not skipped: keys of `.log` objects that were read and are not encrypted, though new segments
    # are. Anybody who can write to the store may have put them there.
    not_encrypted: set[str] = field(default_factory=set)


def read_task(
    options: SourceOptions,
    task: ReadTask,
    columns: Sequence[str],
    rows: RowLimits = RowLimits(),  # noqa: B008 - frozen
    skipped_records: SkippedRecords | None = None,
    *,
    exact: bool = False,
) -> Iterator[Any]:
    """Yields pyarrow.RecordBatches in the order of offsets. Counts skipped data in
    `skipped_records`.

    `exact`: see ArrowBatches.

    Raises CorruptSegment, RecordsTooLarge and RemoteStorageError, all with topic, partition, offset
    and object.
    """
    share_one_heap()
    arrow = ArrowBatches(columns, task.tp.topic, task.tp.partition, exact=exact)
    storage = opened_store(options)
    with closing(LoopThread("store", storage)) as loop:
        reading = _TaskReading(
            options, task, storage, loop, arrow, skipped_records or SkippedRecords()
        )
        for fetched_range in _fetched_ahead(reading.ranges()):
            yield from reading.decoded(fetched_range, rows)
    reading.report()


def too_large_for(options: SourceOptions) -> str:
    """What a batch is, with the setting."""
    limit = options.unpacked_bytes_max
    return (
        f"too large to unpack here: its records have more bytes than maxUnpackedBytes={limit} (a "
        "task needs room for four times the number that is set there)"
    )


def _fetched_ahead(ranges: Iterator[_Range]) -> Iterator[_Range]:
    under_way: deque[_Range] = deque()
    for range_ in ranges:
        under_way.append(range_)
        large = range_.span.length > LARGE_RANGE_BYTES
        while len(under_way) > (0 if large else RANGES_AHEAD_MAX):
            yield under_way.popleft()
    yield from under_way


class _TaskReading:
    """The ranges of one task and their faults.

    By the options, the first fault ends the task, or all faults are counted and skipped.
    """

    def __init__(
        self,
        options: SourceOptions,
        task: ReadTask,
        storage: RemoteStorage,
        loop: LoopThread,
        arrow: ArrowBatches,
        skipped_records: SkippedRecords,
    ) -> None:
        self._options = options
        self._task = task
        self._storage, self._rsm = storage, storage.rsm
        self._loop = loop
        self._decoder = LogDecoder(
            arrow,
            self._note_damage,
            self._unreadable,
            goes_on=not options.fail_on_data_loss,
            on_too_large=self._too_large,
            unpacked_bytes_max=options.unpacked_bytes_max,
        )
        self._skipped_records = skipped_records
        self._missing_segments: set[bytes] = set()  # segments of which an object is missing
        self._key = ""  # of the object that is being read
        self._faults: list[dict[str, Any]] = []

    def ranges(self) -> Iterator[_Range]:
        """The ranges of the task. The read of each has begun when it is returned."""
        for part in self._task.parts:
            yield from self._ranges_of(part)

    def _ranges_of(self, part: SegmentPart) -> Iterator[_Range]:
        where = f"{self._task.tp}, offsets {part.offset_from} to {part.offset_end - 1}"
        try:
            index, aborted = self._indexes(part.segment, where)
            self._name_if_plain(part.segment, where)
        except ObjectNotFound as error:
            for other in self._replacements(error, part, part.offset_from, part.offset_end):
                yield from self._ranges_of(other)
            return
        except CorruptSegment as error:
            self._note_unread(error, part.offset_from, part.offset_end)
            return
        key = self._rsm.object_key(part.segment, SegmentFile.LOG)
        for i, j in _runs(part, index):
            span = index.merged(i, j)
            byte_range = ByteRange(span.position, span.end)
            operation = f"{where}: {key}, bytes {byte_range.start} to {byte_range.end - 1}"
            borders = [index[n].position for n in range(i, j)]
            read = partial(self._rsm.fetch_log_segment, part.segment, byte_range)
            # No name for it here: this generator would keep the bytes until the next range.
            yield _Range(part, key, span, borders, aborted, [self._begin(operation, read)])

    def _replacements(
        self, error: ObjectNotFound, part: SegmentPart, first: int, end: int
    ) -> Iterator[SegmentPart]:
        """Parts of other segments with the offsets from `first`, below `end`, of a part that was
        planned and has gone: merged segments replace others, which are deleted minutes later, and a
        task may take longer. Offsets that the archive does not have any more are not read.
        """
        if first >= end:
            return
        self._missing_segments.add(part.segment.raw_id)
        key = self._key
        tp = self._task.tp
        view = self._begin(f"the metadata of {tp}", partial(view_now, self._storage, tp)).result()
        parts = list(parts_of(view, OffsetSpan(first, end)))
        if any(other.segment.raw_id in self._missing_segments for other in parts):
            parts = []  # it was not replaced: its object is missing
        elif parts and not part.is_whole and (first, end) == (part.offset_from, part.offset_end):
            raise ObjectNotFound(
                f"{error}: since this was planned, another segment has replaced it; run it again"
            )
        for other in parts:
            self._note_missing_object(error, key, first, other.offset_from)
            yield other
            first = other.offset_end
        self._note_missing_object(error, key, first, end)

    def _note_missing_object(self, error: ObjectNotFound, key: str, first: int, end: int) -> None:
        if first < end:
            self._key = key
            self._note_unread(error, first, end)

    def _indexes(
        self, segment: SegmentRef, where: str
    ) -> tuple[RemoteLogIndex, AbortedBatches | None]:
        committed = self._options.isolation is IsolationLevel.READ_COMMITTED
        committed = committed and segment.has_aborted_txns
        files = [SegmentFile.INDEX, *[SegmentFile.TXN] * committed]
        reads: list[tuple[str, Future[bytes]]] = []
        for file in files:
            key = self._rsm.object_key(segment, file)
            read = partial(self._rsm.fetch_index, segment, file)
            reads.append((key, self._begin(f"{where}: {key}", read)))
        raw = []
        for self._key, reading in reads:
            raw.append(reading.result())
        self._key = reads[0][0]
        try:
            index = RemoteLogIndex.parse(raw[0])
            index.check_covers(segment.stored_end_offset, segment.segment_size_bytes)
            self._key = reads[-1][0]
            return index, AbortedBatches(decode_aborted(raw[1])) if committed else None
        except CorruptSegment as error:
            raise CorruptSegment(
                f"{where}: {self._key}: {error}; `fetchproxy verify --repair` rebuilds it"
            ) from error

    def _name_if_plain(self, segment: SegmentRef, where: str) -> None:
        key = self._rsm.object_key(segment, SegmentFile.LOG)
        if self._rsm.encrypts:
            proven = partial(self._rsm.check_metadata, segment)
            if not self._begin(f"{where}: {key}", proven).result():
                self._skipped_records.not_encrypted.add(key)

    def _begin(self, operation: str, read: Callable[[], Awaitable[T]]) -> Future[T]:
        return self._loop.begin(with_retries(operation, read, self._options.read_max_ms / 1000))

    def decoded(self, task_range: _Range, rows: RowLimits) -> Iterator[Any]:
        """Keeps back the last Arrow batch until the range's memory is free."""
        made: deque[Any] = deque()
        for batch in self._decode_range(task_range, rows):
            made.append(batch)
            del batch
            if len(made) > 1:
                yield made.popleft()
        while made:
            yield made.popleft()

    def _decode_range(self, task_range: _Range, rows: RowLimits) -> Iterator[Any]:
        self._key, span, part, decoder = (
            task_range.key,
            task_range.span,
            task_range.part,
            self._decoder,
        )
        first, end = max(span.first_offset, part.offset_from), span.last_offset + 1
        end = min(end, part.offset_end)
        try:
            data = task_range.data.pop().result()
        except ObjectNotFound as error:
            for other in self._replacements(error, part, first, end):
                for of_other in self._ranges_of(other):
                    yield from self._decode_range(of_other, rows)
            return
        except (RangeNotSatisfiable, DamagedObject) as error:
            self._note_unread(error, first, end)
            return
        yield from decoder.decode(
            data,
            rows._replace(offset_from=part.offset_from, offset_end=part.offset_end),
            position=span.position,
            first_offset=span.first_offset,
            last_offset=span.last_offset,
            borders=task_range.borders,
            aborted=task_range.aborted,
        )
        if len(data) < span.length and decoder.next_offset < part.offset_end:
            message = f"the log ends, its index goes on to {span.end}"
            self._note_damage(span.position + len(data), span.last_offset, message)
            if decoder.next_offset:
                decoder.records_skipped += span.last_offset + 1 - decoder.next_offset
        self._skipped_records.records += decoder.records_skipped
        decoder.records_skipped = 0

    def _note_damage(self, position: int, offset: int, message: str) -> None:
        tp = self._task.tp
        if not self._options.skip_corrupt:
            raise CorruptSegment(
                f"{tp}, offset {offset}: {self._key}, byte {position}: {message} "
                "(corruptBatches=skip leaves such batches out)"
            )
        self._note(offset, message, position)

    def _unreadable(self, position: int, offset: int, message: str) -> None:
        if self._options.fail_on_data_loss:
            raise CorruptSegment(
                f"{self._task.tp}, offset {offset}: {self._key}, byte {position}: {message}; the "
                "batch's checksum is right, so the broker had these records, which no Kafka client "
                f"can read ({SKIPPED_RECORDS})"
            )
        self._note(offset, message, position)

    def _too_large(self, position: int, first: int, last: int) -> None:
        """Neither a fault of the archive nor a loss: a task with more memory reads the batch."""
        left_out = self._skipped_records.too_large
        if not self._options.fail_on_data_loss:
            self._note(first, f"the batch is {too_large_for(self._options)}", position)
        elif left_out is None:
            raise RecordsTooLarge(
                f"{self._task.tp}, offsets {first} to {last}: {self._key}, byte {position}: the "
                f"batch is {too_large_for(self._options)} ({SKIPPED_RECORDS})"
            )
        else:
            left_out.append((first, last))

    def _note_unread(self, error: FetchProxyError, offset_from: int, offset_end: int) -> None:
        """Counts the offsets of an object that cannot be read as skipped, or raises the error, with
        the option that passes over such an object.
        """
        damaged = isinstance(error, CorruptSegment)
        may_skip = damaged and self._options.skip_corrupt
        # The store gives nothing of a DamagedObject, so it is lost like a missing object.
        may_lose = isinstance(error, RemoteStorageError) and not self._options.fail_on_data_loss
        if not (may_skip or may_lose):
            way = "corruptBatches=skip leaves its offsets out" if damaged else SKIPPED_RECORDS
            raise type(error)(f"{error} ({way})") from error
        log.warning(
            "archived_data_lost",
            error=str(error),
            hint="fetchproxy verify names what is missing",
        )
        self._note(offset_from, str(error))
        self._skipped_records.records += offset_end - offset_from

    def _note(self, offset: int, message: str, byte: int | None = None) -> None:
        tp = self._task.tp
        fields = {"topic": tp.topic, "partition": tp.partition, "offset": offset}
        self._faults.append({**fields, "object": self._key, "byte": byte, "what": message})
        self._skipped_records.faults += 1

    def report(self) -> None:
        """Writes one line in the worker's log and, if the options name a folder, JSON lines."""
        if not self._faults:
            return
        log.warning(
            "corrupt_batches_skipped",
            count=len(self._faults),
            first=self._faults[0],
            hint="run fetchproxy verify on the topic",
        )
        if self._options.corrupt_report is not None:
            folder = Path(self._options.corrupt_report)
            folder.mkdir(parents=True, exist_ok=True)
            lines = "".join(f"{json.dumps(fault)}\n" for fault in self._faults)
            tp, first = self._task.tp, self._task.offsets.start
            name = f"{file_stem(tp.topic)}-{tp.partition}-{first:020d}.json"
            (folder / name).write_text(lines)


def _runs(part: SegmentPart, index: RemoteLogIndex) -> Iterator[tuple[int, int]]:
    """Runs of the part's spans, `i` … `j - 1`, of about RANGE_BYTES each.

    A span belongs to the part in which it begins.
    """
    spans = [
        n
        for n, span in enumerate(index.spans())
        if part.byte_from <= span.position < part.byte_to
        and span.last_offset >= part.offset_from
        and span.first_offset < part.offset_end
    ]
    if not spans:
        return
    i, end = spans[0], spans[-1] + 1  # spans follow each other in offsets and bytes alike
    while i < end:
        j = min(index.spans_up_to(i, TASK_RANGE_BYTES), end)
        yield i, j
        i = j
