"""An archive-only node follows its archive: topics that grow, go, and are made again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from memory_object_store import MemoryObjectStore
from planted_archive import TP, PlantedArchive, batch
from served_archive import Client, serve_archive
from structlog.testing import capture_logs

from fetchproxy.errors import StorageDenied
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.storage.stores.object_store import StoredObject


async def until_it_names(client: Client, topic_id: UUID | None, partitions: int) -> None:
    """`None`: no topic."""
    expected = [] if topic_id is None else [(topic_id, partitions)]

    def named(topics: Any) -> list[tuple[UUID, int]]:
        return [(topic.topic_id, len(topic.partitions)) for topic in topics]

    async with asyncio.timeout(60):
        while True:
            response = await client.ask(MetadataRequest(topics=None), MetadataResponse, 12)
            if named(response.topics) == expected:
                return
            await asyncio.sleep(0.05)


async def test_partitions_come_and_topics_are_deleted_and_made_again() -> None:
    planted = PlantedArchive()
    await planted.add([batch(0)])
    async with serve_archive(planted) as served:
        client = await served.client()
        await until_it_names(client, TP.topic_id, 1)
        await planted.add([batch(0)], tp=TP._replace(partition=1))
        await until_it_names(client, TP.topic_id, 2)
        for key in list(planted.store._objects):
            if uuid_text(TP.topic_id) in key:
                await planted.store.delete(key)
        await until_it_names(client, None, 0)
        again = TP._replace(topic_id=UUID(int=2))
        await planted.add([batch(0)], tp=again)
        await until_it_names(client, again.topic_id, 1)


class WithoutStates(MemoryObjectStore):
    """Its policy gives out everything but the states of the cluster."""

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        if "cluster-states" in prefix:
            raise StorageDenied("cluster-states: status 403 AccessDenied")
        async for stored in super().list(prefix, start_after):
            yield stored


async def test_an_archive_whose_states_are_denied_is_served_all_the_same() -> None:
    planted = PlantedArchive(WithoutStates())
    await planted.add([batch(0)])
    with capture_logs() as lines:
        async with serve_archive(planted) as served:
            client = await served.client()
            await until_it_names(client, TP.topic_id, 1)
            await planted.add([batch(0)], tp=TP._replace(partition=1))
            await until_it_names(client, TP.topic_id, 2)
    events = [one["event"] for one in lines]
    assert events.count("cluster_state_unreadable") == 1
    assert "archive_unreachable" not in events
