"""The bytes of segments held against what is said of them, one segment after the other. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    check_crc,
    control_type,
    walk,
)

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn, EpochStart, RemoteLogSegmentMetadata
from fetchproxy.segments.contents import GatheredSegment, listed_aborted
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.overlaps import epoch_at, first_difference
from fetchproxy.segments.remote_log_index import IndexSpan, RemoteLogIndex
from fetchproxy.segments.side_files import ENTRY_BYTES, decode_epochs

# The archiver is told by the broker (`aborted_txns`); this is for whoever has only the log. What
# it cannot know is how a transaction ended whose marker the archive does not hold, nor which ones
# were open where the log that is known begins.


@dataclass(frozen=True, slots=True)
class TxnEvent:
    """A batch of a transaction: data, or (`control`, its type) a marker."""

    producer_id: int
    offset: int
    control: int | None


class _Txn(NamedTuple):
    last_offset: int  # its marker; where none was seen: how far the log was
    first_offset: int  # of the data that was seen
    producer_id: int


class TxnHistory:
    """`add` in the order of the log; `restart` where it is not continuous. Then ask.

    It begins with a log's very first offset. Memory: one entry per aborted transaction, and one
    per producer.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> first offset
        self._aborted: list[_Txn] = []
        self._undecided: list[_Txn] = []  # the end of these was not seen
        self._dark: list[tuple[int, int]] = []  # offsets at which others may have been open
        self._run_start = 0
        self.is_dark = False  # what was open where the log went on is not known

    def add(self, event: TxnEvent) -> None:
        if event.control is None:
            self._open.setdefault(event.producer_id, event.offset)
            return
        if event.control not in (CONTROL_ABORT, CONTROL_COMMIT):
            return
        first_offset = self._open.pop(event.producer_id, None)
        if first_offset is not None and event.control == CONTROL_ABORT:
            self._aborted.append(_Txn(event.offset, first_offset, event.producer_id))

    def restart(
        self, log_end_offset: int, goes_on_at: int, aborted_open: Mapping[int, int] | None
    ) -> None:
        """The log known so far ends at the one (inclusive), and goes on at the other.

        `aborted_open`: the first offset, by producer id, of each transaction that was open there
        and was aborted later; None: not known.
        """
        self._undecided += [
            _Txn(log_end_offset, first_offset, producer_id)
            for producer_id, first_offset in self._open.items()
        ]
        if self.is_dark:
            self._dark.append((self._run_start, log_end_offset))
        self._open = dict(aborted_open or {})
        self.is_dark = aborted_open is None and goes_on_at != 0
        self._run_start = goes_on_at

    def end(self, log_end_offset: int) -> None:
        self.restart(log_end_offset, log_end_offset + 1, None)

    def aborted_in(self, first: int, last: int) -> tuple[AbortedTxn, ...]:
        """The entries of the segment `first` … `last`, as its transaction index has them. Raises
        CorruptSegment where the archive does not show all of them, or how one ended.
        """
        for start, end in self._dark:
            if start <= last and end >= first:
                raise CorruptSegment(
                    f"nothing says which transactions were open at offset {start}, where the log "
                    "that is known goes on"
                )
        for txn in self._undecided:
            if _overlaps(txn, first, last):
                raise CorruptSegment(
                    f"the archive does not show how the transaction of producer {txn.producer_id} "
                    f"from offset {txn.first_offset} ended"
                )
        return listed_aborted({t for t in self._aborted if _overlaps(t, first, last)}, last)


def _overlaps(txn: _Txn, first: int, last: int) -> bool:
    return txn.first_offset <= last and txn.last_offset >= first


