"""Damaged archives through `verify --repair`: no log is touched, nothing right is made wrong, and
each damage is named with its place."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from damaged_archives import (
    INDEX,
    LOG,
    METADATA,
    TXN,
    Damager,
    Objects,
    SoundArchive,
    contents,
    hidden,
    meaning,
)
from planted_archive import FINISHED
from test_repair import repair

from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.segments.object_keys import parse_log_start_key
from fetchproxy.segments.remote_log_index import RemoteLogIndex

ARCHIVES = 400
ARCHIVES_SLOW = 10_000


class Trial:
    """One archive; `what` says how it can be made again."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = Random(seed)

    async def run(self) -> None:
        self.archive = await SoundArchive(self._rng).make()
        report = await self.archive.verify()
        assert report.clean, (self.seed, report.faults)
        assert not report.not_known, (self.seed, report.not_known)
        self.sound = await contents(self.archive)
        damager = Damager(self._rng, self.archive)
        await damager.damage()
        self.twins = damager.twins
        self.what = f"seed {self.seed}: {'; '.join(damager.done)}"
        self.damaged = await contents(self.archive)
        report_before, outcome = await repair(self.archive)
        self.what += f"\n{[f.where_and_what for f in report_before.faults]}\n{outcome.repairs}"
        self.what += f"\n{outcome.refusals}"
        repaired = await contents(self.archive)
        self.check_repaired(repaired)
        self.check_named(self.damaged, report_before)
        self.check_named(repaired, await self.archive.verify())

    def check_repaired(self, repaired: Objects) -> None:
        for key in {*self.damaged, *repaired}:
            if self.damaged.get(key) == repaired.get(key):
                continue
            parsed = self.archive.storage.rsm.parse_key(key)
            assert parsed is not None, f"{self.what}\n{key} is nothing that can be derived"
            assert parsed.file is not LOG, f"{self.what}\n{key} was touched"
            twin_of = self.twins.get(parsed.segment_id.id)
            if twin_of is not None:
                self.check_twin(key, self.archive.key(twin_of, parsed.file), repaired)
                continue
            right, value_after = self.means(self.sound, key), self.means(repaired, key)
            assert value_after == right, f"{self.what}\n{key} is {value_after}, was {right}"

    def check_twin(self, key: str, twin_of: str, repaired: Objects) -> None:
        """A second copy whose objects were not all there: it may be made whole, as the first is."""
        right, value_after = self.means(self.sound, twin_of), self.means(repaired, key)
        if isinstance(value_after, RemoteLogSegmentMetadata) and right is not None:
            assert isinstance(right, RemoteLogSegmentMetadata)
            right = replace(right, segment_id=value_after.segment_id)
        if key.endswith(INDEX):
            right, value_after = (
                tuple(RemoteLogIndex.parse(o[k]).spans())
                for o, k in ((self.sound, twin_of), (repaired, key))
            )
        assert value_after == right, f"{self.what}\n{key} is {value_after}, the first one {right}"

    def means(self, objects: Objects, key: str) -> object:
        return meaning(self.archive, objects, key)

    def check_named(self, objects: Objects, report: VerifyReport) -> None:
        named = {fault.object_key for fault in report.faults}
        for key in sorted({*objects, *self.sound}):
            if self.means(self.sound, key) == self.means(objects, key) or key in named:
                continue
            parsed = self.archive.storage.rsm.parse_key(key)
            if parsed is None:
                # What it had told is not known now, or taken for lost.
                is_reported = bool(report.not_known or named) or not report.partitions
            else:
                is_reported = parsed.segment_id.id in self.twins or self.is_told(
                    key, objects, report
                )
            assert is_reported, f"{self.what}\n{key} is not named: {report}"

    def is_told(self, key: str, objects: Objects, report: VerifyReport) -> bool:
        """By a fault of the same segment, or by the offsets that are gone with the segment."""
        named = {fault.object_key for fault in report.faults}
        stem = key.rpartition(".")[0]
        if any(name.rpartition(".")[0] == stem for name in named):
            return True  # after the worst of it little more can be told
        (own_segment,) = (
            s for s in self.archive.segments if self.archive.key(s, LOG).startswith(stem)
        )
        finished = self.finished(objects)
        if own_segment.segment_id not in {segment.segment_id for segment in finished}:
            log_start = self.log_start(objects)
            expected_offsets = [o for o in offsets(own_segment) if o >= log_start]
            return all(is_accounted_for(o, finished, report) for o in expected_offsets)
        if not key.endswith(TXN):
            return False
        # Entries of transactions that begin in what cannot be read are believed; and one of which
        # the segment has no batch does nothing.
        log = self.sound[f"{stem}.{LOG}"]
        return bool(named) or hidden(log, self.sound[key]) == hidden(log, objects.get(key))

    def log_start(self, objects: Objects) -> int:
        every = (parse_log_start_key("archive/", key) for key in objects)
        return max((element[0] for element in every if element is not None), default=0)

    def finished(self, objects: Objects) -> list[RemoteLogSegmentMetadata]:
        every = [(key, self.means(objects, key)) for key in objects if key.endswith(METADATA)]
        return [
            stored_object
            for key, stored_object in every
            if isinstance(stored_object, RemoteLogSegmentMetadata)
            and stored_object.state is FINISHED
            and self.archive.key(stored_object, METADATA) == key
        ]


def offsets(segment: RemoteLogSegmentMetadata) -> range:
    return range(segment.start_offset, segment.end_offset + 1)


def is_accounted_for(
    offset: int, segments: Sequence[RemoteLogSegmentMetadata], report: VerifyReport
) -> bool:
    """Another segment has it, it is named as missing, or what has it cannot be told."""
    if report.not_known or not report.partitions:
        return True  # where nothing is left, nothing is known
    if any(offset in offsets(segment) for segment in segments):
        return True
    for fault in report.faults:
        missing = re.search(r"offsets (\d+) to (\d+) were archived", fault.what)
        if missing and int(missing[1]) <= offset <= int(missing[2]):
            return True
        if (fault.object_key or "").endswith(METADATA) and (fault.first_offset or 0) <= offset:
            return True
    return False


@pytest.mark.parametrize("seed", [19_477, 24_652, 26_479, 46_329])
def test_rare_damage(seed: int) -> None:
    """A transaction index in the place of one whose transactions no later segment of its chain
    tells of; metadata from before a clip, below a segment of which nothing can be told; a leader
    epoch of a batch that lies above a clipped segment's end; a negative one of the only batch."""
    run(range(seed, seed + 1))


@pytest.mark.parametrize("block", range(4))
def test_damaged_archives(block: int) -> None:
    """A seed that fails is printed; it alone makes archive and damage again."""
    run(range(block * ARCHIVES // 4, (block + 1) * ARCHIVES // 4))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_damaged_archives(block: int) -> None:
    run(range(block * ARCHIVES_SLOW // 20, (block + 1) * ARCHIVES_SLOW // 20))


def run(seeds: range) -> None:
    async def every() -> None:
        for seed in seeds:
            await Trial(seed).run()

    asyncio.run(every())
