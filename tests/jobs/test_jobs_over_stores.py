"""Jobs over stores that are not folders: a real S3 server, a real HDFS."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest
from spark_commands import BOTH, Runs, small_segments
from written_archive import WrittenArchive

from fetchproxy.config.schema import StoreConfig
from fetchproxy.storage.stores.registry import open_object_store
from lab.hdfs import HdfsServer
from lab.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark_set_up")]

PER_PARTITION = 3_000


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    return small_segments(tmp_path / "archive")


async def copied(archive: WrittenArchive, url: str) -> str:
    """The URL, now of the same objects."""
    store, prefix = open_object_store(url, StoreConfig(), create=True)
    try:
        for path in archive.folder.rglob("*"):
            if path.is_file() and "~" not in path.name:
                key = path.relative_to(archive.folder).as_posix()
                await store.put(prefix + key, path.read_bytes())
    finally:
        await store.close()
    return url


@pytest.fixture
async def on_s3(archive: WrittenArchive, s3_server: S3Server, s3_bucket: str) -> str:
    return await copied(archive, s3_server.store_url(s3_bucket, "kafka"))


@pytest.fixture
async def on_hdfs(archive: WrittenArchive, hdfs_server: HdfsServer) -> str:
    return await copied(archive, hdfs_server.store_url("spark-stores"))


@pytest.mark.s3
@pytest.mark.parametrize("runs", BOTH)
def test_jobs_over_s3(runs: Runs, on_s3: str, archive: WrittenArchive, tmp_path: Path) -> None:
    check_jobs(runs, on_s3, archive, tmp_path)


@pytest.mark.hdfs
@pytest.mark.parametrize("runs", BOTH)
def test_jobs_over_hdfs(runs: Runs, on_hdfs: str, archive: WrittenArchive, tmp_path: Path) -> None:
    check_jobs(runs, on_hdfs, archive, tmp_path)


def check_jobs(runs: Runs, url: str, archive: WrittenArchive, tmp_path: Path) -> None:
    """What tasks read there is what a folder's would be."""
    verified = runs("verify", "--store", url)
    assert verified.returncode == 0, verified.stderr
    for store, out in ((url, "there"), (archive.url, "here")):
        outcome = runs(
            "backfill", "--store", store, "--topics", "orders", "--parquet", str(tmp_path / out)
        )
        assert outcome.returncode == 0, outcome.stderr
    there, here = (
        ds.dataset(tmp_path / out, format="parquet", partitioning="hive")
        .to_table()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
        for out in ("there", "here")
    )
    assert there.num_rows == 2 * PER_PARTITION
    assert there == here