@dataclass(slots=True)
class SeenLog:
    """How far the partition's log was read, front to back."""

    end: int = -1  # up to there each event was seen, from where the history was begun
    last: RemoteLogSegmentMetadata | None = None
    lineage: tuple[EpochStart, ...] | None = None  # up to `lineage_end`; None: not known
    lineage_end: int = -1  # of the last segment whose lineage was noted; -1: there was none

    def goes_on_with(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """The segment begins where this log ends, or it is another copy of the last one."""
        if metadata.start_offset > self.end + 1:
            return False
        return self.last is None or first_difference(self.last, metadata) is None

    def lineage_before(self, metadata: RemoteLogSegmentMetadata) -> tuple[EpochStart, ...] | None:
        """None: what lies before it is not there, or not known."""
        if self.lineage is None or metadata.start_offset > self.lineage_end + 1:
            return None
        return tuple(e for e in self.lineage if e.start_offset < metadata.start_offset)

    def note_lineage(
        self, metadata: RemoteLogSegmentMetadata, found: tuple[EpochStart, ...] | None
    ) -> None:
        if metadata.end_offset >= self.lineage_end:
            self.lineage_end = metadata.end_offset
            self.lineage = found and tuple(
                e for e in found if e.start_offset <= metadata.end_offset
            )


# What must be true (`fetchproxy.segments.side_files`): a segment lists an aborted transaction
# if and only if the transaction overlaps it. Whether one was aborted is known at its marker,
# perhaps segments later, so open transactions are carried over; nothing else is. Data below the
# first checked offset is not seen, and entries that begin there are believed where the log does
# not contradict.


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one object of a segment."""

    object_key: str
    byte_position: int | None
    offset: int | None
    what: str


@dataclass(slots=True)
class _Open:
    """A transaction without its marker yet; the first segments that list and do not list it."""

    first_offset: int
    listed_in: str | None = None
    unlisted_in: str | None = None


class TxnCheck:
    """Holds a partition's transaction indexes against the markers in its log, segment by segment.

    `begin`, each batch in order, `end`; per segment. `restart` where the log is not continuous.

    Memory: one entry per producer with an open transaction, and the segment's own index.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._run_start: int | None = None
        self._ended: set[int] = set()  # producers of which a marker was seen since then
        self._key = ""
        self._end_offset = -1
        self._entries: tuple[AbortedTxn, ...] = ()
        self._of_producer: dict[int, list[int]] = {}
        self._explained: set[int] = set()
        self._faults: list[Finding] = []

    def restart(self) -> None:
        self._open.clear()
        self._ended.clear()
        self._run_start = None

    def begin(
        self, entries: tuple[AbortedTxn, ...], key: str, start_offset: int, end_offset: int
    ) -> None:
        if self._run_start is None:
            self._run_start = start_offset
        self._key = key
        self._end_offset = end_offset
        self._entries = entries
        self._of_producer = {}
        for i, entry in enumerate(entries):
            self._of_producer.setdefault(entry.producer_id, []).append(i)
        self._explained = set()
        self._faults = []

    def batch(self, header: BatchHeader, control: int | None) -> None:
        if not header.is_transactional:
            return
        if control is None:
            self._open.setdefault(header.producer_id, _Open(header.base_offset))
        elif control == CONTROL_ABORT:
            self._aborted(header.producer_id, header.base_offset)
            self._ended.add(header.producer_id)
        elif control == CONTROL_COMMIT:
            self._committed(header.producer_id, header.base_offset)
            self._ended.add(header.producer_id)

    def end(self) -> list[Finding]:
        """The faults of this segment's index, and of earlier ones that this segment proves."""
        for producer_id, txn in self._open.items():
            if self._explain(producer_id, txn, self._end_offset):
                txn.listed_in = txn.listed_in or self._key
            else:
                txn.unlisted_in = txn.unlisted_in or self._key
        for i, entry in enumerate(self._entries):
            if i not in self._explained and not self._begins_unseen(entry, self._end_offset):
                self._fault(
                    i,
                    entry.first_offset,
                    f"producer {entry.producer_id} has no ABORT marker at {entry.last_offset} "
                    f"that ends a transaction from {entry.first_offset}",
                )
        return self._faults

    def _aborted(self, producer_id: int, marker: int) -> None:
        txn = self._open.pop(producer_id, None)
        if txn is None:
            # No data was seen: none was written (no entry), or it lies below the checked offsets.
            self._explained.update(
                i
                for i in self._of_producer.get(producer_id, ())
                if self._begins_unseen(self._entries[i], marker)
            )
            return
        what = f"the transaction of producer {producer_id}, aborted at {marker}, is not listed"
        if not self._explain(producer_id, txn, marker):
            self._fault(None, txn.first_offset, what)
        if txn.unlisted_in is not None:
            self._faults.append(Finding(txn.unlisted_in, None, txn.first_offset, what))

    def _committed(self, producer_id: int, marker: int) -> None:
        txn = self._open.pop(producer_id, None)
        if txn is None:
            return
        what = f"the transaction of producer {producer_id} is listed, but committed at {marker}"
        for i in self._of_producer.get(producer_id, ()):
            if self._entries[i].first_offset == txn.first_offset:
                self._explained.add(i)
                self._fault(i, txn.first_offset, what)
        if txn.listed_in is not None:
            self._faults.append(Finding(txn.listed_in, None, txn.first_offset, what))

    def _explain(self, producer_id: int, txn: _Open, last_offset: int) -> bool:
        for i in self._of_producer.get(producer_id, ()):
            entry = self._entries[i]
            if entry.last_offset == last_offset and (
                entry.first_offset == txn.first_offset
                or (entry.first_offset < txn.first_offset and self._begins_below(entry))
            ):
                self._explained.add(i)
                return True
        return False

    def _begins_below(self, entry: AbortedTxn) -> bool:
        """It may be right. A marker that was seen has ended what the producer had begun below."""
        if self._run_start is None or entry.producer_id in self._ended:
            return False
        return entry.first_offset < self._run_start

    def _begins_unseen(self, entry: AbortedTxn, last_offset: int) -> bool:
        return entry.last_offset == last_offset and self._begins_below(entry)

    def _fault(self, entry: int | None, offset: int, what: str) -> None:
        position = None if entry is None else entry * ENTRY_BYTES
        self._faults.append(Finding(self._key, position, offset, what))


# Every fault is reported once, where it is, and not again as its own consequences: after a broken
# batch the walk goes on behind it where that makes sense, else at the next index entry, and a
# span that holds a broken batch is not compared with its index entry.

_WHERE = re.compile(r" at byte [0-9]+")  # counted from the bytes at hand: a Finding says it better


@dataclass(frozen=True, slots=True)
class Next:
    """Give `take` the bytes from `position` on, at least `bytes_min` of them."""

    position: int
    bytes_min: int = HEADER_BYTES


@dataclass(slots=True)
class _SpanSum:
    """What the batches of one span say."""

    first_offset: int
    first_timestamp_ms: int
    last_offset: int = -1
    max_timestamp_ms: int = -(2**63)


class SegmentCheck:
    """One segment's bytes held against its metadata and its remoteLogIndex, batch by batch.

    `take` bytes as `Next` asks until it answers None, then `finish`; `findings` are the result.

    `continues`: the segment before it ends at `start_offset - 1`. Otherwise the first batch may
    begin below `start_offset`, as DeleteRecords can trim a log inside a batch.

    Of a segment that was clipped, what lies above its end must be whole, as it is read with the
    rest, but says nothing of the log.
    """

    def __init__(
        self,
        metadata: RemoteLogSegmentMetadata,
        key_of: Callable[[SegmentFile], str],
        spans: Sequence[IndexSpan],
        txns: TxnCheck,
        *,
        continues: bool,
    ) -> None:
        self._metadata = metadata
        self._key_of = key_of
        self._size = metadata.segment_size_bytes
        self._spans = spans
        self._txns = txns
        self._continues = continues
        self.findings: list[Finding] = []
        self.log_is_sound = True
        # Where the next batch may begin; two places after a base offset that does not fit, as
        # either it or what came before it is wrong; none after bytes that could not be read.
        self._expected: tuple[int, ...] = (metadata.start_offset,)
        self._first = True
        self._suspect: int | None = None  # where a batch failed its CRC: its size may be wrong
        self._cut = False
        self._max_timestamp_ms = -1
        self._span = 0  # the first span that does not end at or before the position
        self._sum: _SpanSum | None = None  # of that span; None: not comparable

    def take(self, data: Buffer, position: int) -> Next | None:
        """`data` begins with the byte at `position`; None: there is no more to read."""
        at = position
        try:
            for header in walk(data, 0, min(len(data), self._size - position)):
                at = position + header.position
                if not self._batch(data, header, at):
                    return self._broken(at, "")
                at += header.size
        except WireError as error:
            return self._broken(at, _WHERE.sub("", str(error)))
        if at >= self._size:
            return None
        return self._partial(data, at - position, at)

    def short(self, position: int) -> None:
        """The object ends at `position`, before the segment does. What is there is checked."""
        self._log_fault(position, None, f"object ends here, metadata say {self._size} bytes")
        self._size = position
        self._cut = True

    def finish(self) -> None:
        end_offset = self._metadata.stored_end_offset
        trusted = not self._cut and self._suspect is None
        if trusted and self._expected and end_offset + 1 not in self._expected:
            self._log_fault(
                self._size,
                end_offset,
                f"last batch ends at offset {self._expected[0] - 1}, metadata say {end_offset}",
            )
        stated = self._metadata.max_timestamp_ms
        if self.log_is_sound and stated != self._max_timestamp_ms:
            what = f"max_timestamp_ms is {stated}, in the log it is {self._max_timestamp_ms}"
            self.findings.append(Finding(self._key_of(SegmentFile.METADATA), None, None, what))

    def _partial(self, data: Buffer, start: int, position: int) -> Next | None:
        """What is left holds no whole batch: ask for it, unless it cannot be in the segment."""
        left = self._size - position
        if left < HEADER_BYTES:
            return None if self._cut else self._broken(position, f"{left} bytes are no batch")
        if len(data) - start < HEADER_BYTES:
            return Next(position)
        length = int.from_bytes(data[start + 8 : start + LOG_OVERHEAD_BYTES], "big", signed=True)
        size = length + LOG_OVERHEAD_BYTES
        if size > left and self._cut:
            return None
        if size > left:
            return self._broken(position, f"batch claims {size} bytes, {left} are left")
        return Next(position, size)

    def _broken(self, position: int, what: str) -> Next | None:
        """Go on at the next index entry: the only other place where a batch is known to begin."""
        if self._suspect is None:
            offset = self._expected[0] if self._expected else None
            self._log_fault(position, offset, what)
        else:
            position = self._suspect  # its size led here, and has been reported there
        self._expected = ()
        self._suspect = None
        self._sum = None
        for span in self._spans:
            if span.position > position:
                return Next(span.position)
        return None

    def _batch(self, data: Buffer, header: BatchHeader, position: int) -> bool:
        """False: what `header` says cannot be trusted, not even its size."""
        sound = check_crc(data, header)
        known = len(self.findings)
        suspected = self._suspect is not None
        follows = self._follows(header)
        if not sound and suspected and not follows:
            return False
        self._suspect = None if sound else position
        control: int | None = None
        if not sound:
            self._log_fault(position, header.base_offset, "CRC-32C of the batch does not match")
        elif not (follows or suspected):
            base, expected = header.base_offset, self._expected[0]
            kind = "hole" if base > expected else "overlap"
            what = f"{kind}: batch begins at offset {base}, expected {expected}"
            self._log_fault(position, base, what)
        elif self._counts(header, position):
            self._check_epoch(header, position)
            control = self._control(data, header, position)
        after = header.last_offset + 1
        if follows or suspected:
            self._expected = (after,)
        else:
            self._expected = (after, self._expected[0] + header.last_offset_delta + 1)
        self._first = False
        if header.base_offset <= self._metadata.end_offset:
            self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp)
            if self.log_is_sound:
                self._txns.batch(header, control)
        self._add_to_span(header, position, clean=len(self.findings) == known)
        return True

    def _counts(self, header: BatchHeader, position: int) -> bool:
        """False: it lies above the place where the segment was clipped, which is between batches.

        (Where it was not clipped, what is wrong with its end is said once, by `finish`.)
        """
        clipped_at = self._metadata.end_offset
        if self._metadata.copied_end_offset is None or header.last_offset <= clipped_at:
            return True
        if header.base_offset <= clipped_at:
            what = f"clipped at offset {clipped_at}, inside a batch to {header.last_offset}"
            self._log_fault(position, header.base_offset, what)
        return False

    def _follows(self, header: BatchHeader) -> bool:
        """Does it begin where it may? Also true where nothing is expected."""
        if not self._expected or header.base_offset in self._expected:
            return True
        may_be_trimmed = self._first and not self._continues
        return may_be_trimmed and header.base_offset < self._expected[0] <= header.last_offset

    def _check_epoch(self, header: BatchHeader, position: int) -> None:
        stated = epoch_at(self._metadata.segment_leader_epochs, header.base_offset)
        epoch = header.partition_leader_epoch
        if epoch not in (-1, stated):  # -1: written without epochs, so metadata have none
            self._log_fault(
                position, header.base_offset, f"leader epoch {epoch}, metadata say {stated}"
            )

    def _control(self, data: Buffer, header: BatchHeader, position: int) -> int | None:
        if not header.is_control:
            return None
        try:
            return control_type(data, header)
        except WireError as error:
            self._log_fault(position, header.base_offset, f"control batch: {error}")
            return None

    def _add_to_span(self, header: BatchHeader, position: int, *, clean: bool) -> None:
        while self._span < len(self._spans) and self._spans[self._span].end <= position:
            self._span += 1
            self._sum = None
        if self._span == len(self._spans):
            return
        span = self._spans[self._span]
        if position == span.position:
            self._sum = _SpanSum(header.base_offset, header.base_timestamp)
        end = position + header.size
        if end > span.end:
            if clean:
                self._index_fault(span, f"ends at byte {span.end}, inside the batch at {position}")
            self._sum = None
        if not clean:
            self._sum = None
        total = self._sum
        if total is None:
            return
        total.last_offset = header.last_offset
        total.max_timestamp_ms = max(total.max_timestamp_ms, header.max_timestamp)
        if end == span.end:
            self._compare(span, total)

    def _compare(self, span: IndexSpan, total: _SpanSum) -> None:
        pairs = (
            ("firstOffset", span.first_offset, total.first_offset),
            ("lastOffset", span.last_offset, total.last_offset),
            ("firstTimestamp", span.first_timestamp_ms, total.first_timestamp_ms),
            ("lastTimestamp", span.max_timestamp_ms, total.max_timestamp_ms),
        )
        wrong = [f"{name} is {a}, in the log {b}" for name, a, b in pairs if a != b]
        if wrong:
            self._index_fault(span, "; ".join(wrong))

    def _index_fault(self, span: IndexSpan, what: str) -> None:
        text = f"entry for byte {span.position} of the log: {what}"
        key = self._key_of(SegmentFile.INDEX)
        self.findings.append(Finding(key, None, span.first_offset, text))

    def _log_fault(self, position: int, offset: int | None, what: str) -> None:
        self.log_is_sound = False
        self.findings.append(Finding(self._key_of(SegmentFile.LOG), position, offset, what))


