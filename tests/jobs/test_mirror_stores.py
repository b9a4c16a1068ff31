"""`fetchproxy mirror` as a command: between real stores, killed, on Spark, and read afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from archive_only_process import ArchiveOnlyProcess
from proxy_process import ProxyProcess
from raw_fetch import RawConnection
from spark_commands import BOTH, HERE, ON_SPARK, Runs, ended, running, small_segments
from topic_data import TopicData, produce, trim
from written_archive import WrittenArchive

from fetchproxy.archive import in_loop
from fetchproxy.config.schema import StoreConfig
from fetchproxy.segments.object_keys import LAYOUT_OBJECT
from fetchproxy.storage.stores.registry import open_object_store
from lab.errors import PartFailed
from lab.hdfs import HdfsServer
from lab.kafka import KafkaServer
from lab.s3 import S3Server

COPIED = re.compile(r": copied (\d+), ")
# Of each of two partitions. SEGMENTS: so many that a run can be stopped in the middle.
SEGMENTS, FEW = 60, 8


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    return small_segments(tmp_path / "archive", segments=SEGMENTS)


@pytest.fixture
def small_archive(tmp_path: Path) -> WrittenArchive:
    return small_segments(tmp_path / "archive", segments=FEW)


def contents(url: str) -> dict[str, bytes]:
    """Of all objects but those that say whose they are and where their copies are."""

    async def read() -> dict[str, bytes]:
        store, prefix = open_object_store(url, StoreConfig())
        try:
            keys = [stored_object.key async for stored_object in store.list(prefix)]
            return {key[len(prefix) :]: await store.get(key) for key in keys}
        finally:
            await store.close()

    excluded = LAYOUT_OBJECT, "mirrors/"
    return {
        key: content for key, content in in_loop(read()).items() if not key.startswith(excluded)
    }


def mirror(source: str, target: str, *more: str, code: int = 0, runs: Runs = HERE) -> str:
    outcome = runs("mirror", "--from", source, "--to", target, *more)
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    return outcome.stdout + outcome.stderr


def copied(output: str) -> int:
    match = COPIED.search(output)
    assert match, output
    return int(match[1])


@pytest.mark.s3
@pytest.mark.usefixtures("spark_set_up")  # where the command's environment is from
def test_to_s3_and_back(
    small_archive: WrittenArchive, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    there = s3_server.store_url(s3_bucket, "kafka/mirror")
    back = (tmp_path / "back").as_uri()
    assert copied(mirror(small_archive.url, there)) == 2 * FEW
    assert contents(there) == contents(small_archive.url)
    assert copied(mirror(small_archive.url, there)) == 0
    assert "the archive is now at --to" in mirror(small_archive.url, there, "--cut-over")
    mirror(there, back, "--compare")
    assert contents(back) == contents(small_archive.url)
    emptied = mirror(small_archive.url, there, "--move", "--set", "archive.retention_grace_ms=0")
    assert f"deleted at --from: {8 * FEW} objects" in emptied
    assert contents(small_archive.url) == {}
    assert ended("verify", "--store", there).returncode == 0


@pytest.mark.hdfs
@pytest.mark.usefixtures("spark_set_up")
def test_to_hdfs_and_back(
    small_archive: WrittenArchive, hdfs_server: HdfsServer, tmp_path: Path
) -> None:
    there = hdfs_server.store_url("mirrored/here")
    back = (tmp_path / "back").as_uri()
    mirror(small_archive.url, there)
    assert contents(there) == contents(small_archive.url)
    mirror(small_archive.url, there, "--cut-over")
    mirror(there, back)
    assert contents(back) == contents(small_archive.url)


@pytest.mark.slow
@pytest.mark.usefixtures("spark_set_up")
@pytest.mark.parametrize("runs", BOTH)
def test_a_mirror_that_is_killed_goes_on(
    runs: Runs, archive: WrittenArchive, tmp_path: Path
) -> None:
    folder = tmp_path / "mirror"
    command = ("mirror", "--from", archive.url, "--to", folder.as_uri())

    def whole() -> dict[Path, int]:
        return {path: path.stat().st_ino for path in folder.rglob("*.metadata")}

    with runs.running(*command, "--bytes-per-s", "60000") as job:
        job.wait_until(lambda: len(whole()) > 10)
        job.kill()
    before = whole()
    assert 10 < len(before) < 2 * SEGMENTS
    outcome = mirror(archive.url, folder.as_uri(), runs=runs)
    assert copied(outcome) == 2 * SEGMENTS - len(before)
    assert before.items() <= whole().items(), "nothing that was whole is written again"
    assert contents(folder.as_uri()) == contents(archive.url)
    assert ended("verify", "--store", folder.as_uri()).returncode == 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark_set_up")
def test_on_spark_it_is_the_same(small_archive: WrittenArchive, tmp_path: Path) -> None:
    there = (tmp_path / "mirror").as_uri()
    assert copied(mirror(small_archive.url, there, runs=ON_SPARK)) == 2 * FEW
    assert contents(there) == contents(small_archive.url)
    mirror(
        small_archive.url, there, "--move", "--set", "archive.retention_grace_ms=0", runs=ON_SPARK
    )
    assert contents(small_archive.url) == {}
    assert ended("verify", "--store", there).returncode == 0


@pytest.mark.s3
@pytest.mark.usefixtures("spark_set_up")
def test_a_target_that_fails_in_the_middle(
    archive: WrittenArchive, own_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in own_s3_server.environment.items():
        monkeypatch.setenv(name, value)
    there = own_s3_server.store_url(own_s3_server.create_bucket("mirror"), "kafka")
    hasty = ("--set", "store.timeout_ms=5000")
    slow = ("--bytes-per-s", "100000")
    with running("mirror", "--from", archive.url, "--to", there, *hasty, *slow) as job:
        job.wait_until(lambda: any(key.endswith(".metadata") for key in contents(there)))
        own_s3_server.kill()
        assert job.ended() == 2
        assert "127.0.0.1" in job.error()
    own_s3_server.start()
    before = sum(key.endswith(".metadata") for key in contents(there))
    assert 0 < before < 2 * SEGMENTS
    assert copied(mirror(archive.url, there)) == 2 * SEGMENTS - before
    assert contents(there) == contents(archive.url)


@pytest.mark.s3
@pytest.mark.usefixtures("spark_set_up")
@pytest.mark.parametrize(
    ("pause_s", "timeout_ms", "ends"),
    [(1.0, 30_000, 0), (None, 1_000, 2)],  # None: until the run has ended
    ids=["within the time-out", "beyond it"],
)
def test_a_target_that_pauses_in_the_middle(
    archive: WrittenArchive,
    own_s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    pause_s: float | None,
    timeout_ms: int,
    ends: int,
) -> None:
    """It takes connections and answers nobody. Either the run goes on, or says so and ends; what
    stands at the target is true meanwhile, and another run ends it."""
    for name, value in own_s3_server.environment.items():
        monkeypatch.setenv(name, value)
    there = own_s3_server.store_url(own_s3_server.create_bucket("mirror"), "kafka")
    slow = ("--set", f"store.timeout_ms={timeout_ms}", "--bytes-per-s", "100000")
    with running("mirror", "--from", archive.url, "--to", there, *slow) as job:
        job.wait_until(lambda: any(key.endswith(".metadata") for key in contents(there)))
        own_s3_server.pause()
        if pause_s is None:
            job.ended()
        else:
            time.sleep(pause_s)
        own_s3_server.resume()
        assert job.ended() == ends, job.error()
    contents_there = contents(there)
    whole = {key.removesuffix("metadata") for key in contents_there if key.endswith(".metadata")}
    here = contents(archive.url)
    assert all(
        contents_there[key] == here[key] for key in here if key.rpartition(".")[0] + "." in whole
    )
    assert copied(mirror(archive.url, there)) == 2 * SEGMENTS - len(whole)
    assert contents(there) == here
    assert ended("verify", "--store", there).returncode == 0


@pytest.mark.s3
@pytest.mark.usefixtures("spark_set_up")
def test_each_place_is_asked_with_credentials_of_its_own(
    small_archive: WrittenArchive,
    own_s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of boto's profiles, by the URL. Neither server knows the other's user."""
    other = S3Server("the-others-user", "the-others-secret")
    other.start()
    try:
        places, profiles = [], ""
        for name, server in (("old", own_s3_server), ("new", other)):
            url = server.store_url(server.create_bucket("archive"), "kafka")
            places.append(f"{url}&profile={name}")
            profiles += f"[{name}]\naws_access_key_id = {server.access_key}\n"
            profiles += f"aws_secret_access_key = {server.secret_key}\n"
        (tmp_path / "credentials").write_text(profiles)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        # Which a profile goes before.
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        old, new = places
        mirror(small_archive.url, old)
        mirror(small_archive.url, old, "--cut-over")
        assert copied(mirror(old, new)) == 2 * FEW
        assert contents(new) == contents(small_archive.url)
        refused = mirror(old, new.replace("=new", "=old"), code=2)
        assert "the-others-secret" not in refused
        missing = mirror(old, new.replace("=new", "=gone"), code=2)
        assert "profile (gone) could not be found" in missing
        assert "same place" in mirror(old, old.replace("=old", "=new"), code=2)
        assert ended("verify", "--store", new).returncode == 0
    finally:
        other.stop()


