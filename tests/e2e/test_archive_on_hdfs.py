"""The whole way with HDFS as the store: archive, trim at the broker, read back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from archived_topics import SETTINGS, archive_and_trim, new_topic
from client_readers import read_confluent
from proxy_process import ProxyProcess
from topic_data import produce
from whole_archive import verify_archive

from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.config.schema import MetadataConfig, StoreConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.storage.remote_storage import open_store
from lab.hdfs import HdfsServer
from lab.kafka import KafkaServer
from lab.kerberos import Kdc, gssapi_folder
from lab.secured_hdfs import SecuredHdfs

pytestmark = [pytest.mark.kafka, pytest.mark.hdfs]

# Each look at the archive takes some requests to a NameNode, which a busy machine slows down.
READ_MAX_MS = 60_000
PATIENT = {
    **SETTINGS,
    "limits.writing.rlm_process_interval_ms": 1_000,
    "store.timeout_ms": 2 * READ_MAX_MS,
}


async def verified(store: str) -> VerifyReport:
    async with (
        open_store(store, StoreConfig()) as storage,
        StoreBackedRemoteLogMetadataManager(
            storage, MetadataConfig(), read_max_ms=READ_MAX_MS
        ) as rlmm,
    ):
        return await verify_archive(storage, rlmm)


@pytest.mark.slow
def test_archived_and_read_back(
    kafka_server: KafkaServer, hdfs_server: HdfsServer, tmp_path: Path
) -> None:
    the_whole_way(kafka_server, hdfs_server, tmp_path, "on-hdfs")


@pytest.mark.slow
def test_with_kerberos(
    kafka_server: KafkaServer,
    module_kdc: Kdc,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The credentials are in the environment; the store's URL is the same as without Kerberos."""
    for name, value in module_kdc.client(module_kdc.keytab("nn", "nn")).items():
        monkeypatch.setenv(name, value)
    path = os.environ.get("PYTHONPATH")
    folders = [str(gssapi_folder()), *([path] if path else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    with SecuredHdfs(module_kdc) as server:
        the_whole_way(kafka_server, server, tmp_path, "on-secured-hdfs")


def the_whole_way(
    kafka_server: KafkaServer, hdfs_server: HdfsServer, tmp_path: Path, topic: str
) -> None:
    store = hdfs_server.store_url("e2e/archive")
    data = new_topic(kafka_server, topic, 2)
    produce(kafka_server.bootstrap, data, 600, partition_count=2)
    with ProxyProcess(
        kafka_server.bootstrap, store, tmp_path, archive=topic, settings=PATIENT
    ) as proxy:
        archive_and_trim(kafka_server.bootstrap, store, data)
        records = read_confluent(proxy.bootstrap, data.topic, data.ends(kafka_server.bootstrap))
        assert records == data.written
        assert proxy.running, proxy.log_text()[-4000:]
    report = asyncio.run(verified(store))
    assert report.clean
    assert report.segments > 4