def first_newer(
    segment: RemoteLogSegmentMetadata, lineage: Sequence[EpochStart], from_offset: int
) -> int | None:
    """The first of its offsets, from that one on, that `lineage` has of a newer epoch; None: none.

    Below its first entry the lineage says nothing, and a segment without epochs is believed.
    """
    if not lineage or not segment.segment_leader_epochs:
        return None
    first = max(segment.start_offset, lineage[0].start_offset, from_offset)
    for offset in sorted({first, *(entry.start_offset for entry in lineage)}):
        if first <= offset <= segment.end_offset and epoch_at(lineage, offset) > epoch_at(
            segment.segment_leader_epochs, offset
        ):
            return offset
    return None


def clip_epochs(
    lineage: Sequence[EpochStart], start_offset: int, end_offset: int
) -> tuple[EpochStart, ...]:
    """A lineage as the metadata of the segment `start_offset` … `end_offset` state it."""
    clipped: list[EpochStart] = []
    for entry in lineage:
        if entry.start_offset <= start_offset:
            clipped = [EpochStart(entry.epoch, start_offset)]
        elif entry.start_offset <= end_offset:
            clipped.append(entry)
    return tuple(clipped)


# Only of a whole log may anything be derived. Every batch of a log that was cut between two batches
# still passes its CRC. So how far a segment goes has to be said by its log and by somebody else:
# its metadata, or else its index and what begins behind it. A batch's leader epoch is not covered
# by its CRC either, and takes a second voice, too.


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What says how far a segment's log goes, besides the log.

    `known`: its metadata, None where they are lost. `index`, `epochs`: these objects as they are,
    None where they are missing. `starts`: where the partition's other segments begin.
    `finished_to`: the last offset that is known to have been archived, `stated_end` the one that
    was put on record; None: there are no records.
    """

    known: RemoteLogSegmentMetadata | None
    index: bytes | None
    epochs: bytes | None
    starts: Collection[int]
    finished_to: int | None
    stated_end: int | None


def check_whole(log: GatheredSegment, witnesses: Witnesses) -> None:
    """Raises CorruptSegment where nobody confirms that `log` is the segment's log, all of it."""
    known = witnesses.known
    if known is None:
        _check_lost(log, witnesses)
    elif (known.stored_end_offset, known.segment_size_bytes) != (log.end_offset, log.size_bytes):
        try:
            _parsed(witnesses.index).check_covers(log.end_offset, log.size_bytes)
        except CorruptSegment as error:
            raise CorruptSegment(f"log and metadata disagree on its end, and {error}") from None
        if known.stored_end_offset != log.end_offset and not _ends_there(log, witnesses):
            raise CorruptSegment("log and metadata disagree on its end, and nothing begins there")
    _check_epochs(log, witnesses)


