"""Another cluster's archive, served under names of one's choice."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from archive_only_process import PARTITIONS, RECORDS, Archived, ArchiveOnlyProcess
from client_readers import read_aiokafka, read_confluent
from kafka import KafkaConsumer

pytestmark = pytest.mark.kafka


def test_clients_read_an_attached_topic_by_its_new_name(archived: Archived, tmp_path: Path) -> None:
    own_folder = tmp_path / "own"
    own_folder.mkdir()
    attached = {
        "attach.archives": f"old.plain={archived.store}#ao-plain old.txn={archived.store}#ao-txn"
    }
    with ArchiveOnlyProcess(own_folder.as_uri(), tmp_path, attached) as node:
        with closing(KafkaConsumer(bootstrap_servers=node.bootstrap)) as consumer:
            assert consumer.topics() == {"old.plain", "old.txn"}
        ends = dict.fromkeys(range(PARTITIONS), RECORDS)
        for read_all in (read_confluent, read_aiokafka):
            assert read_all(node.bootstrap, "old.plain", ends) == archived.plain.written
        records = read_confluent(
            node.bootstrap, "old.txn", {0: archived.ends}, **{"isolation.level": "read_committed"}
        )
        assert records == archived.oracle["read_committed"]
        node.assert_sound()
