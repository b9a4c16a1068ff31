"""The gateway looks up the archived topics while it starts.

A new process knows nothing of the archive. The first client that asks where thousands of
partitions begin would wait for all the reads. So every archived topic is looked up once, in the
same way as for a client's question, and later questions find the response in memory. The gateway
listens when the first attempt has ended, at the latest after `first_looks_max_s`. Then the look-ups
go on while it serves, and a client's question shares the reads in progress. In an outage the
look-ups are tried again.
"""

from __future__ import annotations

import asyncio

import structlog

from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.serving.gateway.offset_lookup import ArchiveLookup
from fetchproxy.serving.gateway.served_archive import (
    ServedArchive,
)

log = structlog.get_logger(__name__)

# Stops after the metadata of this many segments: 1 KB each, in the worst case.
SEGMENTS_MAX = 100_000
_RETRY_PAUSE_S = 5.0
# A client that cannot connect asks another proxy, or tries again within a second. The look-up of
# 2,000 partitions takes 0.7 s with a store 40 ms away.
FIRST_LOOKS_WAIT_MAX_S = 2.0
_TOPICS_AGE_MAX_MS = 60_000


async def look_at_archived_topics(archive: ServedArchive, tried: asyncio.Event) -> None:
    """Look up one topic after the other. Ends after the last, or after SEGMENTS_MAX segments.

    `tried` is set after the first attempt, whether it succeeded or not.
    """
    while True:
        try:
            await _look(archive)
            break
        except (ClusterError, RemoteStorageError) as error:
            log.info("archive_not_looked_up_yet", error=str(error))
        except Exception as error:  # no client depends on this, so the process must not fail by it
            log.exception("archive_not_looked_up", error=repr(error))
            break
        tried.set()
        await asyncio.sleep(_RETRY_PAUSE_S)
    tried.set()


async def _look(archive: ServedArchive) -> None:
    archived = await archive.knowledge.topics()
    topics = await archive.cluster.topics_of(archived, _TOPICS_AGE_MAX_MS)
    segments = 0
    for topic in topics.values():
        if isinstance(topic, ClusterError):
            continue  # it was deleted, or this user may not describe it
        if segments >= SEGMENTS_MAX:
            log.info("archive_looked_up_in_part", segments=segments)
            return
        partitions = await archive.rlmm.refresh_topic(topic.topic_id, float("-inf"))
        tps = [TopicIdPartition(topic.topic_id, topic.name, n) for n in partitions]
        # The views that clients may see: compared with the leaders' logs.
        await ArchiveLookup(archive, archive.clock()).views(tps)
        async for view in cooperative(partitions.values()):
            segments += len(view.segments)
