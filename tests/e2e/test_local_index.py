"""A proxy with a local index, over restarts: its readers need no index from the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from archived_topics import NO_MEMORY, SETTINGS, archive_and_trim, new_topic
from client_readers import read_confluent
from fetchproxy_command import fetchproxy
from proxy_process import ProxyProcess, wait_for
from topic_data import produce

from fetchproxy.storage.index_files import LOG_INDEX
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka


def read_of(folder: Path) -> bytes:
    """The bytes of all remoteLogIndex files of the only partition, in order."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob(f"*.{LOG_INDEX}")))


def test_a_reader_s_seek_is_answered_by_the_local_index(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name = "local-index"
    store, index = tmp_path / "store", tmp_path / "index"
    store.mkdir()
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 600)
    settings = {**SETTINGS, **NO_MEMORY, "archive.local_index_dir": index}
    proxy = ProxyProcess(
        kafka_server.bootstrap, store.as_uri(), tmp_path, archive=name, settings=settings
    )
    with proxy:
        archive_and_trim(kafka_server.bootstrap, store.as_uri(), data)
        stored = b"".join(path.read_bytes() for path in sorted(store.rglob("*.index")))
        wait_for("the local index", lambda: read_of(index) == stored)
        assert read_confluent(proxy.bootstrap, name, {0: 600}) == data.written
        assert_no_fallback(proxy)
        proxy.kill()
        [newest] = sorted(index.rglob(f"*.{LOG_INDEX}"))[-1:]
        newest.write_bytes(newest.read_bytes()[:-5])
        proxy.start()
        wait_for("the local index again", lambda: read_of(index) == stored)
        assert read_confluent(proxy.bootstrap, name, {0: 600}) == data.written
        assert_no_fallback(proxy)
        assert proxy.metric("fetchproxy_local_index_rebuilds_total") == 1
        assert proxy.metric("fetchproxy_local_index_bytes") > len(stored)
        others = ["--store", store.as_uri(), "--bootstrap", kafka_server.bootstrap]
        others += ["--listen", "127.0.0.1:0", "--archive", name]
        others += ["--set", f"archive.local_index_dir={index}"]
        second = fetchproxy("serve", *others)
        assert second.returncode == 2
        assert f"archive.local_index_dir = {index}: another process uses it" in second.stderr
    process = fetchproxy("index", "show", str(newest), "--json", "--limit", "1")
    assert process.returncode == 0
    assert '"first_offset": 0' in process.stdout


def assert_no_fallback(proxy: ProxyProcess) -> None:
    reads = "fetchproxy_local_index_reads_total"
    assert proxy.metric(reads, 'outcome="hit"') > 0
    assert proxy.metric(reads) == proxy.metric(reads, 'outcome="hit"')
