"""Whether a log object has the whole log of its segment, by what is stored beside it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata
from fetchproxy.segments.check import clip_epochs
from fetchproxy.segments.contents import AccumulatedSegment
from fetchproxy.segments.leader_epochs import are_those_of, rising
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.segments.side_files import decode_epochs


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The witnesses of the end of a segment's log, besides the log.

    `known`: its metadata; None: they are lost. `index`, `epochs`: the bytes of these objects; None:
    they are missing. `starts`: the start offsets of the partition's other segments.
    `finished_to`: the last offset known to have been archived. `stated_end`: the last offset on
    record. None: there are no records.

    Only a whole log may be used to derive anything. If a log was cut between two batches, each
    remaining batch still passes its CRC. So a second witness has to confirm the log's end: the
    segment's metadata, else its index or the start of the next segment, or both. The CRC does not
    cover a batch's leader epoch either, so the epoch needs a second witness, too.
    """

    known: RemoteLogSegmentMetadata | None
    index: bytes | None
    epochs: bytes | None
    starts: Collection[int]
    finished_to: int | None
    stated_end: int | None


def check_whole(log: AccumulatedSegment, witnesses: Witnesses) -> None:
    """Raises CorruptSegment unless a witness confirms that `log` is the segment's whole log."""
    recorded = witnesses.known
    if recorded is None:
        _check_first_batch(log)
        _check_lost(log, witnesses)
    elif (recorded.stored_end_offset, recorded.segment_size_bytes) != (
        log.end_offset,
        log.size_bytes,
    ):
        _check_first_batch(log)
        try:
            _parsed(witnesses.index).check_covers(log.end_offset, log.size_bytes)
        except CorruptSegment as error:
            raise CorruptSegment(f"log and metadata disagree on its end, and {error}") from None
        if recorded.stored_end_offset != log.end_offset and not _ends_there(log, witnesses):
            raise CorruptSegment("log and metadata disagree on its end, and nothing begins there")
    _check_epochs(log, witnesses)


def _check_first_batch(log: AccumulatedSegment) -> None:
    """A hole before the first batch is legal, and it is also what a later segment's log shows if it
    lies under this segment's name. So only metadata that agree with the log confirm such a hole.
    """
    first = log.index[0].first_offset
    if first > log.start_offset:
        raise CorruptSegment(
            f"its log begins at offset {first}, and no metadata confirm that the offsets from "
            f"{log.start_offset} on are a hole"
        )


def _check_lost(log: AccumulatedSegment, witnesses: Witnesses) -> None:
    if witnesses.finished_to is not None and log.start_offset > witnesses.finished_to:
        raise CorruptSegment("its metadata are lost, and nothing says that it was finished")
    try:
        _parsed(witnesses.index).check_covers(log.end_offset, log.size_bytes)
    except CorruptSegment as error:
        if not _ends_there(log, witnesses):
            raise CorruptSegment(f"nothing confirms where its log ends, and {error}") from None


def _ends_there(log: AccumulatedSegment, witnesses: Witnesses) -> bool:
    """True: another segment begins right after the log, or the archive was finished to its end."""
    return log.end_offset + 1 in witnesses.starts or log.end_offset == witnesses.stated_end


def _check_epochs(log: AccumulatedSegment, witnesses: Witnesses) -> None:
    recorded = witnesses.known
    end = log.end_offset if recorded is None else min(recorded.end_offset, log.end_offset)
    of_log = clip_epochs(log.leader_epochs, log.start_offset, end)
    if recorded is not None and are_those_of(of_log, recorded.segment_leader_epochs):
        return
    stored_epochs = epochs_beside(witnesses.epochs, log.start_offset, end)
    if stored_epochs is None:
        if recorded is None:
            return  # no witness contradicts it
    elif stored_epochs == of_log or (recorded is None and agrees(stored_epochs, of_log)):
        return
    raise CorruptSegment(f"the log has {of_log}, and what else says its leader epochs does not")


def epochs_beside(
    raw: bytes | None, start_offset: int, end_offset: int
) -> tuple[EpochStart, ...] | None:
    """The segment's epochs in its `.epochs`. None: it is missing or unreadable."""
    if raw is None:
        return None
    try:
        return clip_epochs(decode_epochs(raw), start_offset, end_offset)
    except CorruptSegment:
        return None


def epochs_that_agree(
    metadata: RemoteLogSegmentMetadata, raw: bytes | None
) -> tuple[EpochStart, ...] | None:
    """The lineage in `raw`. None: it does not agree with the segment's metadata."""
    stored_epochs = epochs_beside(raw, metadata.start_offset, metadata.end_offset)
    if (
        raw is None
        or stored_epochs is None
        or not agrees(stored_epochs, metadata.segment_leader_epochs)
    ):
        return None
    return decode_epochs(raw)


def agrees(stored_epochs: Sequence[EpochStart], epochs: Sequence[EpochStart]) -> bool:
    """Batches without an epoch add none to a segment, but do not end the lineage before it: what
    such batches begin a segment with is in `stored_epochs` alone, as the first epoch or its start.
    """
    lineage, rising_epochs = tuple(stored_epochs), rising(epochs)
    if rising_epochs in (lineage, lineage[1:]):
        return True
    if not lineage or not rising_epochs or lineage[1:] != rising_epochs[1:]:
        return False
    return (
        lineage[0].epoch == rising_epochs[0].epoch
        and lineage[0].start_offset < rising_epochs[0].start_offset
    )


def _parsed(index: bytes | None) -> RemoteLogIndex:
    if index is None:
        raise CorruptSegment("its index is missing")
    return RemoteLogIndex.parse(index)
