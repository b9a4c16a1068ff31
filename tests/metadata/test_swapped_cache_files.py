"""The cache files of two partitions change places: each is noticed, reported once, and rebuilt."""

from __future__ import annotations

import asyncio
from pathlib import Path

from memory_metadata_log import MemoryMetadataLog
from segment_values import STARTED, TP, segment
from structlog.testing import capture_logs

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.metadata.topic_based import TopicFollower

OTHER = TP._replace(partition=TP.partition + 1)


async def known(config: MetadataConfig, log: MemoryMetadataLog) -> list[list[object]]:
    now = asyncio.get_running_loop().time()
    async with TopicFollower(log, config.cache_dir) as follower:
        return [list((await follower.table(tp, now)).segments()) for tp in (TP, OTHER)]


async def test_swapped_files_are_made_anew(tmp_path: Path) -> None:
    config, log = MetadataConfig(cache_dir=tmp_path), MemoryMetadataLog(partitions=1)
    async with TopicFollower(log, config.cache_dir) as follower:
        for tp, number in ((TP, 1), (TP, 2), (OTHER, 3)):
            assert await follower.append(segment(number, 0, 9, STARTED, tp=tp)) is None
    right = await known(config, log)
    assert [len(segments) for segments in right] == [2, 1]
    one, other = sorted(tmp_path.rglob("*.remote-log-metadata"))
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    with capture_logs() as logs:
        assert await known(config, log) == right
    assert [e["event"] for e in logs].count("metadata_cache_damaged") == 2
    with capture_logs() as logs:
        assert await known(config, log) == right
    assert not [e for e in logs if e["event"] == "metadata_cache_damaged"]
