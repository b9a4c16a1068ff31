"""What the archive has is looked up before a gateway listens.

A process that has just started knows nothing, and the first client that asks where thousands of
partitions begin would wait for all that has to be read. So every archived topic is looked up once,
in the way in which a client's question is answered, and later ones find it in memory. Listening
waits `FIRST_LOOKS_WAIT_MAX_S` for this, and no longer than the first attempt takes. What is not
looked up by then goes on meanwhile, and a question that comes shares what is being read. In an
outage it is tried again.
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
# A client that cannot connect asks another proxy, or again within a second. Two thousand partitions
# take 0.7 s with a store 40 ms away.
FIRST_LOOKS_WAIT_MAX_S = 2.0
_IDENTITY_AGE_MAX_MS = 60_000


async def look_at_archived_topics(parts: GatewayParts, tried: asyncio.Event) -> None:
    """One topic after the other; ends when all were looked at, or memory has enough of them.

    `tried` is set after the first attempt, whatever came of it.
    """
    while not await _is_done(parts):
        tried.set()
        await asyncio.sleep(RETRY_PAUSE_S)
    tried.set()


async def _is_done(parts: GatewayParts) -> bool:
    """False: the store or the brokers are away."""
    try:
        await _look(parts)
    except (ClusterError, RemoteStorageError) as error:
        log.info("archive_not_looked_up_yet", error=str(error))
        return False
    except Exception as error:  # no client may depend on this, so neither may the process
        log.exception("archive_not_looked_up", error=repr(error))
    return True


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
