"""The jobs as commands, here and on a real Spark: results, kills, lost workers, silent stores.

On Spark each command starts a JVM, so this is in `make test-all`; the work of their tasks is tested
without.
"""

from __future__ import annotations

import shutil
import signal
import socket
from functools import partial
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from spark_commands import BOTH, HERE, ON_SPARK, Runs, small_segments
from stored_archives import config_at
from written_archive import WrittenArchive

from fetchproxy.archive import in_loop, stored_archive, stored_partitions
from fetchproxy.segments.object_keys import SegmentFile

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark_set_up")]

Records = list[tuple[int, int]]
PER_PARTITION = 3_000


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    return small_segments(tmp_path / "archive")


def bounds(archive: WrittenArchive) -> list[tuple[int, int, int]]:
    """(partition, first, last offset) of every segment that readers see."""

    async def bounds_read() -> list[tuple[int, int, int]]:
        async with stored_archive(config) as opened:
            views = [await opened.rlmm.refresh(tp, 0.0) for tp in tps]
            return sorted(
                (view.tp.partition, first, last)
                for view in views
                for first, last in view.segments.bounds()
            )

    config = config_at(archive.url)
    tps, _ = in_loop(stored_partitions(config, None))
    return in_loop(bounds_read())


def records(out: Path) -> Records:
    table = ds.dataset(out, format="parquet", partitioning="hive").to_table()
    return sorted(zip(*(table.column(c).to_pylist() for c in ("partition", "offset")), strict=True))


def are_done(out: Path, ranges: int) -> bool:
    return len(list((out / "_backfill/done").glob("*"))) >= ranges


EVERY_RECORD: Records = [(p, offset) for p in range(2) for offset in range(PER_PARTITION)]


@pytest.mark.parametrize("runs", BOTH)
def test_a_job(runs: Runs, archive: WrittenArchive) -> None:
    """What is found in the workers comes back as the command's."""
    archive.path(archive.segments[7], SegmentFile.INDEX).unlink()
    outcome = runs("verify", "--store", archive.url)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "object is missing" in outcome.stdout
    assert "60 segments" in outcome.stdout
    assert "1 fault" in outcome.stdout


@pytest.mark.parametrize("runs", BOTH)
def test_the_other_jobs(runs: Runs, archive: WrittenArchive, tmp_path: Path) -> None:
    store = ("--store", archive.url)
    archive.path(archive.segments[7], SegmentFile.INDEX).unlink()
    mended = runs("reindex", *store)
    assert mended.returncode == 0, mended.stderr
    assert ".index: derived from the log" in mended.stdout
    assert "0 faults left" in mended.stdout
    assert runs("verify", *store).returncode == 0
    reported = runs("report", *store, "--out", str(tmp_path / "report"))
    assert reported.returncode == 0, reported.stderr
    table = ds.dataset(tmp_path / "report/partitions", format="parquet").to_table().to_pylist()
    assert [(row["partition"], row["records"]) for row in table] == [(0, 3_000), (1, 3_000)]
    assert "orders" in (tmp_path / "report/report.html").read_text()


