"""An archive-only node follows its archive: topics that grow, go, and are made again."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from planted_archive import TP, PlantedArchive, batch
from served_archive import Client, serve_archive

from fetchproxy.segments.object_keys import uuid_text


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
