"""All readers of the metadata topic agree, whatever was written and whenever they read it.

The events are of every kind, legal or not, repeated and late. Readers run with and without a cache;
they end in order or by a crash at any moment, with files torn at any byte.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from memory_metadata_log import MemoryMetadataLog
from memory_object_store import MemoryObjectStore
from metadata_contract import OTHER, TP, DeleteState, State, now, segment
from topic_backing import PARTITIONS, Manager

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.metadata import flat_files as kept_events
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.flat_files import COMMITTED
from fetchproxy.metadata.topic_based import metadata_partition
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from fetchproxy.segments.records import LogStartOffset, MetadataEvent, encode_message
from fetchproxy.storage.remote_storage import RemoteStorage

SEEDS = range(40)
TPS = (TP, OTHER)


def events(rng: random.Random) -> Iterator[MetadataEvent]:
    """Few segments and many events, so that events meet the same segment in every state."""
    events_sent: list[MetadataEvent] = []
    while True:
        tp = rng.choice(TPS)
        kind = rng.random()
        event: MetadataEvent
        if events_sent and kind < 0.15:
            event = rng.choice(events_sent)  # a late repeat
        elif kind < 0.25:
            event = LogStartOffset(tp, rng.randrange(60), rng.randrange(9))
        elif kind < 0.32:
            state = rng.choice(list(DeleteState))
            event = RemotePartitionDeleteMetadata(tp, state, rng.randrange(9), rng.randrange(3))
        else:
            event = _segment(rng, tp)
        events_sent.append(event)
        yield event


def _segment(rng: random.Random, tp: TopicIdPartition) -> RemoteLogSegmentMetadata:
    number = rng.randrange(6)
    state = rng.choice([State.COPY_SEGMENT_FINISHED, *State])
    metadata = segment(number, 10 * number, 10 * number + 12, state, tp, rng.randrange(9))
    metadata = replace(metadata, segment_leader_epochs=(EpochStart(number, 10 * number),))
    if state is State.COPY_SEGMENT_FINISHED and rng.random() < 0.3:
        end = 10 * number + rng.randrange(12)
        metadata = replace(metadata, end_offset=end, copied_end_offset=10 * number + 12)
    return metadata


def replayed(events_sent: list[MetadataEvent]) -> dict[TopicIdPartition, object]:
    """The result of the tables alone, from the first event on."""
    tables = {tp: PartitionTable(tp) for tp in TPS}
    for event in events_sent:
        tables[event.topic_id_partition].apply(event)
    return {
        tp: (tuple(table.segments()), table.raised_log_start, table.deletion)
        for tp, table in tables.items()
    }


async def states_of(manager: Manager) -> dict[TopicIdPartition, object]:
    states: dict[TopicIdPartition, object] = {}
    for tp in TPS:
        view = await manager.refresh(tp, now())
        deletion = await manager.partition_deletion(tp, now())
        states[tp] = (manager.list_remote_log_segments(tp), view.raised_log_start, deletion)
    return states


def names(cache: Path) -> set[str]:
    return {file.name for file in cache.rglob("*.remote-log-metadata")}


def crash(rng: random.Random, cache: Path, snapshot: Path) -> None:
    """Restore an old copy of the cache, or only its old commit, so that the files are ahead of it.

    One file may have reached the disk only in part.
    """
    if rng.random() < 0.5:
        shutil.rmtree(cache)
        shutil.copytree(snapshot, cache)
    elif names(snapshot) and names(snapshot) == names(cache):
        # Deleted partitions' files go only after a commit, so no file can be missing.
        shutil.copy(snapshot / COMMITTED, cache / COMMITTED)
    files = sorted(cache.rglob("*.remote-log-metadata"))
    if files and rng.random() < 0.5:
        torn = rng.choice(files)
        torn.write_bytes(torn.read_bytes()[: -rng.randrange(1, 120)])


@pytest.mark.parametrize("seed", SEEDS)
async def test_all_readers_agree(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_events, "FLUSH_PAUSE_S", 0.0)
    rng = random.Random(seed)
    log = MemoryMetadataLog(PARTITIONS)
    cache, snapshot = tmp_path / "cache", tmp_path / "snapshot"
    cache.mkdir()
    snapshot.mkdir()
    coming, events_sent = events(rng), list[MetadataEvent]()

    def manager(cache_dir: Path | None = None) -> Manager:
        storage = RemoteStorage(MemoryObjectStore(), "archive")
        return Manager(log, storage, MetadataConfig(cache_dir=cache_dir), lambda: 0)

    async def write_some() -> None:
        for _ in range(rng.randrange(25)):
            event = next(coming)
            events_sent.append(event)
            number = metadata_partition(event.topic_id_partition, PARTITIONS)
            await log.append(number, encode_message(event))

    async with manager() as steady:
        for _ in range(4):
            await write_some()
            async with manager(cache) as restarted:
                for _ in range(rng.randrange(3)):
                    await write_some()
                    expected = replayed(events_sent)
                    assert await states_of(restarted) == expected
                    assert await states_of(steady) == expected
                    if rng.random() < 0.4:
                        async with (
                            restarted._follower._cached_events._disk
                        ):  # no write is in progress
                            shutil.rmtree(snapshot)
                            shutil.copytree(cache, snapshot)
            if rng.random() < 0.5:
                crash(rng, cache, snapshot)
        async with manager(cache) as last, manager() as fresh:
            assert await states_of(last) == await states_of(steady) == await states_of(fresh)
            assert await states_of(fresh) == replayed(events_sent)
