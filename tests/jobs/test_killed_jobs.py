"""Jobs killed in the middle, driver, JVM and workers, and run again: they end as a clean run does.

Backfill and merge stand in `test_spark_jobs`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, TopicPartition
from spark_commands import BOTH, ON_SPARK, Runs, small_segments
from stored_archives import config_at
from topic_data import TopicData, archived_ends, produce
from written_archive import WrittenArchive

from fetchproxy.archive import in_loop, stored_archive, stored_partitions
from fetchproxy.config.load import Setting, load_config
from fetchproxy.jobs.restore import grouped, restore_work
from fetchproxy.segments.object_keys import SegmentFile
from lab.kafka import KafkaServer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark_set_up")]

SEGMENTS = 300  # of each of two partitions


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> WrittenArchive:
    return small_segments(tmp_path_factory.mktemp("made") / "archive", segments=SEGMENTS)


@pytest.fixture
def archive(made: WrittenArchive, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder, tmp_path / "archive"))


def objects(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


@pytest.mark.parametrize("runs", BOTH)
def test_a_reindex_that_is_killed_ends_as_a_clean_one(
    runs: Runs, made: WrittenArchive, archive: Path, tmp_path: Path
) -> None:
    indexes = [
        made.path(segment, SegmentFile.INDEX).relative_to(made.folder) for segment in made.segments
    ]
    for index in indexes:
        (archive / index).unlink()
    clean = Path(shutil.copytree(archive, tmp_path / "clean"))

    def reindex(folder: Path) -> tuple[str, ...]:
        spool = ("--set", f"archive.spool_dir={tmp_path / 'spool'}")
        return ("reindex", "--store", folder.as_uri(), *spool)

    outcome = runs(*reindex(clean))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count(".index: derived from the log") == len(indexes)
    with runs.running(*reindex(archive)) as job:
        job.wait_until(lambda: sum((archive / index).exists() for index in indexes) > 1)
        job.kill()
    missing_indexes = sum(not (archive / index).exists() for index in indexes)
    assert 0 < missing_indexes < len(indexes)
    outcome = runs(*reindex(archive))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count(".index: derived from the log") == missing_indexes
    assert objects(archive) == objects(clean)
    assert runs("verify", "--store", archive.as_uri()).returncode == 0


@pytest.mark.parametrize("runs", BOTH)
def test_a_verify_and_a_report_that_are_killed_change_nothing(
    runs: Runs, made: WrittenArchive, archive: Path, tmp_path: Path
) -> None:
    (archive / made.path(made.segments[7], SegmentFile.INDEX).relative_to(made.folder)).unlink()
    before = objects(archive)
    store = ("--store", archive.as_uri())

    def report(out: Path) -> tuple[str, ...]:
        return ("report", *store, "--out", str(out))

    clean, killed = tmp_path / "clean", tmp_path / "killed"
    verified = runs("verify", *store)
    assert verified.returncode == 1
    assert runs(*report(clean)).returncode == 0
    with runs.running("verify", *store) as job:
        if runs is ON_SPARK:
            job.wait_until(job.workers)
        job.kill()
    with runs.running(*report(killed)) as job:
        job.wait_until(killed.exists)
        job.kill()
    assert runs("verify", *store).stdout == verified.stdout
    assert runs(*report(killed)).returncode == 0
    assert rows(killed) == rows(clean)
    assert (killed / "report.html").exists()
    assert objects(archive) == before


def rows(out: Path) -> list[tuple[object, ...]]:
    """What does not depend on when it was looked at."""
    columns = ("topic", "partition", "segments", "records", "size_bytes", "log_end_offset")
    table = ds.dataset(out / "partitions", format="parquet").to_table()
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


@pytest.mark.parametrize("runs", BOTH)
@pytest.mark.kafka
def test_a_restore_that_is_killed_ends_as_a_clean_one(
    runs: Runs, kafka_server: KafkaServer, archive: Path, create_topic: Callable[..., str]
) -> None:
    """The metadata topic then has each segment, and a further run finds nothing to add."""
    topic = f"__{create_topic(1)}"
    settings = {
        "metadata.manager": "topic",
        "metadata.topic_name": topic,
        "metadata.topic_partitions": "2",
        "metadata.topic_replication_factor": "1",
    }
    more = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    job = ("restore", "--store", archive.as_uri(), "--bootstrap", kafka_server.bootstrap, *more)
    with runs.running(*job) as killed:
        killed.wait_until(lambda: events(kafka_server, topic) > 10)
        killed.kill()
    assert events(kafka_server, topic) < 2 * SEGMENTS
    assert 0 < missing(kafka_server, archive, settings) < 2 * SEGMENTS
    outcome = runs(*job)
    assert outcome.returncode == 0, outcome.stderr
    assert missing(kafka_server, archive, settings) == 0


def events(kafka: KafkaServer, topic: str) -> int:
    """0 also where the topic is not there."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "events"})
    try:
        known = consumer.list_topics(timeout=30.0).topics
        if topic not in known:
            return 0
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30.0)[1]
            for partition in known[topic].partitions
        )
    finally:
        consumer.close()


