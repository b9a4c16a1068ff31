"""How jobs end before they begin: one line, exit code 2, within seconds. A Spark that is there is
started by `test_spark_jobs`."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from uuid import UUID

import pytest
from fetchproxy_command import Ended, fetchproxy
from spark_commands import environment, small_segments
from written_archive import WrittenArchive

from fetchproxy.cli.backfill import skipped_records
from fetchproxy.cli.running import safe_one_line
from fetchproxy.errors import ConfigError
from fetchproxy.remotelog.session import check_master, master_addresses
from fetchproxy.segments.topic_description import TopicDescription, encode_topic_description
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


def ended(*arguments: str) -> Ended:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    return fetchproxy(*arguments, environment={**environment(), **keys})


def one_line(end: Ended) -> str:
    assert end.returncode == 2, end.stdout + end.stderr
    assert end.stdout == ""
    (line,) = end.stderr.splitlines()
    assert line.startswith("fetchproxy: ")
    return line


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> WrittenArchive:
    return small_segments(tmp_path_factory.mktemp("made") / "archive", 1, 1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.usefixtures("spark_set_up")
def test_a_master_that_is_not_there(archive: WrittenArchive) -> None:
    master = f"spark://127.0.0.1:{free_port()}"
    line = one_line(ended("verify", "--store", archive.url, "--spark", "--master", master))
    assert f"{master} does not respond" in line
    assert "no-such-kind" in one_line(
        ended("verify", "--store", archive.url, "--spark", "--master", "no-such-kind")
    )


@pytest.mark.usefixtures("spark_set_up")
@pytest.mark.parametrize(
    ("job", "spark"),
    [
        ("verify", ["--spark"]),
        ("backfill", []),
        pytest.param("verify", [], marks=pytest.mark.slow),
        pytest.param("backfill", ["--spark"], marks=pytest.mark.slow),
    ],
)
def test_a_store_that_is_not_there(tmp_path: Path, job: str, spark: list[str]) -> None:
    more = ["--topics", "orders", "--parquet", str(tmp_path / "out")] if job == "backfill" else []
    more += spark
    line = one_line(ended(job, "--store", (tmp_path / "nowhere").as_uri(), *more))
    assert f"the folder {tmp_path / 'nowhere'} is not there" in line
    port = free_port()
    s3 = f"s3://bucket?region=us-east-1&endpoint_url=http://127.0.0.1:{port}"
    assert f"127.0.0.1:{port}" in one_line(ended(job, "--store", s3, *more))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("spark_set_up")
@pytest.mark.parametrize(
    ("job", "spark"),
    [
        ("report", []),
        ("merge", ["--spark"]),
        ("reindex", []),
        ("restore", ["--spark"]),
        *(
            pytest.param(job, spark, marks=pytest.mark.slow)
            for job, spark in (
                ("report", ["--spark"]),
                ("merge", []),
                ("reindex", ["--spark"]),
                ("restore", []),
            )
        ),
    ],
)
def test_a_topic_that_the_archive_does_not_have(
    archive: WrittenArchive, job: str, spark: list[str]
) -> None:
    line = one_line(ended(job, "--store", archive.url, "--topic", "oders", *spark))
    assert "there is nothing of topic oders" in line


@pytest.mark.usefixtures("spark_set_up")
@pytest.mark.parametrize("topics", ["oders", "orders,oders"])
def test_a_backfill_of_a_topic_that_the_archive_does_not_have(
    archive: WrittenArchive, tmp_path: Path, topics: str
) -> None:
    out = tmp_path / "out"
    arguments = ("--store", archive.url, "--topics", topics, "--parquet", str(out))
    assert "there is nothing of topic oders" in one_line(ended("backfill", *arguments))
    assert not out.exists()


@pytest.mark.usefixtures("spark_set_up")
def test_a_topic_without_records_stops_no_other(tmp_path: Path) -> None:
    archive = small_segments(tmp_path / "archive", 1, 1)

    async def describe() -> None:
        one = TopicDescription(UUID(int=9), "new", 1)
        async with RemoteStorage(FilesystemObjectStore(archive.folder)) as storage:
            await storage.objects.put_topic_description(one.topic_id, encode_topic_description(one))

    asyncio.run(describe())
    arguments = ("--store", archive.url, "--parquet", str(tmp_path / "out"))
    outcome = ended("backfill", *arguments, "--topics", "orders,new")
    assert outcome.returncode == 0, outcome.stderr
    assert "in 1 range written" in outcome.stdout
    outcome = ended("backfill", *arguments, "--topics", "new")
    assert outcome.returncode == 0, outcome.stderr
    assert "0 records in 0 ranges written" in outcome.stdout


@pytest.mark.parametrize(
    ("master", "places"),
    [
        ("local", []),
        ("local[*]", []),
        ("local[2,4]", []),
        ("yarn", []),
        ("spark://a:7077", [("a", 7077)]),
        ("spark://a:7077,b:7078", [("a", 7077), ("b", 7078)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("k8s://https://api.example:6443", [("api.example", 6443)]),
        ("k8s://api.example", [("api.example", 443)]),
        ("k8s://http://api.example:8001/path", [("api.example", 8001)]),
    ],
)
def test_where_a_master_has_to_answer(master: str, places: list[tuple[str, int]]) -> None:
    assert master_addresses(master) == places


@pytest.mark.parametrize("master", ["", "local[2", "spark://", "spark://a", "spark://a:x", "mesos"])
def test_what_is_no_master(master: str) -> None:
    with pytest.raises(ConfigError, match="master"):
        master_addresses(master)


def test_of_several_masters_one_has_to_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there, away = server.getsockname()[1], free_port()
        check_master(f"spark://127.0.0.1:{away},127.0.0.1:{there}")
    with pytest.raises(ConfigError, match=f"127.0.0.1:{away}: .*127.0.0.1:{there}: "):
        check_master(f"spark://127.0.0.1:{away},127.0.0.1:{there}")


def test_hints_name_what_the_command_line_has() -> None:
    assert safe_one_line("a hole; with failOnDataLoss=false it is skipped") == (
        "a hole; with --option failOnDataLoss=false it is skipped"
    )
    assert safe_one_line("x (corruptBatches=skip leaves such batches out)") == (
        "x (--option corruptBatches=skip leaves such batches out)"
    )


def test_what_is_passed_over_is_told_by_topic() -> None:
    assert skipped_records({"a": (0, 0)}) == ""
    assert skipped_records({"b": (167, 1), "a": (2, 2), "c": (0, 0)}) == (
        "; skipped: a: up to 2 records of 2 damaged or missing objects, "
        "b: up to 167 records of 1 damaged or missing object"
    )
