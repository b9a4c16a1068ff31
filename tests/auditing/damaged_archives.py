"""Archives that were sound, and what was done to some of their objects. All from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from uuid import UUID

from derivable_archive import PRODUCERS, GeneratedLog
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import walk
from planted_archive import ABORT, COMMIT, TP, PlantedArchive, batch

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from fetchproxy.segments.check import clip_epochs
from fetchproxy.segments.contents import SegmentSummary
from fetchproxy.segments.description import decode_finished_offsets, decode_segment, encode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import INTERVAL_BYTES, RemoteLogIndex
from fetchproxy.segments.side_files import ENTRY_BYTES, clip_aborted, decode_aborted, decode_epochs

LOG, INDEX, TXN = SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.TXN
EPOCHS, METADATA = SegmentFile.EPOCHS, SegmentFile.METADATA
FILES = (LOG, INDEX, TXN, EPOCHS, METADATA)
Objects = dict[str, bytes]


def random_log(rng: Random) -> GeneratedLog:
    """As `derivable_archive.logs`: every transaction ends."""
    offset, epoch, made = 0, 0, []
    opened: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []

    def put(**more: int) -> None:
        nonlocal offset
        records = rng.choice((1, 3, 10))
        made.append(batch(offset, records, epoch=epoch, timestamp=(offset * 37) % 101, **more))
        offset = next(iter(walk(made[-1]))).last_offset + 1

    def end(producer: int) -> None:
        how, first = rng.choice((ABORT, COMMIT)), opened.pop(producer)
        if how == ABORT:
            aborted.append((producer, first, offset))
        put(txn=producer, control=how)

    for _ in range(rng.randint(2, 24)):
        producer, step = rng.choice(PRODUCERS), rng.random()
        if step < 0.1:
            epoch += 1
        if step < 0.35:
            put()
        elif producer in opened and step < 0.7:
            end(producer)
        else:
            opened.setdefault(producer, offset)
            put(txn=producer)
    for producer in list(opened):
        end(producer)
    cuts = rng.sample(range(1, len(made)), min(len(made) - 1, rng.randint(0, 5)))
    return GeneratedLog(tuple(made), tuple(sorted(cuts)), tuple(aborted))


@dataclass
class SoundArchive:
    """Segments; perhaps a merged copy of some, a clipped one, a gap, a raised log start."""

    rng: Random
    archive: PlantedArchive = field(default_factory=PlantedArchive)
    lineage: tuple[EpochStart, ...] = ()

    async def make(self) -> PlantedArchive:
        log = random_log(self.rng)
        batches = log.segments()
        lineages = [self.lineage]
        for segment in batches:
            await self._copy(log, segment, lineages[-1])
            lineages.append(self.lineage)
        if len(batches) > 1 and self.rng.random() < 0.3:
            first = self.rng.randrange(len(batches) - 1)
            last = self.rng.randint(first + 1, len(batches) - 1)
            merged_report = tuple(b for segment in batches[first : last + 1] for b in segment)
            end = self.lineage
            await self._copy(log, merged_report, lineages[first])
            self.lineage = end
        if self.rng.random() < 0.25:
            await self._truncated()
        if self.rng.random() < 0.25:
            await self._behind_a_gap()
        if len(batches) > 1 and self.rng.random() < 0.2:
            await self._expired()
        return self.archive

    async def _copy(
        self, log: GeneratedLog | None, batches: Sequence[bytes], before: tuple[EpochStart, ...]
    ) -> RemoteLogSegmentMetadata:
        """As the archiver or a merger makes it."""
        content = b"".join(batches)
        headers = list(walk(content))
        start = headers[0].base_offset
        summary = SegmentSummary(TP, start)
        if log is not None:
            summary.report((p, first) for p, first, marker in log.aborted if marker >= start)
        for header in headers:
            summary.add(content, header)
        accumulated = summary.close(Path(), settled=True)
        self.lineage = extend_lineage(before, accumulated.leader_epochs)
        return await self.archive.add(
            batches,
            start=start,
            aborted=accumulated.aborted,
            lineage=self.lineage,
            epochs=accumulated.leader_epochs,
            index_interval_bytes=INTERVAL_BYTES,
        )

    @property
    def _end(self) -> int:
        return max(segment.end_offset for segment in self.archive.segments) + 1

    @property
    def _epoch(self) -> int:
        return self.lineage[-1].epoch

    async def _truncated(self) -> None:
        """Three batches of a leader, of which the next leader knows one or two."""
        at, epoch, batches_kept = self._end, self._epoch, self.rng.randint(1, 2)
        before = self.lineage
        copied = await self._copy(None, [batch(at + n, epoch=epoch) for n in (0, 10, 20)], before)
        cut = at + 10 * batches_kept - 1
        clipped = replace(copied.clipped(cut), max_timestamp_ms=cut)
        await self.archive.restate(clipped)
        self.archive.segments[-1] = clipped
        await self._copy(None, [batch(cut + 1, epoch=epoch + 1)], before)

    async def _behind_a_gap(self) -> None:
        at, epoch = self._end, self._epoch
        await self.archive.record_gap(at, at + 4)
        batches = [batch(at + 5, epoch=epoch), batch(at + 15, epoch=epoch)]
        await self._copy(None, batches, self.lineage)

    async def _expired(self) -> None:
        """The first segment went by retention."""
        first = min(self.archive.segments, key=lambda s: (s.start_offset, s.end_offset))
        for file in SegmentFile:
            await self.archive.store.delete(self.archive.key(first, file))
        self.archive.segments.remove(first)
        log_start = first.end_offset + 1
        await self.archive.storage.objects.put_log_start_offset(TP, log_start, b"{}")
        await self.archive.state(recorded_from=0, log_start_offset=log_start)


@dataclass
class Damager:
    """`done` says what it did, in words."""

    rng: Random
    archive: PlantedArchive
    done: list[str] = field(default_factory=list)
    twins: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)  # of which segment

    async def damage(self) -> None:
        for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3))):
            how = self.rng.choice(
                (self.cut, self.cut_at_border, self.flip, self.flip, self.lose, self.lose,
                 self.lose_segment, self.swap, self.copy_over, self.twin, self.stale, self.extend,
                 self.other_object)
            )  # fmt: skip
            await how()

    async def cut(self) -> None:
        key = await self._some_key()
        if key is not None and (raw := await self._get(key)):
            await self._put("cut", key, raw[: self.rng.randrange(len(raw))])

    async def cut_at_border(self) -> None:
        """What is left is whole batches, or whole entries."""
        segment, file = self._some(), self.rng.choice((LOG, LOG, LOG, INDEX, TXN))
        key = self.archive.key(segment, file)
        if not (raw := await self._get(key)):
            return
        try:
            if file is LOG:
                ends = [header.end for header in walk(raw)]
            elif file is INDEX:
                ends = [raw[3] * n for n in range(1, len(list(RemoteLogIndex.parse(raw).spans())))]
            else:
                ends = list(range(ENTRY_BYTES, len(raw) + 1, ENTRY_BYTES))
        except Exception:  # noqa: BLE001 - it is damaged already
            return
        await self._put("cut at a border", key, raw[: self.rng.choice([0, *ends[:-1]])])

    async def flip(self) -> None:
        key = await self._some_key()
        if key is not None and (raw := await self._get(key)):
            at = self.rng.randrange(len(raw))
            flipped = bytes([raw[at] ^ (1 << self.rng.randrange(8))])
            await self._put(f"byte {at} flipped", key, raw[:at] + flipped + raw[at + 1 :])

    async def lose(self) -> None:
        key = await self._some_key()
        if key is not None:
            await self._lose(key)

    async def lose_segment(self) -> None:
        segment = self._some()
        for file in FILES:
            await self._lose(self.archive.key(segment, file))

    async def swap(self) -> None:
        """Objects of one kind change places."""
        file = self.rng.choice(FILES)
        one, other = (self.archive.key(self._some(), file) for _ in range(2))
        raws = await self._get(one), await self._get(other)
        if one != other and raws[0] is not None and raws[1] is not None:
            await self._put("swapped", one, raws[1])
            await self._put("swapped", other, raws[0])

    async def copy_over(self) -> None:
        file = self.rng.choice(FILES)
        one, other = (self.archive.key(self._some(), file) for _ in range(2))
        raw = await self._get(one)
        if one != other and raw is not None and await self._get(other) is not None:
            await self._put("overwritten", other, raw)

    async def twin(self) -> None:
        """Some of a segment's objects once more, under an id of their own."""
        segment = self._some()
        twin_id = RemoteLogSegmentId(TP, UUID(int=self.rng.getrandbits(128)))
        twin = replace(segment, segment_id=twin_id)
        self.twins[twin_id.id] = segment
        for file in FILES:
            raw = await self._get(self.archive.key(segment, file))
            if raw is not None and self.rng.random() < 0.7:
                content = encode_segment(twin) if file is METADATA else raw
                await self._put("twin", self.archive.key(twin, file), content)

    async def stale(self) -> None:
        """Metadata as they were before."""
        segment = self._some()
        older = [replace(segment, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)]
        if segment.copied_end_offset is not None:
            end = segment.copied_end_offset
            older.append(
                replace(segment, end_offset=end, copied_end_offset=None, max_timestamp_ms=end)
            )
        key = self.archive.key(segment, METADATA)
        await self._put("stale", key, encode_segment(self.rng.choice(older)))

    async def extend(self) -> None:
        """Behind a log lies what begins another one, which may well follow it."""
        segment, other = self._some(), self._some()
        key = self.archive.key(segment, LOG)
        raw, more = await self._get(key), await self._get(self.archive.key(other, LOG))
        if raw is not None and more:
            size = self.rng.choice((len(more), len(more), self.rng.randint(1, len(more))))
            await self._put("extended", key, raw + more[:size])

    async def other_object(self) -> None:
        """What is on record of the partition."""
        folder = self.archive.storage.objects.folder(TP)
        every = [key for key in await contents(self.archive) if key.startswith(folder)]
        keys = [key for key in every if self.archive.storage.rsm.parse_key(key) is None]
        if keys:
            key = self.rng.choice(keys)
            raw = await self._get(key) or b"-"
            if self.rng.random() < 0.5:
                await self._lose(key)
            else:
                await self._put("cut", key, raw[: len(raw) // 2])

    def _some(self) -> RemoteLogSegmentMetadata:
        return self.rng.choice(self.archive.segments)

    async def _some_key(self) -> str | None:
        segment = self._some()
        keys = [self.archive.key(segment, file) for file in FILES]
        there = [key for key in keys if await self._get(key) is not None]
        return self.rng.choice(there) if there else None

    async def _get(self, key: str) -> bytes | None:
        stored_entry = self.archive.store._objects.get(key)
        return None if stored_entry is None else stored_entry[0]

    async def _put(self, how: str, key: str, content: bytes) -> None:
        self.done.append(f"{how}: {key}")
        await self.archive.store.put(key, content)

    async def _lose(self, key: str) -> None:
        self.done.append(f"lost: {key}")
        await self.archive.store.delete(key)


async def contents(archive: PlantedArchive) -> Objects:
    return {o.key: await archive.store.get(o.key) async for o in archive.store.list("")}


def meaning(archive: PlantedArchive, objects: Objects, key: str) -> object:
    """What an object tells a reader; None: it is not there.

    Of metadata not when they were written, of a transaction index not the last stable offsets,
    which nobody reads, of leader epochs the segment's own, as nothing else repeats those before it.
    Of batches above the end of a clipped segment, which nobody is given, not their leader epochs,
    which no checksum covers.
    """
    raw = objects.get(key)
    parsed = archive.storage.rsm.parse_key(key)
    if raw is None:
        return None
    own_segments = [s for s in archive.segments if parsed and s.segment_id == parsed.segment_id]
    end = own_segments[0].end_offset if own_segments else 2**62
    try:
        if parsed is None:
            if not key.endswith("finished-offsets"):
                return "there"
            return decode_finished_offsets(raw, key, TP)
        if parsed.file is METADATA:
            return replace(decode_segment(raw, key), event_timestamp_ms=0)
        if parsed.file is LOG:
            return without_epochs_above(raw, end)
        if parsed.file is TXN:
            entries = clip_aborted(decode_aborted(raw), end)
            return {replace(entry, last_stable_offset=0) for entry in entries}
        if parsed.file is EPOCHS:
            return clip_epochs(decode_epochs(raw), parsed.base_offset, end)
    except CorruptSegment:
        pass
    return raw


def without_epochs_above(log: bytes, end_offset: int) -> bytes:
    changed_log = bytearray(log)
    with suppress(WireError):
        for header in walk(log):
            if header.base_offset > end_offset:
                changed_log[header.position + 12 : header.position + 16] = bytes(4)
    return bytes(changed_log)


def hidden(log: bytes, aborted: bytes | None) -> set[int]:
    """The base offsets of the batches that a reader of committed records is not given.

    Raises CorruptSegment.
    """
    entries = decode_aborted(aborted or b"")
    return {
        header.base_offset
        for header in walk(log)
        for entry in entries
        if header.producer_id == entry.producer_id
        and not header.is_control
        and entry.first_offset <= header.base_offset <= entry.last_offset
    }
