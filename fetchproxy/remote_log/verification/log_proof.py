"""Is a log whole? Only then may anything be derived from it. Pure.

Every batch of a log that was cut between two batches still passes its CRC. So how far a segment
goes has to be said by its log and by somebody else: its metadata, or else its index and what begins
behind it. A batch's leader epoch is not covered by its CRC either, and takes a second voice, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fetchproxy.errors import CorruptSegment
from fetchproxy.index.leader_epochs import decode_epochs
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata
from fetchproxy.remote_log.sources.gathered_segment import GatheredSegment
from fetchproxy.remote_log.verification.segment_check import clip_epochs


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
