"""What an executor finds in its partition is what `fetchproxy verify` finds in the archive."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from planted_archive import TP, PlantedArchive, batch, flip
from stored_archives import PREFIX, config_of, planted
from test_spread import Session

from fetchproxy.errors import RemoteStorageError
from fetchproxy.jobs.runner import Here, OnSpark
from fetchproxy.jobs.verify import fault_rows, merged_report, repair, verify, verify_work
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition
from fetchproxy.segments.object_keys import SegmentFile

OTHER = TopicIdPartition(UUID(int=1), "orders", 1)


@pytest.fixture
def archive(tmp_path: Path) -> PlantedArchive:
    """Two partitions; a corrupt byte in one, a missing object in the other."""

    async def plant() -> PlantedArchive:
        made = planted(tmp_path)
        first = await made.add([batch(0), batch(10)])
        await made.add([batch(20), batch(30)])
        lost = await made.add([batch(0)], tp=OTHER)
        await made.change(first, SegmentFile.LOG, flip(70))
        await made.store.delete(made.key(lost, SegmentFile.INDEX))
        return made

    return asyncio.run(plant())


def test_partition_by_partition_finds_what_the_whole_run_finds(
    archive: PlantedArchive, tmp_path: Path
) -> None:
    whole = asyncio.run(archive.verify())
    assert len(whole.faults) == 2
    config = config_of(tmp_path)
    report_together = merged_report(map(verify_work(config), (TP, OTHER)))
    # The archive is opened at its folder here, there as a prefix of the store.
    faults = [replace(f, object_key=f"{PREFIX}/{f.object_key}") for f in report_together.faults]
    assert replace(report_together, faults=faults) == whole


def test_both_runners_find_the_same_in_the_same_order(
    archive: PlantedArchive, tmp_path: Path
) -> None:
    conditions: list[list[Condition]] = [[], []]
    here = verify(Here(), config_of(tmp_path), on_fault=conditions[0].append)
    there = verify(OnSpark(Session()), config_of(tmp_path), on_fault=conditions[1].append)
    assert here == there
    assert len(conditions[0]) == 2
    assert conditions[0] == conditions[1]


def test_both_runners_repair_the_same(archive: PlantedArchive, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    faults = verify(Here(), config).report.faults
    planned = [
        repair(runner, config, faults, dry_run=True) for runner in (Here(), OnSpark(Session()))
    ]
    assert planned[0] == planned[1]
    outcome = repair(Here(), config, faults)
    assert outcome == planned[0]
    assert sum(len(partition.repairs) for partition in outcome[0].results) == 1
    (fault_left,) = verify(Here(), config).report.faults
    assert fault_left.partition == 0


def test_a_fault_is_a_row_that_says_where(archive: PlantedArchive, tmp_path: Path) -> None:
    (row,) = fault_rows(verify_work(config_of(tmp_path))(OTHER).faults)
    assert row[:2] == ("orders", 1)
    assert row[2].endswith(".index")
    assert row[5] == "object is missing"


def test_a_store_that_is_away_is_no_clean_partition(tmp_path: Path) -> None:
    with pytest.raises(RemoteStorageError):
        verify_work(config_of(tmp_path / "nowhere"))(TP)
