"""Jobs killed between every two steps that write, and run again: rows are what they have to be.

Of a job that is killed at any moment on a real Spark: `test_killed_jobs`, `test_spark_jobs`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from kills_between_writes import Writes, is_killed
from made_batches import CODECS, Record, made_batch
from stored_archives import config_at
from test_killed_jobs import missing
from written_archive import TP, WrittenArchive

from fetchproxy.archive import for_executors, in_loop, wall_clock_ms
from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.schema import Config
from fetchproxy.jobs.backfill import Target, backfill_range, plan_backfill
from fetchproxy.jobs.backfill_files import OutputFolder
from fetchproxy.jobs.merge import MergeOptions, merge_work
from fetchproxy.jobs.restore import _metadata_topic, grouped, restore_work
from fetchproxy.jobs.verify import reindex_work, verify_work
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.remotelog.archive_reading import plan_input
from fetchproxy.remotelog.options import parse_options
from fetchproxy.remotelog.planning import plan_tasks
from fetchproxy.remotelog.task_reader import read_task
from fetchproxy.segments.object_keys import SegmentFile
from lab.kafka import KafkaServer

Rows = list[tuple[int, bytes | None]]
TRUTH: Rows = [(offset, b"v%d" % offset) for offset in range(60)]


def batch(base: int) -> bytes:
    made = bytearray(
        made_batch(
            base,
            [
                Record(b"k", b"v%d" % offset, 1_700_000_000_000 + offset)
                for offset in range(base, base + 5)
            ],
            codec=CODECS[base // 5 % 5],
        )
    )
    made[12:16] = bytes(4)  # leader epoch 0, as metadata have it
    return bytes(made)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> WrittenArchive:
    """Offsets 0 to 59 in six segments."""
    archive = WrittenArchive(tmp_path_factory.mktemp("made") / "archive")
    for base in range(0, 60, 10):
        archive.add([batch(base), batch(base + 5)])
    return archive


@pytest.fixture
def copies(made: WrittenArchive, tmp_path: Path) -> Callable[[], Path]:
    """A new copy with each call."""
    numbers = count()
    return lambda: Path(shutil.copytree(made.folder, tmp_path / f"archive-{next(numbers)}"))


def rows_read(folder: Path) -> Rows:
    """Of the archive, as the data source gives them."""
    options = parse_options({"store": folder.as_uri(), "topics": TP.topic})
    tasks = plan_tasks(plan_input(options), partition_bytes_max=2**40)
    return [
        row
        for task in tasks
        for columns in read_task(options, task, ["offset", "value"])
        for row in zip(*(columns.column(c).to_pylist() for c in ("offset", "value")), strict=True)
    ]


def config_of(folder: Path) -> Config:
    keys = {
        "store.url": folder.as_uri(),
        "archive.spool_dir": str(folder.parent / "spool"),
        "archive.retention_grace_ms": "0",
    }
    return for_executors(load_config(None, {}, [Setting(k, v, "test") for k, v in keys.items()]))


def later(later_ms: int) -> int:
    return wall_clock_ms() + later_ms


def each_kill(
    fresh: Callable[[], Path],
    also: Callable[[Path], list[Path]],
    watch: Callable[[Writes], None],
    work: Callable[[Path], object],
) -> Iterator[Path]:
    """Copies on which `work` was killed before its first write, its second, and so on."""
    for number in count(1):
        folder = fresh()
        if not is_killed(number, [folder, *also(folder)], watch, lambda: work(folder)):  # noqa: B023
            assert number > 3, "hardly any write was seen"
            return
        yield folder


def files(writes: Writes) -> None:
    writes.watch_files()


def test_a_backfill(copies: Callable[[], Path]) -> None:
    def out(archive: Path) -> Path:
        return archive.with_name(f"{archive.name}-out")

    def work(archive: Path) -> None:
        source = parse_options({"store": archive.as_uri(), "topics": TP.topic})
        to = Target(source, OutputFolder(str(out(archive))), "snappy")
        for task in plan_backfill(to, 500).tasks:
            backfill_range(to, task)

    def watch(writes: Writes) -> None:
        """Files of Arrow's are written and renamed in C++."""
        writes.watch_files()
        for name in ("publish", "put_manifest", "_write"):
            writes.watch(OutputFolder, name)

    for archive in each_kill(copies, lambda archive: [out(archive)], watch, work):
        work(archive)
        table = ds.dataset(out(archive), format="parquet", partitioning="hive").to_table()
        rows = zip(*(table.column(c).to_pylist() for c in ("offset", "value")), strict=True)
        assert sorted(rows) == TRUTH


def test_a_merge(copies: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers have every row after each kill already. A run of a day later removes what the first
    one has replaced."""

    def work(archive: Path) -> None:
        for later_ms in (0, 86_400_000, 2 * 86_400_000):
            clock = partial(later, later_ms)
            monkeypatch.setattr("fetchproxy.jobs.merge.wall_clock_ms", clock)
            merge_work(config_of(archive), MergeOptions(bytes_max=1_500))(TP)

    for archive in each_kill(copies, lambda archive: [], files, work):
        assert rows_read(archive) == TRUTH
        work(archive)
        assert rows_read(archive) == TRUTH
        report = verify_work(config_at(archive.as_uri()))(TP)
        assert report.clean, report.faults
        assert report.segments < 6


def test_a_reindex(made: WrittenArchive, copies: Callable[[], Path]) -> None:
    def damaged() -> Path:
        """What is derived from the logs is gone, or not to be read."""
        archive = copies()
        for i in (0, 1, 2, 4):
            of(archive, i, SegmentFile.INDEX).unlink()
        of(archive, 3, SegmentFile.METADATA).write_bytes(b"{")
        return archive

    def of(archive: Path, i: int, file: SegmentFile) -> Path:
        return archive / made.path(made.segments[i], file).relative_to(made.folder)

    def work(archive: Path) -> None:
        reindex_work(config_of(archive), False)(TP)

    for archive in each_kill(damaged, lambda archive: [], files, work):
        work(archive)
        assert rows_read(archive) == TRUTH
        report = verify_work(config_at(archive.as_uri()))(TP)
        assert report.clean, report.faults


@pytest.mark.kafka
def test_a_restore(
    kafka_server: KafkaServer, copies: Callable[[], Path], create_topic: Callable[..., str]
) -> None:
    """Between two events of the metadata topic, readers do not take the half for the whole."""
    archive = copies()
    for number in count(1):
        settings = {
            "metadata.manager": "topic",
            "metadata.topic_name": f"__{create_topic(1)}",
            "metadata.topic_partitions": "1",
            "metadata.topic_replication_factor": "1",
        }
        keys = {
            "store.url": archive.as_uri(),
            "cluster.bootstrap": kafka_server.bootstrap,
            **settings,
        }
        config = load_config(None, {}, [Setting(k, v, "test") for k, v in keys.items()])
        created(config)
        (group,) = grouped([TP], 1)

        def work() -> object:
            return restore_work(config, False, True)(group)  # noqa: B023

        def watch(writes: Writes) -> None:
            writes.watch(KafkaMetadataLog, "append")

        if not is_killed(number, [], watch, work):
            assert number > 6, "each segment has an event"
            assert missing(kafka_server, archive, settings) == 0
            return
        assert not verify_work(config)(TP).clean
        work()
        assert missing(kafka_server, archive, settings) == 0
        assert verify_work(config)(TP).clean


def created(config: Config) -> None:
    assert in_loop(_metadata_topic(config, create=True))