def missing(kafka: KafkaServer, archive: Path, settings: dict[str, str]) -> int:
    """Segments that a restore would still add, by a dry run."""
    keys = {
        "store.url": archive.as_uri(),
        "cluster.bootstrap": kafka.bootstrap,
        **settings,
    }
    config = load_config(None, {}, [Setting(key, value, "test") for key, value in keys.items()])
    tps, _ = in_loop(stored_partitions(config_at(archive.as_uri()), None))
    groups = grouped(tps, config.metadata.topic_partitions)
    dry = [restore_work(config, True, True)(group) for group in groups]
    return sum(p.restored for group in dry for p in group.partitions)


@pytest.mark.kafka
def test_an_archive_that_is_killed_ends_as_a_clean_one(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Readers then see the same segments, with the same bytes; a further run copies nothing."""
    data = TopicData(create_topic(2))
    produce(kafka_server.bootstrap, data, 6_000, partition_count=2, size=900)

    def archived(name: str) -> tuple[str, ...]:
        store = ("--store", (tmp_path / name).as_uri(), "--bootstrap", kafka_server.bootstrap)
        size = ("--set", "archive.segment_bytes_max=50000")
        spool = ("--set", f"archive.spool_dir={tmp_path / 'spool'}")
        return ("archive", *store, "--archive", data.topic, *size, *spool)

    def finished(name: str) -> int:
        paths = (tmp_path / name).rglob("*.metadata")
        return sum(b"COPY_SEGMENT_FINISHED" in path.read_bytes() for path in paths)

    outcome = ON_SPARK(*archived("clean"))
    assert outcome.returncode == 0, outcome.stderr
    with ON_SPARK.running(*archived("killed")) as job:
        job.wait_until(lambda: finished("killed") > 10)
        job.kill()
    assert 10 < finished("killed") < finished("clean")
    outcome = ON_SPARK(*archived("killed"))
    assert outcome.returncode == 0, outcome.stderr
    assert rows_of_archive(tmp_path / "killed") == rows_of_archive(tmp_path / "clean")
    assert archived_ends((tmp_path / "killed").as_uri(), data.topic) == data.ends(
        kafka_server.bootstrap
    )
    count = finished("killed")
    assert ON_SPARK(*archived("killed")).returncode == 0
    assert finished("killed") == count
    assert ON_SPARK("verify", "--store", (tmp_path / "killed").as_uri()).returncode == 0


def rows_of_archive(folder: Path) -> list[tuple[int, int, int, bytes]]:
    """(partition, first and last offset, log) of every segment that readers see."""
    config = config_at(folder.as_uri())
    tps, _ = in_loop(stored_partitions(config, None))

    async def segments() -> list[tuple[int, int, int, bytes]]:
        async with stored_archive(config) as opened:
            return [
                (
                    tp.partition,
                    segment.start_offset,
                    segment.end_offset,
                    (folder / opened.storage.rsm.object_key(segment, SegmentFile.LOG)).read_bytes(),
                )
                for tp in tps
                for segment in (await opened.rlmm.refresh(tp, 0.0)).segments
            ]

    return in_loop(segments())