@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.usefixtures("spark_set_up")
def test_an_archive_that_a_metadata_topic_rules_moves(
    kafka_server: KafkaServer,
    create_topic: Callable[..., str],
    s3_server: S3Server,
    s3_bucket: str,
    tmp_path: Path,
) -> None:
    """The topic has no places in it: it stays as it is. A process that follows it goes on at
    the new place. One that is opened at the old place is refused."""
    topic, broker = create_topic(1), kafka_server.bootstrap
    source = (tmp_path / "store").as_uri()
    there = s3_server.store_url(s3_bucket, "moved")
    rules = {"metadata.manager": "topic", "metadata.topic_name": f"__{topic}_metadata"}
    rules |= {"metadata.topic_replication_factor": 1, "metadata.topic_partitions": 2}
    ruled = [word for key, value in rules.items() for word in ("--set", f"{key}={value}")]
    small = ["--set", "archive.segment_bytes_max=20000", "--set", "archive.segment_age_max_ms=500"]
    spool = ["--set", f"archive.spool_dir={tmp_path / 'spool'}"]
    data = TopicData(topic)

    def archived(store: str, code: int = 0) -> str:
        where = ("archive", "--bootstrap", broker, "--store", store, "--topics", topic, "--once")
        outcome = ended(*where, *ruled, *small, *spool)
        assert outcome.returncode == code, outcome.stderr
        return outcome.stderr

    produce(broker, data, 300)
    archived(source)
    mirror(source, there)
    produce(broker, data, 300)
    archived(source)
    assert "the archive is now at --to" in mirror(source, there, "--cut-over")
    assert contents(there) == contents(source)
    assert "has moved to s3://" in archived(source, code=2)
    assert "metadata.manager" in ended_by_store(broker, there, topic, spool)
    produce(broker, data, 300)
    archived(there)
    expected = served(broker, topic, 900)
    trim(broker, topic, {0: 900})
    settings = {**rules, "metadata.cache_dir": str(tmp_path / "cache")}
    with ProxyProcess(broker, there, tmp_path, settings=settings) as proxy:
        assert served(proxy.bootstrap, topic, 900) == expected
        with pytest.raises(PartFailed, match="the archive has moved to s3://"):
            ProxyProcess(broker, source, tmp_path, settings=rules).start()
    emptied = mirror(source, there, "--move", "--set", "archive.retention_grace_ms=0")
    assert "deleted at --from" in emptied
    assert contents(source) == {}
    outcome = ended("verify", "--store", there, "--bootstrap", broker, *ruled)
    assert (outcome.returncode, "clean" in outcome.stdout) == (0, True), (
        outcome.stdout + outcome.stderr
    )


