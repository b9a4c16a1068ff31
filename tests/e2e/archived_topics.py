"""Topics whose first records the broker has deleted, and settings that archive them soon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from proxy_process import wait_for
from topic_data import TopicData, archived_ends, trim

from lab.kafka import KafkaServer

MakeReplayed = Callable[..., TopicData]  # (codec, partition_count=1)

# Small segments and chunks, so that small topics cross many borders, and a fast archiver.
SETTINGS: dict[str, object] = {
    "archive.segment_bytes_max": 40_000,
    "archive.segment_age_max_ms": 300,
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.rlm_retry_interval_ms": 200,
    "limits.writing.discovery_interval_ms": 200,
    "limits.reading.chunk_bytes": 16_384,
}

# Nothing stays cached and nothing is read ahead: a reader needs the store all the time.
NO_MEMORY: dict[str, object] = {
    "remote_fetch.chunk_cache_bytes_max": 20_000,
    "limits.reading.read_ahead_chunks_max": 0,
}


def archive_and_trim(bootstrap: str, store: str, data: TopicData, keep: int = 100) -> None:
    """Wait until all is archived; then trim the broker's log to about `keep` records a partition.

    The cut is inside a batch, and at a different offset in each partition.
    """
    ends = data.ends(bootstrap)
    wait_for(f"archive of {ends}", lambda: archived_ends(store, data.topic) == ends)
    trim(bootstrap, data.topic, {p: end - keep + 7 * p + 3 for p, end in ends.items()})


def new_store(folder: Path) -> str:
    """A folder that is there: a missing one is an outage."""
    (folder / "store").mkdir()
    return (folder / "store").as_uri()


def new_topic(kafka: KafkaServer, name: str, partition_count: int = 1) -> TopicData:
    kafka.create_topic(name, partition_count)
    return TopicData(name)
