"""What no archiver writes, found in the store: clients are answered, and it is told."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from kafka.protocol.consumer import ListOffsetsResponse
from planted_archive import TP, PlantedArchive
from served_archive import serve_archive
from structlog.testing import capture_logs
from test_archive_only_apis import FIRST, ORDERS, fetch, offsets_request, one, plant

from fetchproxy.model import RemoteLogSegmentId
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile, log_start_key, segment_key

LAST = 2**63 - 1


async def an_end_beyond_all_offsets(planted: PlantedArchive) -> None:
    last = max(planted.segments, key=lambda s: (s.topic_id_partition == TP, s.end_offset))
    await planted.restate(replace(last, end_offset=LAST))


async def a_base_beyond_all_offsets(planted: PlantedArchive) -> None:
    beyond = replace(
        planted.segments[0],
        segment_id=RemoteLogSegmentId(TP, UUID(int=99)),
        start_offset=LAST,
        end_offset=LAST,
    )
    key = segment_key("archive/", beyond.segment_id, LAST, SegmentFile.METADATA)
    await planted.store.put(key, encode_segment(beyond))


@pytest.mark.parametrize("planting", [an_end_beyond_all_offsets, a_base_beyond_all_offsets])
async def test_an_offset_that_cannot_be_is_unreadable_metadata(planting) -> None:  # type: ignore[no-untyped-def]
    planted = await plant()
    await planting(planted)
    with capture_logs() as logs:
        async with serve_archive(planted) as served:
            client = await served.client()
            for timestamp in (-2, -1, 0):
                request = offsets_request(timestamp)
                await client.ask(request, ListOffsetsResponse, 7)
            for offset in (0, 60, 5_000, LAST):
                part = one(await fetch(client, 11, {ORDERS: offset}, wait_ms=50))
                assert part.error_code in (0, 1, 56)  # KAFKA_STORAGE_ERROR: nobody knows
            part = one(await fetch(client, 11, {ORDERS: 0}, wait_ms=20_000))
            assert bytes(part.records).startswith(FIRST[0])
    assert "segment_metadata_unreadable" in {line["event"] for line in logs}


async def test_a_log_start_behind_all_offsets() -> None:
    planted = await plant()
    await planted.store.put(log_start_key("archive/", TP, LAST), b"")
    async with serve_archive(planted) as served:
        client = await served.client()
        for timestamp in (-2, -1, 0):
            await client.ask(offsets_request(timestamp), ListOffsetsResponse, 7)
        for offset in (0, 60, LAST):
            part = one(await fetch(client, 11, {ORDERS: offset}, wait_ms=50))
            assert part.error_code in (0, 1)
