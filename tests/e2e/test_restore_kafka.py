"""`fetchproxy restore` on a real broker: it makes a metadata topic from the store, which works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from archived_topics import SETTINGS, archive_and_trim, new_topic
from client_readers import read_confluent
from confluent_kafka.admin import AdminClient
from fetchproxy_command import fetchproxy
from proxy_process import ProxyProcess, wait_for
from topic_data import produce

from fetchproxy.observability.health import Kind
from lab import limited
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

METADATA_TOPIC = "__restored_metadata"
BY_TOPIC = {
    "metadata.topic_name": METADATA_TOPIC,
    "metadata.topic_partitions": 3,
    "metadata.topic_replication_factor": 1,
}


def restore(bootstrap: str, store: str, *more: str) -> str:
    code, output = run("restore", bootstrap, store, *more)
    assert code == 0, output
    return output


def run(what: str, bootstrap: str, store: str, *more: str) -> tuple[int, str]:
    """Exit code and output."""
    where = ("--bootstrap", bootstrap, "--store", store)
    result = fetchproxy(what, *where, *more, *limited.options(BY_TOPIC))
    return result.returncode, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.remedy("partitions_unknown_to_metadata_topic")
def test_a_lost_metadata_topic_is_rebuilt_and_served_from(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    broker, store = kafka_server.bootstrap, (tmp_path / "store").as_uri()
    (tmp_path / "store").mkdir()
    data = new_topic(kafka_server, "restored")
    produce(broker, data, 600)
    with ProxyProcess(broker, store, tmp_path, archive="restored", settings=SETTINGS):
        archive_and_trim(broker, store, data)
    metadata = sorted((tmp_path / "store").rglob("*.metadata"))
    metadata[1].unlink()

    planned = restore(broker, store, "--dry-run")
    assert "would be repaired: restored-0: " in planned
    assert f"segments that would be restored: {len(metadata) - 1}; partitions: 1" in planned
    by_manager = ("--set", "metadata.manager=topic")
    code, output = run("verify", broker, store, *by_manager)
    assert (code, "there is no metadata topic" in output) == (2, True), output
    assert METADATA_TOPIC not in AdminClient({"bootstrap.servers": broker}).list_topics().topics
    assert not metadata[1].exists()

    outcome = restore(broker, store)
    assert f"segments restored: {len(metadata)}; partitions: 1" in outcome
    assert metadata[1].exists()
    assert "segments restored: 0; partitions: 1" in restore(broker, store)

    code, output = run("verify", broker, store, *by_manager)
    assert (code, output.splitlines()[-1].endswith("clean")) == (0, True), output
    newest = metadata[-1].read_bytes()
    metadata[-1].unlink()
    (metadata[-1].parent / "finished-offsets").unlink()
    for beside in metadata[-1].parent.glob(f"{metadata[-1].stem}.*"):
        beside.rename(tmp_path / beside.name)
    code, output = run("verify", broker, store, *by_manager)
    assert (code, "the store has no metadata of it" in output) == (1, True), output
    for beside in tmp_path.glob(f"{metadata[-1].stem}.*"):
        beside.rename(metadata[-1].parent / beside.name)
    metadata[-1].write_bytes(newest)

    by_topic = {**SETTINGS, **BY_TOPIC, "metadata.manager": "topic"}
    with ProxyProcess(broker, store, tmp_path, settings=by_topic) as proxy:
        records = read_confluent(proxy.bootstrap, "restored", data.ends(broker))
    assert records == data.written

    # Somebody deletes the topic, and it is made again without its records.
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([METADATA_TOPIC])[METADATA_TOPIC].result(30)
    wait_for("its end", lambda: METADATA_TOPIC not in admin.list_topics(timeout=20).topics)
    kafka_server.create_topic(METADATA_TOPIC, 3, {"retention.ms": "-1"})
    with ProxyProcess(broker, store, tmp_path, settings=by_topic) as proxy:
        wait_for("the condition", lambda: kinds(proxy) == [Kind.PARTITIONS_UNKNOWN])
        restore(broker, store)
        wait_for("its end", lambda: kinds(proxy) == [])
        records = read_confluent(proxy.bootstrap, "restored", data.ends(broker))
    assert records == data.written


def kinds(proxy: ProxyProcess) -> list[str]:
    return [one["kind"] for one in json.loads(proxy.get("/api/status"))["conditions"]]
