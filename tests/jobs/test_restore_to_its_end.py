"""A lost metadata topic is rebuilt, by one machine and by Spark; readers and `verify` agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from archived_topics import NO_MEMORY
from client_readers import read_confluent
from proxy_process import ProxyProcess
from spark_commands import BOTH, HERE, ON_SPARK, Runs
from topic_data import TopicData, produce, trim

from lab.kafka import KafkaServer

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.usefixtures("spark_set_up")]


@pytest.mark.parametrize("runs", BOTH)
def test_a_restore(
    runs: Runs, kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    broker, store = kafka_server.bootstrap, (tmp_path / "store").as_uri()
    data = TopicData(create_topic(2))
    produce(broker, data, 600, partition_count=2)
    places = ("--store", store, "--bootstrap", broker)
    size = ("--set", "archive.segment_bytes_max=20000")
    spool = ("--set", f"archive.spool_dir={tmp_path / 'spool'}")
    outcome = HERE("archive", "--once", *places, "--archive", data.topic, *size, *spool)
    assert outcome.returncode == 0, outcome.stderr
    (next((tmp_path / "store").rglob("*.metadata"))).unlink()  # is derived from its log
    by_topic = {
        "metadata.manager": "topic",
        "metadata.topic_name": f"__{data.topic}",
        "metadata.topic_partitions": "2",
        "metadata.topic_replication_factor": "1",
    }
    settings = [word for key, value in by_topic.items() for word in ("--set", f"{key}={value}")]
    before = runs("verify", *places, *settings)
    assert before.returncode == 2, before.stdout
    assert f"there is no metadata topic __{data.topic}" in before.stderr
    outcome = runs("restore", *places, *settings)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    verified = runs("verify", *places, *settings)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    again = runs("restore", *places, *settings)
    assert again.returncode == 0, again.stdout + again.stderr
    ends = data.ends(broker)
    trim(broker, data.topic, {partition: end - 40 for partition, end in ends.items()})
    proxied = {**NO_MEMORY, **by_topic}
    with ProxyProcess(broker, store, tmp_path, settings=proxied) as proxy:
        assert read_confluent(proxy.bootstrap, data.topic, ends) == data.written


def test_verify_on_spark_names_what_only_the_metadata_topic_knows(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    """All objects of a partition are gone."""
    broker, store = kafka_server.bootstrap, (tmp_path / "store").as_uri()
    data = TopicData(create_topic(2))
    produce(broker, data, 200, partition_count=2)
    places = ("--store", store, "--bootstrap", broker)
    by_topic = {
        "metadata.manager": "topic",
        "metadata.topic_name": f"__{data.topic}",
        "metadata.topic_partitions": "2",
        "metadata.topic_replication_factor": "1",
        "archive.spool_dir": str(tmp_path / "spool"),
    }
    settings = [word for key, value in by_topic.items() for word in ("--set", f"{key}={value}")]
    outcome = HERE("archive", "--once", *places, "--archive", data.topic, *settings)
    assert outcome.returncode == 0, outcome.stderr
    assert ON_SPARK("verify", *places, *settings).returncode == 0
    for path in (tmp_path / "store").glob("*/1/*"):
        path.unlink()
    verified = ON_SPARK("verify", *places, *settings)
    assert verified.returncode == 1, verified.stdout + verified.stderr
    assert f"{data.topic}-1: " in verified.stdout
    assert "the store has no metadata of it" in verified.stdout
