"""Who reads an archive without a cluster: the group of real clients."""

from __future__ import annotations

import json

import pytest
from archive_only_process import PARTITIONS, RECORDS, ArchiveOnlyProcess
from confluent_kafka import Consumer

pytestmark = pytest.mark.kafka


def test_the_group_of_a_client_and_what_it_was_sent(node: ArchiveOnlyProcess) -> None:
    config = {
        "bootstrap.servers": node.bootstrap,
        "group.id": "reporting",
        "client.id": "reporting-app",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(config)
    consumer.subscribe(["ao-plain"])
    records = 0
    while records < RECORDS * PARTITIONS:
        message = consumer.poll(1.0)
        records += message is not None and message.error() is None
    rows = json.loads(node.get("/api/readers?limit=1000"))["items"]
    [row] = [row for row in rows if row["client_id"] == "reporting-app"]
    assert row["group"] == "reporting"
    assert row["served_bytes"] > 0
    assert sum(one["gets"] for one in rows) > 0
    groups = json.loads(node.get("/api/groups"))["items"]
    assert "reporting" in [one["group"] for one in groups]
    consumer.close()