@pytest.mark.parametrize("runs", BOTH)
def test_a_backfill_that_is_killed_ends_as_a_clean_one(
    runs: Runs, archive: WrittenArchive, tmp_path: Path
) -> None:
    def backfill(out: Path) -> list[str]:
        job = ["backfill", "--store", archive.url, "--topics", "orders"]
        return [*job, "--parquet", str(out), "--range-bytes", "4000"]

    clean, killed = tmp_path / "clean", tmp_path / "killed"
    outcome = runs(*backfill(clean))
    assert outcome.returncode == 0, outcome.stderr
    assert "6,000 records" in outcome.stdout
    assert records(clean) == EVERY_RECORD
    ranges = len(list((clean / "_backfill/done").iterdir()))
    for finished_count in (1, 10):
        with runs.running(*backfill(killed)) as job:
            job.wait_until(partial(are_done, killed, finished_count))
            job.kill()
        assert not are_done(killed, ranges)
    assert runs(*backfill(killed)).returncode == 0
    assert records(killed) == EVERY_RECORD
    files = [
        {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*.parquet")}
        for out in (clean, killed)
    ]
    assert files[0] == files[1]
    again = runs(*backfill(killed))
    assert again.stdout.startswith("0 records in 0 ranges written")


@pytest.mark.parametrize("runs", BOTH)
def test_a_merge_that_is_killed_ends_as_a_clean_one(
    runs: Runs, archive: WrittenArchive, tmp_path: Path
) -> None:
    """Copies are old after two seconds, so that the last run removes what was replaced."""
    shutil.copytree(archive.folder, tmp_path / "other")
    other = WrittenArchive(tmp_path / "other")

    def merge(of: WrittenArchive) -> list[str]:
        job = ["merge", "--store", of.url, "--bytes-max", "20000"]
        soon = ["--set", "archive.copy_max_ms=1000", "--set", "archive.retention_grace_ms=0"]
        return [*job, *soon, "--set", f"archive.spool_dir={tmp_path / 'spool'}"]

    assert runs(*merge(archive)).returncode == 0
    with runs.running(*merge(other)) as job:
        logs = len(list(other.folder.rglob("*.log")))
        job.wait_until(lambda: len(list(other.folder.rglob("*.log"))) > logs + 1)
        job.kill()
    assert runs("verify", "--store", other.url).returncode == 0
    for of in (archive, other):
        for _ in range(20):  # until copies of the runs before are old
            assert runs(*merge(of)).returncode == 0
            if len(list(of.folder.rglob("*.log"))) == len(bounds(of)) < 20:
                break
        assert runs("verify", "--store", of.url).returncode == 0
        assert len(list(of.folder.rglob("*.log"))) == len(bounds(of))
    assert bounds(other) == bounds(archive)
    assert len(bounds(archive)) < 20


def test_both_runners_say_the_same(archive: WrittenArchive, tmp_path: Path) -> None:
    """Words, JSON and exit codes."""
    archive.path(archive.segments[7], SegmentFile.INDEX).unlink()
    log = archive.path(archive.segments[40], SegmentFile.LOG)
    log.write_bytes(log.read_bytes()[:-3])
    copies = [Path(shutil.copytree(archive.folder, tmp_path / name)) for name in "ab"]
    for arguments, code in (
        (["verify", "--json"], 1),
        (["reindex", "--dry-run"], 1),
        (["merge", "--dry-run", "--bytes-max", "20000"], 0),
        (["verify", "--repair"], 1),
    ):
        here, there = (
            runs(*arguments, "--store", folder.as_uri())
            for runs, folder in zip((HERE, ON_SPARK), copies, strict=True)
        )
        assert here.returncode == there.returncode == code, here.stderr + there.stderr
        assert here.stdout == there.stdout
        assert here.stderr == ""


def test_a_worker_that_is_lost_costs_nothing(archive: WrittenArchive, tmp_path: Path) -> None:
    out = tmp_path / "out"
    backfill = ["backfill", "--store", archive.url, "--topics", "orders", "--parquet", str(out)]
    with ON_SPARK.running(*backfill, "--range-bytes", "4000") as job:
        job.wait_until(partial(are_done, out, 2))
        assert job.kill_workers() > 0
        assert job.ended() == 0, job.error()
        assert "6,000 records" in job.output()
    assert records(out) == EVERY_RECORD


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("runs", BOTH)
def test_a_job_that_is_interrupted_goes_on_later(
    runs: Runs, archive: WrittenArchive, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    backfill = ["backfill", "--store", archive.url, "--topics", "orders", "--parquet", str(out)]
    with runs.running(*backfill, "--range-bytes", "4000") as job:
        job.wait_until(partial(are_done, out, 1))
        job.interrupt(number)
        assert job.ended() == 130, job.error()
    assert runs(*backfill, "--range-bytes", "4000").returncode == 0
    assert records(out) == EVERY_RECORD


def test_workers_that_are_lost_each_time_are_said_to_be(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, os, signal\n"
        "if 'pyspark.daemon' in ' '.join(sys.orig_argv):\n"
        "    import fetchproxy.jobs.verify as job\n"
        "    job._verify_partition = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    import functools\n"
    )
    job = ["verify", "--store", archive.url]
    outcome = ON_SPARK(*job, "--conf", f"spark.executorEnv.PYTHONPATH={tmp_path}")
    assert outcome.returncode == 2, outcome.stdout + outcome.stderr
    assert "a worker process was lost with its task" in outcome.stderr
    assert "orders-0" in outcome.stderr


@pytest.mark.parametrize("runs", BOTH)
def test_a_store_that_does_not_answer_is_said_to(runs: Runs, archive: WrittenArchive) -> None:
    """It takes connections and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"s3://bucket/prefix?endpoint_url=http://127.0.0.1:{silent.getsockname()[1]}"
        more = ["--set", "store.timeout_ms=2000"]
        outcome = runs("verify", "--store", f"{url}&region=us-east-1", *more)
    assert outcome.returncode == 2, outcome.stdout + outcome.stderr
    assert "fetchproxy: " in outcome.stderr.splitlines()[-1]
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("runs", BOTH)
def test_a_backfill_tells_what_it_skips_and_writes_it_once_it_is_mended(
    runs: Runs, archive: WrittenArchive, tmp_path: Path
) -> None:
    path = archive.path(archive.segments[3], SegmentFile.LOG)
    sound = path.read_bytes()
    path.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
    job = ["backfill", "--store", archive.url, "--topics", "orders"]
    job += ["--parquet", str(tmp_path / "out"), "--option", "corruptBatches=skip"]
    outcome = runs(*job)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.startswith("5,990 records in ")
    assert "skipped: orders: up to 10 records of 1 damaged or missing object" in outcome.stdout
    path.write_bytes(sound)
    outcome = runs(*job)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "skipped" not in outcome.stdout
    assert records(tmp_path / "out") == EVERY_RECORD
    assert runs(*job).stdout.startswith("0 records in 0 ranges written")


@pytest.mark.parametrize("runs", BOTH)
def test_a_hole_in_one_topic_does_not_stop_the_others(
    runs: Runs, archive: WrittenArchive, tmp_path: Path
) -> None:
    archive.path(archive.segments[3], SegmentFile.METADATA).unlink()
    job = ["backfill", "--store", archive.url, "--topics", "orders"]
    job += ["--parquet", str(tmp_path / "out")]
    outcome = runs(*job)
    assert outcome.returncode == 2, outcome.stdout + outcome.stderr
    (line,) = (line for line in outcome.stderr.splitlines() if line.startswith("failed: "))
    assert "orders-0: offsets 300 to 399 are in no segment" in line
    assert "with --option failOnDataLoss=false" in line
    assert records(tmp_path / "out") == [one for one in EVERY_RECORD if one[0] == 1]


@pytest.mark.parametrize("runs", BOTH)
def test_a_corrupt_segment_and_a_missing_object_are_named(
    runs: Runs, archive: WrittenArchive, tmp_path: Path
) -> None:
    broken = archive.path(archive.segments[3], SegmentFile.LOG)
    content = bytearray(broken.read_bytes())
    content[-9] ^= 1
    broken.write_bytes(content)
    missing = archive.path(archive.segments[40], SegmentFile.LOG)
    missing.unlink()
    verified = runs("verify", "--store", archive.url)
    assert verified.returncode == 1
    job = ["backfill", "--store", archive.url, "--topics", "orders"]
    job += ["--parquet", str(tmp_path / "out"), "--range-bytes", "4000"]
    filled = runs(*job)
    assert filled.returncode == 2, filled.stdout + filled.stderr
    merged = runs("merge", "--store", archive.url, "--bytes-max", "20000")
    assert merged.returncode == 1, merged.stdout + merged.stderr
    for output in (verified.stdout, filled.stderr, merged.stdout):
        assert broken.name in output
        assert missing.name in output
