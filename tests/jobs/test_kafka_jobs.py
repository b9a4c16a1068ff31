"""The executors' work against a real broker: archiving alone, twice at once, beside an archiver;
and a metadata topic that was lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from archived_topics import NO_MEMORY, SETTINGS, archive_and_trim
from client_readers import read_confluent
from planted_archive import gaps_of
from proxy_process import ProxyProcess
from topic_data import TopicData, archived_ends, produce, produce_transactions

from fetchproxy.archive import for_executors, in_loop, stored_archive, stored_partitions
from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.schema import Config
from fetchproxy.errors import ArchiveMismatch, ClusterError, ConfigError
from fetchproxy.jobs.archive import (
    ArchivedPartition,
    archive,
    archive_work,
    begin_archive,
    check_source,
    plan_archive,
)
from fetchproxy.jobs.merge import MergeOptions, merge_work
from fetchproxy.jobs.restore import _metadata_topic, _state_metadata_topic, grouped, restore_work
from fetchproxy.jobs.runner import Here
from fetchproxy.jobs.verify import merged_report, verify_work
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.segments.topic_description import TopicDescription
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

CreateTopic = Callable[..., str]
PARTITIONS = 3


@pytest.fixture
def data(kafka_server: KafkaServer, create_topic: CreateTopic) -> TopicData:
    made = TopicData(create_topic(PARTITIONS))
    produce(kafka_server.bootstrap, made, 300, partition_count=PARTITIONS)
    return made


@pytest.fixture
def config(kafka_server: KafkaServer, data: TopicData, tmp_path: Path) -> Config:
    return config_for(kafka_server.bootstrap, data.topic, tmp_path)


def config_for(bootstrap: str, topics: str, folder: Path, **changes: str) -> Config:
    keys = {
        "store.url": (folder / "store").as_uri(),
        "cluster.bootstrap": bootstrap,
        "archive.topics": topics,
        "archive.segment_bytes_max": "20000",
        "archive.spool_dir": str(folder / "spool"),
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return load_config(None, {}, [Setting(key, value, "test") for key, value in keys.items()])


def archived(config: Config) -> list[ArchivedPartition]:
    """As the job does it, one task after another."""
    config = for_executors(config)
    in_loop(begin_archive(config))
    return list(map(archive_work(config), plan_archive(config).partitions))


def verified(config: Config) -> VerifyReport:
    tps, _ = in_loop(stored_partitions(config, None))
    return merged_report(map(verify_work(config), tps))


def test_the_plan_says_what_there_is_to_copy(
    kafka_server: KafkaServer, config: Config, data: TopicData
) -> None:
    plan = plan_archive(config)
    assert {p.tp.partition: p.offsets for p in plan.partitions} == dict.fromkeys(range(3), 300)
    assert {p.archive_end for p in plan.partitions} == {None}
    archived(config)
    produce(kafka_server.bootstrap, data, 7, partition_count=1)
    after = plan_archive(config).partitions
    assert [(p.tp.partition, p.offsets) for p in after] == [(0, 7), (1, 0), (2, 0)]


def test_a_pass_copies_all_and_a_second_one_nothing(
    kafka_server: KafkaServer, config: Config, data: TopicData
) -> None:
    outcome = archived(config)
    assert archived_ends(config.store.url or "", data.topic) == data.ends(kafka_server.bootstrap)
    assert all(partition.segments > 2 for partition in outcome)
    assert all(p.archive_end == p.planned.last_stable_offset for p in outcome)
    assert sum(p.segments for p in archived(config)) == 0
    report = verified(config)
    assert report.clean, report.faults
    assert gaps_of(report) == []


def test_transactions_are_archived_up_to_the_last_stable_offset(
    kafka_server: KafkaServer, create_topic: CreateTopic, tmp_path: Path
) -> None:
    data = TopicData(create_topic())
    produce_transactions(kafka_server.bootstrap, data, transactions=9, records=20)
    config = config_for(kafka_server.bootstrap, data.topic, tmp_path)
    (outcome,) = archived(config)
    assert outcome.archive_end == outcome.planned.last_stable_offset
    assert verified(config).clean


def test_two_passes_at_once(config: Config, data: TopicData, kafka_server: KafkaServer) -> None:
    in_loop(begin_archive(config))
    plan = plan_archive(config).partitions
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(archive_work(config), [*plan, *plan]))
    assert archived_ends(config.store.url or "", data.topic) == data.ends(kafka_server.bootstrap)
    report = verified(config)
    assert report.clean, report.faults
    assert gaps_of(report) == []


def test_beside_a_running_archiver(
    kafka_server: KafkaServer, config: Config, data: TopicData, tmp_path: Path
) -> None:
    settings = {
        "archive.segment_bytes_max": 20_000,
        "archive.segment_age_max_ms": 200,
        "limits.writing.rlm_process_interval_ms": 50,
    }
    store = config.store.url or ""
    (tmp_path / "store").mkdir()
    with ProxyProcess(
        kafka_server.bootstrap, store, tmp_path, archive=data.topic, settings=settings
    ) as proxy:
        for _ in range(3):
            archived(config)
            produce(kafka_server.bootstrap, data, 100, partition_count=PARTITIONS)
        archived(config)
        assert proxy.running
    assert archived_ends(store, data.topic) == data.ends(kafka_server.bootstrap)
    report = verified(config)
    assert report.clean, report.faults
    assert gaps_of(report) == []


def test_what_cannot_be_planned_is_said_before_anything_starts(
    kafka_server: KafkaServer, config: Config, data: TopicData, tmp_path: Path
) -> None:
    bootstrap = kafka_server.bootstrap
    with pytest.raises(ConfigError, match="matches no topic"):
        plan_archive(config_for(bootstrap, "no-such-topic", tmp_path))
    logs = str(tmp_path / "logs")
    with pytest.raises(ConfigError, match=r"archive\.log_dirs"):
        check_source(config_for(bootstrap, data.topic, tmp_path, archive__log_dirs=logs))
    with pytest.raises(ClusterError):
        plan_archive(config_for("127.0.0.1:1", data.topic, tmp_path))


def test_topics_are_described_and_the_empty_ones_too(
    kafka_server: KafkaServer, create_topic: CreateTopic, tmp_path: Path
) -> None:
    """By the job itself, as `--spark` runs it: here the runner is of this process."""
    some, nothing = create_topic(PARTITIONS), create_topic(2)
    produce(kafka_server.bootstrap, TopicData(some), 5, partition_count=1)
    config = config_for(kafka_server.bootstrap, f"{some}|{nothing}", tmp_path)
    plan, outcome = archive(Here(), config)
    assert {topic.name for topic in plan.topics} == {some, nothing}
    assert outcome.failures == ()

    async def described() -> dict[str, TopicDescription]:
        async with stored_archive(config) as opened:
            descriptions_by_id = await TopicDescriptions(opened.storage.objects).refresh()
            return {one.topic: one for one in descriptions_by_id.values()}

    descriptions = in_loop(described())
    assert {name: (one.partitions, one.empty) for name, one in descriptions.items()} == {
        some: (PARTITIONS, {1: 0, 2: 0}),
        nothing: (2, {0: 0, 1: 0}),
    }
    assert descriptions[some].cluster_id


def test_descriptions_that_cannot_be_written_are_a_failure(
    kafka_server: KafkaServer, config: Config, data: TopicData, tmp_path: Path
) -> None:
    assert archive(Here(), config)[1].failures == ()
    topics = tmp_path / "store" / "topics"
    shutil.rmtree(topics)
    topics.write_bytes(b"")
    (failure,) = archive(Here(), config)[1].failures
    assert failure.name == "the descriptions of the topics"
    assert "topics/" in failure.error


def test_a_compacted_topic_is_refused_by_name(
    kafka_server: KafkaServer, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = create_topic(config={"cleanup.policy": "compact"})
    plan = plan_archive(config_for(kafka_server.bootstrap, topic, tmp_path))
    assert plan.partitions == ()
    assert "compact" in plan.refused[topic]


def test_a_lost_metadata_topic_is_written_again(
    config: Config, data: TopicData, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    archived(config)
    metadata = sorted((tmp_path / "store").rglob("*.metadata"))
    metadata[1].unlink()
    by_topic = config_for(
        kafka_server.bootstrap,
        data.topic,
        tmp_path,
        metadata__manager="topic",
        metadata__topic_name=f"__{data.topic}",
        metadata__topic_partitions="2",
        metadata__topic_replication_factor="1",
    )
    tps, _ = in_loop(stored_partitions(by_topic, None))
    groups = grouped(tps, by_topic.metadata.topic_partitions)
    assert in_loop(_metadata_topic(by_topic, create=False)) is False
    planned = list(map(restore_work(by_topic, True, False), groups))
    assert sum(len(group.repaired.repairs) for group in planned) == 1
    assert in_loop(_metadata_topic(by_topic, create=True)) is True
    outcome = list(map(restore_work(by_topic, False, True), groups))
    assert sum(p.restored for group in outcome for p in group.partitions) == len(metadata)
    assert metadata[1].exists()
    again = list(map(restore_work(by_topic, False, True), groups))
    assert sum(p.restored for group in again for p in group.partitions) == 0
    with pytest.raises(ArchiveMismatch, match=r"metadata\.manager"):
        archived(by_topic)
    in_loop(_state_metadata_topic(by_topic))  # as the job does at its end
    # A merge that goes by the store's own metadata would delete what the topic names.
    before = sorted((tmp_path / "store").rglob("*.log"))
    with pytest.raises(ArchiveMismatch, match=r"metadata\.manager"):
        merge_work(config, MergeOptions())(tps[0])
    assert sorted((tmp_path / "store").rglob("*.log")) == before
    # An archiver that follows that topic goes on where the archive ends.
    produce(kafka_server.bootstrap, data, 50, partition_count=PARTITIONS)
    assert {p.archive_end for p in archived(by_topic)} == {350}
    assert verified(config).clean


@pytest.mark.slow
def test_a_client_reads_on_while_segments_are_merged_and_the_small_ones_go(
    kafka_server: KafkaServer, create_topic: CreateTopic, tmp_path: Path
) -> None:
    """Through a proxy, from offsets that the broker has forgotten."""
    broker, store = kafka_server.bootstrap, (tmp_path / "store").as_uri()
    (tmp_path / "store").mkdir()
    data = TopicData(create_topic())
    produce(broker, data, 600)
    # Of both: copies are old after a second, and hidden for longer than a view is used.
    times = {"archive.copy_max_ms": 500, "archive.retention_grace_ms": 1_500}
    proxied = {**SETTINGS, **times, "metadata.view_age_max_ms": 300, **NO_MEMORY}
    proxied["archive.segment_bytes_max"] = 10_000
    proxied["limits.writing.retention_check_interval_ms"] = 100
    proxied["limits.writing.retention_clock_settle_ms"] = 0
    keys = {key.replace(".", "__"): str(value) for key, value in times.items()}
    config = for_executors(config_for(broker, data.topic, tmp_path, **keys))
    with ProxyProcess(broker, store, tmp_path, archive=data.topic, settings=proxied) as proxy:
        archive_and_trim(broker, store, data)
        (tp,), _ = in_loop(stored_partitions(config, None))
        small = len(logs(tmp_path))
        outcome = merge_work(config, MergeOptions(bytes_max=60_000))(tp)
        assert outcome.merged > 1
        assert len(logs(tmp_path)) == small + outcome.merged
        logs_expected = small - outcome.replaced + outcome.merged
        for _ in range(100):
            assert read_confluent(proxy.bootstrap, data.topic, data.ends(broker)) == data.written
            if len(logs(tmp_path)) == logs_expected:
                break
        assert len(logs(tmp_path)) == logs_expected, (
            "the archiver has not removed what was replaced"
        )
        assert read_confluent(proxy.bootstrap, data.topic, data.ends(broker)) == data.written
    assert verified(config).clean


def logs(folder: Path) -> list[Path]:
    return list((folder / "store").rglob("*.log"))
