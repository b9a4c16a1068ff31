"""A missing mount or a mistyped prefix does not count as an empty archive."""

from __future__ import annotations

from pathlib import Path

import pytest
from archived_topics import SETTINGS, archive_and_trim, new_topic
from fetchproxy_command import Ended, fetchproxy
from held_reader import HeldReader
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import TopicData, produce

from lab.kafka import KafkaServer
from lab.s3 import S3Server

pytestmark = pytest.mark.kafka


def archived_topic(kafka: KafkaServer, store: str, folder: Path, name: str) -> TopicData:
    data = new_topic(kafka, name)
    produce(kafka.bootstrap, data, 600)
    with ProxyProcess(kafka.bootstrap, store, folder, archive=name, settings=SETTINGS):
        archive_and_trim(kafka.bootstrap, store, data)
    return data


def ended(command: str, bootstrap: str, store: str, topics: str, *settings: str) -> Ended:
    """Run a process that should end by itself."""
    arguments = ["--bootstrap", bootstrap, "--store", store, "--archive", topics]
    if command == "serve":
        arguments += ["--listen", "127.0.0.1:0"]
    for setting in settings:
        arguments += ["--set", setting]
    return fetchproxy(command, *arguments)


@pytest.mark.remedy("archive_missing")
def test_readers_wait_for_a_mount_that_is_missing(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name, root, mounted = "mount-reader", tmp_path / "store", tmp_path / "mounted"
    data = archived_topic(kafka_server, root.as_uri(), tmp_path, name)
    root.rename(mounted)
    root.mkdir()  # the mount point
    with (
        ProxyProcess(kafka_server.bootstrap, root.as_uri(), tmp_path) as proxy,
        HeldReader("confluent-kafka", proxy.bootstrap, name, {0: 600}) as reader,
        RawConnection(proxy.bootstrap) as raw,
    ):
        wait_for("the warning", lambda: proxy.logged("archive_missing"))
        for _ in range(5):
            fetched = raw.fetch(12, name, None, 0, wait_ms=300)
            assert (fetched.error, fetched.records) == (0, b""), "nobody says that it is gone"
        assert (reader.count, reader.errors, reader.finished) == (0, [], False)
        wait_for("the headline", lambda: "there is no archive" in proxy.get("/api/status"))
        assert list(root.iterdir()) == []
        root.rmdir()
        mounted.rename(root)
        assert reader.records() == data.written


@pytest.mark.parametrize("command", ["serve", "archive"])
def test_no_archiver_begins_a_second_archive_at_a_missing_mount(
    kafka_server: KafkaServer, tmp_path: Path, command: str
) -> None:
    name, root = f"mount-{command}", tmp_path / "store"
    archived_topic(kafka_server, root.as_uri(), tmp_path, name)
    root.rename(tmp_path / "mounted")
    for make in (lambda: None, root.mkdir):
        make()
        outcome = ended(command, kafka_server.bootstrap, root.as_uri(), name)
        assert outcome.returncode == 2
        assert root.as_uri() in outcome.stderr
        assert "--create" in outcome.stderr.splitlines()[-1]
        assert not root.exists() or list(root.iterdir()) == []


@pytest.mark.s3
def test_no_archiver_begins_a_second_archive_at_a_mistyped_prefix(
    kafka_server: KafkaServer,
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in s3_server.environment.items():
        monkeypatch.setenv(variable, value)
    bucket, name = s3_server.create_bucket("mistyped"), "mistyped-prefix"
    archived_topic(kafka_server, s3_server.store_url(bucket, "archive"), tmp_path, name)
    wrong = s3_server.store_url(bucket, "archvie")
    outcome = ended("archive", kafka_server.bootstrap, wrong, name, "archive.local_retention_ms=1")
    assert outcome.returncode == 2
    assert "--create" in outcome.stderr
    for command in ("verify", "segments"):
        process = fetchproxy(command, "--store", wrong)
        assert process.returncode == 2
        assert "there is no archive" in process.stderr
