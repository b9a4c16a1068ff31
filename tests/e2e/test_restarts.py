"""The proxy or the broker restarts while a client reads the middle of the archive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from archived_topics import SETTINGS, archive_and_trim, new_store, new_topic
from held_reader import held_readers
from proxy_process import ProxyProcess, wait_for
from topic_data import archived_ends, produce

from lab.kafka import KafkaServer
from lab.process import free_port

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves its socket to the garbage collector when a connection is refused.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

# A reader below the archive's end needs a new permit from the broker again and again.
SHORT_PERMITS: dict[str, object] = {**SETTINGS, "gateway.permit_ttl_ms": 50}


@pytest.fixture(autouse=True)
def collected_here() -> Iterator[None]:
    """Collect here and not in a later test, where an unclosed socket is an error."""
    yield
    gc.collect()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_the_proxy_restarts(kafka_server: KafkaServer, tmp_path: Path, killed: bool) -> None:
    name = f"proxy-restarts-{killed}"
    store = new_store(tmp_path)
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 600)
    # Clients know the node's address, too, so it must be the same after the restart.
    settings = {**SHORT_PERMITS, "gateway.node_port_base": node_port_base()}
    with ProxyProcess(
        kafka_server.bootstrap, store, tmp_path, archive=name, settings=settings
    ) as proxy:
        archive_and_trim(kafka_server.bootstrap, store, data)
        with held_readers(proxy.bootstrap, name, {0: 600}, hold_at=200) as readers:
            if killed:
                proxy.kill()
            else:
                proxy.stop()
            for reader in readers:
                reader.go_on()
            proxy.start()
            for reader in readers:
                assert reader.records() == data.written


def node_port_base() -> int:
    """The lab's broker has node id 1."""
    return free_port() - 1


def test_the_broker_restarts(own_kafka_server: KafkaServer, tmp_path: Path) -> None:
    """The archive needs the broker for permits only; clients read all records in any case."""
    kafka, name = own_kafka_server, "broker-restarts"
    store = new_store(tmp_path)
    data = new_topic(kafka, name)
    produce(kafka.bootstrap, data, 600)
    with ProxyProcess(
        kafka.bootstrap, store, tmp_path, archive=name, settings=SHORT_PERMITS
    ) as proxy:
        archive_and_trim(kafka.bootstrap, store, data)
        with held_readers(proxy.bootstrap, name, {0: 700}, hold_at=200) as readers:
            kafka.kill()
            for reader in readers:
                reader.go_on()
            kafka.start()
            produce(kafka.bootstrap, data, 100)
            for reader in readers:
                assert reader.records() == data.written
        wait_for("the archiver goes on", lambda: archived_ends(store, name) == {0: 700})
        assert not proxy.logged("session_crashed") + proxy.logged("part_failed")
