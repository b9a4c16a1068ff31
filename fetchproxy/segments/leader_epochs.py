"""The leader epochs of a segment: each with the offset of its first batch, in the order of the log.
Pure.

They rise, as long as one cluster wrote the log. But Kafka also serves batches whose epochs do not
count in its LeaderEpochFileCache: after a cluster was set up anew around its old logs, leaders
count from 0 again, so epochs fall, or lie above the leader's own. Recovery passes over such
batches (`LogSegment.recover`). Here an entry with epoch -1 stands for them. In its offsets any
epoch may stand in a batch, and none is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fetchproxy.model import EpochStart

NOT_COUNTED = -1


def uncounted(start_offset: int) -> tuple[EpochStart, ...]:
    """The epochs of a segment none of whose batches has an epoch that counts."""
    return (EpochStart(NOT_COUNTED, start_offset),)


def epoch_at(epochs: Sequence[EpochStart], offset: int) -> int:
    """The epoch of a batch that begins at `offset`; -1: none.

    The first entry starts with the segment. It also counts below its start, as the segment's first
    batch may begin there.
    """
    epoch = epochs[0].epoch if epochs else NOT_COUNTED
    for entry in epochs:
        if entry.start_offset <= offset:
            epoch = entry.epoch
    return epoch


def rising(epochs: Iterable[EpochStart]) -> tuple[EpochStart, ...]:
    """Those that count, each once, as in Kafka's cache."""
    rising_epochs: list[EpochStart] = []
    for entry in epochs:
        if entry.epoch > (rising_epochs[-1].epoch if rising_epochs else NOT_COUNTED):
            rising_epochs.append(entry)
    return tuple(rising_epochs)


def are_those_of(log: Sequence[EpochStart], recorded: Sequence[EpochStart]) -> bool:
    """Whether a log with epochs `log`, read without its leader, may have the `recorded` ones."""
    if not recorded:
        return not log
    starts = {entry.start_offset for entry in (*log, *recorded)}
    return all(
        epoch_at(recorded, offset) in (NOT_COUNTED, epoch_at(log, offset)) for offset in starts
    )