def _check_lost(log: GatheredSegment, witnesses: Witnesses) -> None:
    if witnesses.finished_to is not None and log.start_offset > witnesses.finished_to:
        raise CorruptSegment("its metadata are lost, and nothing says that it was finished")
    try:
        _parsed(witnesses.index).check_covers(log.end_offset, log.size_bytes)
    except CorruptSegment as error:
        if not _ends_there(log, witnesses):
            raise CorruptSegment(f"nothing confirms where its log ends, and {error}") from None


def _ends_there(log: GatheredSegment, witnesses: Witnesses) -> bool:
    """Another segment begins right behind it, or the archive was finished up to there."""
    return log.end_offset + 1 in witnesses.starts or log.end_offset == witnesses.stated_end


def _check_epochs(log: GatheredSegment, witnesses: Witnesses) -> None:
    known = witnesses.known
    end = log.end_offset if known is None else min(known.end_offset, log.end_offset)
    own = clip_epochs(log.leader_epochs, log.start_offset, end)
    if known is not None and own == known.segment_leader_epochs:
        return
    beside = epochs_beside(witnesses.epochs, log.start_offset, end)
    if beside is None:
        if known is None:
            return  # nobody contradicts it
    elif beside == own or (known is None and agrees(beside, own)):
        return
    raise CorruptSegment(f"the log has {own}, and what else says its leader epochs does not")


def epochs_beside(
    raw: bytes | None, start_offset: int, end_offset: int
) -> tuple[EpochStart, ...] | None:
    """Those of the segment by its `.epochs`; None where that cannot be read."""
    if raw is None:
        return None
    try:
        return clip_epochs(decode_epochs(raw), start_offset, end_offset)
    except CorruptSegment:
        return None


def epochs_that_agree(
    metadata: RemoteLogSegmentMetadata, raw: bytes | None
) -> tuple[EpochStart, ...] | None:
    """The lineage that `raw` states; None where it is not what the segment's metadata say."""
    beside = epochs_beside(raw, metadata.start_offset, metadata.end_offset)
    if raw is None or beside is None or not agrees(beside, metadata.segment_leader_epochs):
        return None
    return decode_epochs(raw)


def agrees(beside: Sequence[EpochStart], own: Sequence[EpochStart]) -> bool:
    """Batches without an epoch leave none in a segment, but do not end the lineage before it."""
    return tuple(beside) == tuple(own) or (not own and len(beside) <= 1)


def _parsed(index: bytes | None) -> RemoteLogIndex:
    if index is None:
        raise CorruptSegment("its index is missing")
    return RemoteLogIndex.parse(index)
