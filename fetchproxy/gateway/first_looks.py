"""What the archive has is looked up as soon as a gateway runs, before its clients ask.

A process that has just started knows nothing, and the first client that asks where thousands of
partitions begin would wait for all that has to be read. So every archived topic is looked up once,
in the way in which a client's question is answered, and later ones find it in memory. A question
that comes meanwhile shares what is being read. Nothing waits for this, and in an outage it is tried
again.
"""

from __future__ import annotations

import asyncio

import structlog

from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.gateway.archive_lookup import ArchiveLookup
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.many_items import each_of
from fetchproxy.model import TopicIdPartition

log = structlog.get_logger(__name__)

# Metadata of so many segments are looked up before anybody asks: 1 KB each, in the worst case.
SEGMENTS_MAX = 100_000
RETRY_PAUSE_S = 5.0
_IDENTITY_AGE_MAX_MS = 60_000


async def look_at_archived_topics(parts: GatewayParts) -> None:
    """One topic after the other; ends when all were looked at, or memory has enough of them."""
    while True:
        try:
            await _look(parts)
        except (ClusterError, RemoteStorageError) as error:
            log.info("archive_not_looked_up_yet", error=str(error))
            await asyncio.sleep(RETRY_PAUSE_S)
        except Exception as error:  # no client may depend on this, so neither may the process
            log.exception("archive_not_looked_up", error=repr(error))
            return
        else:
            return


async def _look(parts: GatewayParts) -> None:
    archived = await parts.knowledge.topics()
    topics = await parts.cluster.topics_of(archived, _IDENTITY_AGE_MAX_MS)
    segments = 0
    for topic in topics.values():
        if isinstance(topic, ClusterError):
            continue  # it was deleted, or nobody may describe it
        if segments >= SEGMENTS_MAX:
            log.info("archive_looked_up_in_part", segments=segments)
            return
        partitions = await parts.rlmm.refresh_topic(topic.topic_id, float("-inf"))
        tips = [TopicIdPartition(topic.topic_id, topic.name, n) for n in partitions]
        # As clients may see it: held against its leaders.
        await ArchiveLookup(parts, parts.clock()).views(tips)
        async for view in each_of(partitions.values()):
            segments += len(view.segments)
