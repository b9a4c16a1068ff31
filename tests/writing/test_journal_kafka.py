"""What a journal gives back of transactions, compared with an archiver that saw them, on a real
broker.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from archive_harness import archived_up_to, open_archive, running_archiver, tps, until, until_true
from confluent_kafka import Producer
from test_journal import OPEN, journal_of, recover

from fetchproxy.writing.remote_log_manager import RemoteLogManager
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka
TOPIC = "payments"


def transactions(kafka: KafkaServer, name: str, commits: str) -> None:
    """A transaction of 20 records for each letter: `a` aborts it, `c` commits it."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    for letter in commits:
        producer.begin_transaction()
        for number in range(20):
            producer.produce(TOPIC, value=f"{name} {letter} {number}".encode(), partition=0)
        assert producer.flush(60) == 0
        if letter == "a":
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


async def test_aborted_transactions_are_those_that_the_log_has(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    kafka_server.create_topic(TOPIC, 1)
    async with open_archive(tmp_path / "store") as archive:
        # The first segment ends inside the transactions, and the journal begins before its end.
        for number, age_ms in enumerate((200, 600_000)):
            changes = OPEN | {"segment_age_max_ms": age_ms}
            async with running_archiver(kafka_server.bootstrap, archive, TOPIC, **changes) as (
                manager,
                cluster,
            ):
                for turn in range(3):
                    name = f"{number}-{turn}"
                    await asyncio.to_thread(transactions, kafka_server, name, "acaca")
                    [tp] = await tps(cluster, TOPIC)
                    end = (await cluster.log_offsets(tp, not_older_than=_now())).high_watermark
                    await until_true(partial(_is_safe, manager, end))
                if number == 0:
                    await until(manager, archived_up_to(TOPIC, {0: end}))
        [recovered] = await recover(archive, segment_bytes_max=1_000)
        assert (recovered.end, recovered.fault) == (end, None)
        batches = await archive.batches(tp)
        aborted = [
            (txn.producer_id, txn.first_offset)
            for segment in (await archive.view(tp)).segments
            if segment.has_aborted_txns
            for txn in await archive.aborted(segment)
        ]
    async with open_archive(tmp_path / "other") as other:
        async with running_archiver(kafka_server.bootstrap, other, TOPIC) as (manager, _):
            await until(manager, archived_up_to(TOPIC, {0: end}))
        assert await other.batches(tp) == batches
        expected = [
            (txn.producer_id, txn.first_offset)
            for segment in (await other.view(tp)).segments
            if segment.has_aborted_txns
            for txn in await other.aborted(segment)
        ]
    assert len(set(expected)) == 18
    assert set(aborted) == set(expected)


def _is_safe(manager: RemoteLogManager, end: int) -> bool:
    [status] = manager.status()
    read = max(status.accumulated_end or 0, status.archive_end or 0)
    return read >= end and journal_of(manager).recovery_point().records == 0


def _now() -> float:
    return asyncio.get_running_loop().time()