def ended_by_store(broker: str, store: str, topic: str, spool: list[str]) -> str:
    """What an archiver says that takes the store for what rules the metadata."""
    where = ("archive", "--bootstrap", broker, "--store", store, "--topics", topic, "--once")
    outcome = ended(*where, *spool)
    assert outcome.returncode == 2
    return outcome.stderr


@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.usefixtures("spark_set_up")
def test_records_served_from_the_mirror_are_those_of_the_broker(
    kafka_server: KafkaServer,
    create_topic: Callable[..., str],
    s3_server: S3Server,
    s3_bucket: str,
    tmp_path: Path,
) -> None:
    """Archived beside it: an archiver that goes on, which refuses the cut-over until it ends."""
    topic, broker = create_topic(1), kafka_server.bootstrap
    source = (tmp_path / "store").as_uri()
    there = s3_server.store_url(s3_bucket, "mirror")
    archive = ("archive", "--bootstrap", broker, "--store", source, "--topics", topic)
    small = ("--set", "archive.segment_bytes_max=40000", "--set", "archive.segment_age_max_ms=500")
    spool = ("--set", f"archive.spool_dir={tmp_path / 'spool'}")
    data = TopicData(topic)

    def segments() -> int:
        return len(list((tmp_path / "store").rglob("*.metadata")))

    with running(*archive, *small, *spool) as archiver:
        produce(broker, data, 300)
        archiver.wait_until(segments)
        mirror(source, there)
        produce(broker, data, 300)
        before = segments()
        archiver.wait_until(lambda: segments() > before)
        assert "an archiver is still running" in mirror(source, there, "--cut-over", code=2)
    outcome = ended(*archive, *small, *spool, "--once")
    assert outcome.returncode == 0, outcome.stderr
    mirror(source, there, "--cut-over")
    refused = ended(*archive, *small, *spool, "--once")
    assert refused.returncode == 2
    assert "has moved to s3://" in refused.stderr
    expected = served(broker, topic, 600)
    with ArchiveOnlyProcess(there, tmp_path) as node:
        assert served(node.bootstrap, topic, 600) == expected
        node.assert_sound()


def served(bootstrap: str, topic: str, end: int) -> bytes:
    """Every batch of the partition, as it came."""
    data, offset = b"", 0
    with RawConnection(bootstrap) as raw:
        topic_id = raw.topic_id(topic)
        while offset < end:
            fetched = raw.fetch_until_data(16, topic, topic_id, offset)
            assert fetched.error == 0
            last = fetched.batches[-1]
            data += b"".join(fetched.batches)
            offset = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1
    return data
