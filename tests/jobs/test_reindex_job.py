"""What is lost beside a log is made from it again; what a log has lost stays a fault."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from planted_archive import TP, PlantedArchive, batch, flip
from stored_archives import config_of, planted

from fetchproxy.auditing.reports import RepairReport
from fetchproxy.jobs.restore import grouped
from fetchproxy.jobs.verify import reindex_work, verify_work
from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import INTERVAL_BYTES


@pytest.fixture
def archive(tmp_path: Path) -> PlantedArchive:
    async def plant() -> PlantedArchive:
        made = planted(tmp_path)
        for base in (0, 20):
            batches = [batch(base), batch(base + 10)]
            await made.add(batches, index_interval_bytes=INTERVAL_BYTES)
        first, second = made.segments
        await made.store.delete(made.key(first, SegmentFile.INDEX))
        await made.store.delete(made.key(second, SegmentFile.METADATA))
        return made

    return asyncio.run(plant())


def test_indexes_and_metadata_come_back_from_the_logs(
    archive: PlantedArchive, tmp_path: Path
) -> None:
    config = config_of(tmp_path)
    before = {s.start_offset: s for s in archive.segments}
    planned = reindex_work(config, True)(TP)
    # The index beside the lost metadata comes along: it names its log below a prefix.
    assert [text.rpartition(".")[2] for text in planned.repaired.repairs] == [
        "index: derived from the log",
        "index: derived from the log",
        "metadata: derived from the log",
    ]
    assert len(planned.left) == 2
    assert not verify_work(config)(TP).clean
    outcome = reindex_work(config, False)(TP)
    assert outcome.repaired == planned.repaired
    assert outcome.left == ()
    report = verify_work(config)(TP)
    assert report.clean
    assert (report.segments, report.size_bytes) == (
        len(before),
        sum(s.segment_size_bytes for s in before.values()),
    )
    again = reindex_work(config, False)(TP)
    assert (again.repaired, again.left) == (RepairReport(), ())


def test_a_corrupt_log_stays_a_fault_and_keeps_nothing_else_from_being_mended(
    archive: PlantedArchive, tmp_path: Path
) -> None:
    broken = archive.segments[1]
    asyncio.run(archive.change(broken, SegmentFile.LOG, flip(100)))
    outcome = reindex_work(config_of(tmp_path), False)(TP)
    assert len(outcome.repaired.repairs) == 1
    assert ".index" in outcome.repaired.repairs[0]
    assert any("CRC-32C" in refusal for refusal in outcome.repaired.refusals)
    assert outcome.left


def test_partitions_whose_events_lie_together_share_a_task() -> None:
    tps = [TopicIdPartition(UUID(int=9), "t", partition) for partition in range(200)]
    groups = grouped(tps, 7)
    assert len(groups) == 7
    assert sorted(tp for group in groups for tp in group) == sorted(tps)
