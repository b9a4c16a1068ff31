"""Where an archived log begins and ends when there is little of it, or nothing."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from planted_archive import TP
from served_archive import serve_archive
from test_archive_only_apis import END, HOLED, ORDERS, fetch, offsets_request, one, plant

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.segments.topic_description import TopicDescription, encode_topic_description

IN_GAP = 55  # of ORDERS


async def test_a_partition_of_which_nothing_is_archived_is_an_empty_log() -> None:
    holed = (HOLED.topic, HOLED.topic_id, 1)
    async with serve_archive(await plant()) as served:
        client = await served.client()
        assert one(await fetch(client, 11, {holed: 1})).error_code == 1  # it has looked for that
        part = one(await fetch(client, 11, {holed: 0}, wait_ms=10))
        assert (part.error_code, bytes(part.records or b""), part.high_watermark) == (0, b"", 0)


async def test_partitions_and_topics_without_a_record_are_as_the_archiver_described_them() -> None:
    planted = await plant()
    nothing = TopicDescription(UUID(int=77), "nothing", 3, empty={0: 0, 1: 0, 2: 500})
    holed = TopicDescription(HOLED.topic_id, HOLED.topic, 12, empty={11: 2**40})
    for description in (nothing, holed):
        await planted.storage.objects.put_topic_description(
            description.topic_id, encode_topic_description(description)
        )
    async with serve_archive(planted) as served:
        client = await served.client()
        response = await client.ask(MetadataRequest(topics=None), MetadataResponse, 7)
        counts = {topic.name: len(topic.partitions) for topic in response.topics}
        assert counts == {"again": 1, "orders": 1, "holed": 12, "nothing": 3}
        for topic, number, start in (
            (nothing, 0, 0),
            (nothing, 2, 500),
            (holed, 7, 0),
            (holed, 11, 2**40),
        ):
            place = (topic.topic, topic.topic_id, number)
            part = one(await fetch(client, 11, {place: start}, wait_ms=10))
            assert (part.error_code, bytes(part.records or b"")) == (0, b"")
            assert (part.high_watermark, part.log_start_offset) == (start, start)
            assert one(await fetch(client, 11, {place: start + 1})).error_code == 1
        assert one(await fetch(client, 11, {("holed", HOLED.topic_id, 12): 0})).error_code == 3


async def test_deleted_records_are_below_the_beginning() -> None:
    """Within a segment, and with all of them gone."""
    planted = await plant()
    async with StoreBackedRemoteLogMetadataManager(planted.storage, MetadataConfig()) as archiver:
        for start, end in ((15, END), (END, END)):
            await archiver.raise_log_start_offset(TP, start)
            async with serve_archive(planted) as served:
                client = await served.client()
                for timestamp, edge in ((-2, start), (-1, end)):
                    request = offsets_request(timestamp)
                    topic = (await client.ask(request, ListOffsetsResponse, 7)).topics[0]
                    assert (topic.partitions[0].error_code, topic.partitions[0].offset) == (0, edge)
                assert one(await fetch(client, 11, {ORDERS: start - 1})).error_code == 1
                wait_ms = 20_000 if start < end else 10
                part = one(await fetch(client, 11, {ORDERS: start}, wait_ms=wait_ms))
                assert (part.error_code, part.log_start_offset) == (0, start)
                assert (part.high_watermark, bool(part.records)) == (end, start < end)


async def test_a_client_that_waits_for_nothing_crosses_a_gap_and_hears_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a look at the store says counts for the fetch that asked: it is waited for."""
    monkeypatch.setattr("fetchproxy.serving.archive_only.apis.fetch.READ_WAIT_MIN_S", 60.0)
    async with serve_archive(await plant()) as served:
        client = await served.client()
        for _ in range(3):
            assert one(await fetch(client, 11, {ORDERS: IN_GAP}, wait_ms=0)).records
            assert one(await fetch(client, 11, {ORDERS: END + 1}, wait_ms=0)).error_code == 1
        # Nothing is waited for at the end, where there is nothing to look for.
        async with asyncio.timeout(30):
            assert not one(await fetch(client, 11, {ORDERS: END}, wait_ms=0)).records
