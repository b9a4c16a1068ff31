"""Archives of a log that hypothesis makes up: transactions across segments, changes of leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fetchproxy_protocol.record_batch import walk
from hypothesis import strategies as st
from planted_archive import ABORT, COMMIT, TP, PlantedArchive, batch

from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.model import EpochStart
from fetchproxy.segments.contents import SegmentSummary
from fetchproxy.segments.remote_log_index import INTERVAL_BYTES

PRODUCERS = (7, 8, 9)


@dataclass(frozen=True)
class GeneratedLog:
    """Whole batches; `cuts` are the numbers of those with which a segment begins."""

    batches: tuple[bytes, ...]
    cuts: tuple[int, ...]
    aborted: tuple[tuple[int, int, int], ...]  # producer, first offset, marker

    def segments(self) -> list[tuple[bytes, ...]]:
        starts = (0, *self.cuts)
        ends = (*self.cuts, len(self.batches))
        return [self.batches[a:b] for a, b in zip(starts, ends, strict=True)]


@st.composite
def logs(draw: st.DrawFn) -> GeneratedLog:
    """Every transaction ends: what the archive shows of one that does not is another matter."""
    offset, epoch, made = 0, 0, []
    opened: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []

    def put(**more: int) -> None:
        nonlocal offset
        # Timestamps go up and down, so that the largest one is anywhere.
        made.append(batch(offset, epoch=epoch, timestamp=(offset * 37) % 101, **more))
        offset = next(iter(walk(made[-1]))).last_offset + 1

    def end(producer: int, how: int) -> None:
        first = opened.pop(producer)
        if how == ABORT:
            aborted.append((producer, first, offset))
        put(txn=producer, control=how)

    for step in draw(st.lists(st.integers(0, 9), min_size=2, max_size=30)):
        producer = PRODUCERS[step % 3]
        if step >= 8:
            epoch += 1
        if step >= 5:
            put()
        elif producer in opened and step >= 2:
            end(producer, draw(st.sampled_from((ABORT, COMMIT))))
        else:
            opened.setdefault(producer, offset)
            put(txn=producer)
    for producer in list(opened):
        end(producer, draw(st.sampled_from((ABORT, COMMIT))))
    cuts = draw(st.sets(st.integers(1, len(made) - 1), max_size=4)) if len(made) > 1 else set()
    return GeneratedLog(tuple(made), tuple(sorted(cuts)), tuple(aborted))


async def archived(log: GeneratedLog) -> PlantedArchive:
    """As the archiver accumulates and copies it."""
    archive = PlantedArchive()
    lineage: Sequence[EpochStart] = ()
    start = 0
    for batches in log.segments():
        summary = SegmentSummary(TP, start)
        content = b"".join(batches)
        headers = list(walk(content))
        last = headers[-1].last_offset
        # A fetch reports the aborted transactions that overlap what it returns.
        summary.report((p, first) for p, first, marker in log.aborted if marker >= start > -1)
        for header in headers:
            summary.add(content, header)
        accumulated = summary.close(Path(), settled=True)
        lineage = extend_lineage(lineage, accumulated.leader_epochs)
        await archive.add(
            batches,
            start=start,
            aborted=accumulated.aborted,
            lineage=tuple(lineage),
            epochs=accumulated.leader_epochs,
            index_interval_bytes=INTERVAL_BYTES,
        )
        start = last + 1
    return archive
