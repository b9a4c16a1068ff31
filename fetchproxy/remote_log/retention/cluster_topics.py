"""Which topics a cluster had at the last look, and whether it can still be the same cluster. Pure.

A cluster that was wiped and formatted again with the same id denies every topic that it had. Denied
one by one they look like topics that somebody deleted. So the store keeps a list of the topics that
the cluster had (`clusters/<id>.topics`). A look at the cluster renews the list only if some of
these topics are still there.
"""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass
from uuid import UUID

from fetchproxy.metadata.json_fields import Fields, decode_document
from fetchproxy.storage.layout import uuid_text

VERSION = 1
# Of the archived topics; two or more. Whoever deletes so many at once is asked whether it is meant.
GONE_SHARE_MAX = 0.5


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """Ids. `alive`: all of the cluster's topics, archived or not, at the last look that counted.

    `gone`: archived topics that were deleted since, while others stayed: their archive may go.
    """

    alive: frozenset[UUID] = frozenset()
    gone: frozenset[UUID] = frozenset()


def doubt_of_cluster(
    before: ClusterTopics, alive: Set[UUID], denied: Set[UUID], archived: Set[UUID]
) -> str | None:
    """Why what the cluster denies was not just deleted, in words; None: it was, or nothing is.

    `alive`: all of the cluster's topics now. `denied`: those of `archived` of which it says that it
    has none such.
    """
    known = before.alive & archived
    missing = known & denied
    if missing and not before.alive & alive:
        return f"none of the {len(before.alive)} topics that the cluster had is left"
    if len(missing) > 1 and len(missing) > GONE_SHARE_MAX * len(known):
        return f"{len(missing)} of {len(known)} archived topics are gone at once"
    return None


def moved_on(
    before: ClusterTopics, alive: Set[UUID], denied: Set[UUID], archived: Set[UUID]
) -> ClusterTopics:
    """After a look that counts; as `doubt_of_cluster`.

    What is missing and not denied may be out of sight for a while: it stays what it was.
    """
    unseen = (before.alive & archived) - alive - denied
    gone = ((before.gone | (before.alive & denied)) & archived) - alive
    return ClusterTopics(frozenset(alive | unseen), frozenset(gone))


def encode_cluster_topics(cluster_id: str, topics: ClusterTopics) -> bytes:
    """{"version": 1, "cluster_id": "…", "alive": ["…"], "gone": []}, ids as Kafka writes them."""
    fields = {
        "version": VERSION,
        "cluster_id": cluster_id,
        "alive": sorted(map(uuid_text, topics.alive)),
        "gone": sorted(map(uuid_text, topics.gone)),
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_cluster_topics(raw: bytes) -> ClusterTopics:
    """Raises CorruptSegment, which names the field; NewerMetadataVersion."""
    return decode_document(raw, "topics of the cluster", VERSION, _topics)


def _topics(fields: Fields) -> ClusterTopics:
    return ClusterTopics(frozenset(fields.uuids("alive")), frozenset(fields.uuids("gone")))
