"""The topics of a restore by padding: made as they were, padded, and proven."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from fetchproxy_protocol.topic_entries import TopicInfo

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_restore import padding_requests as requests
from fetchproxy.cluster_restore import rights
from fetchproxy.cluster_restore.needed_rights import is_refusal
from fetchproxy.cluster_restore.new_cluster import FoundTopics, with_offsets
from fetchproxy.cluster_restore.padding import Padding
from fetchproxy.cluster_restore.padding_plan import (
    FirstRecord,
    configs_to_pad,
    configs_while_padding,
    plan_padding,
)
from fetchproxy.cluster_restore.plan import (
    FoundTopic,
    LostTopic,
    Place,
    PlannedTopic,
    RestorePlan,
    TopicAction,
)
from fetchproxy.errors import ClusterError
from fetchproxy.model import TopicIdPartition

_KNOWN_MAX_S = 60.0
_KNOWN_LOOK_S = 0.1


async def planned_padding(
    cluster: Cluster, archived: Sequence[LostTopic], present: FoundTopics
) -> RestorePlan:
    """Changes nothing. Raises ClusterError."""
    names = {topic.name for topic in archived}
    some = {name: topic for name, topic in present.topics.items() if name in names}
    with_ends = await with_offsets(cluster, some, ())
    plan = plan_padding(
        archived, with_ends, await _first_records(cluster, with_ends), len(present.brokers)
    )
    topics = []
    for topic in plan.topics:
        why = await _why_refused(cluster, topic) if topic.action is TopicAction.CREATE else ""
        topics.append(
            topic if not why else PlannedTopic(topic.archived, TopicAction.REFUSE, why=why)
        )
    return replace(plan, topics=tuple(topics))


async def _first_records(
    cluster: Cluster, present: Mapping[str, FoundTopic]
) -> dict[Place, FirstRecord | None]:
    tps = [
        TopicIdPartition(topic.topic_id, topic.name, number)
        for topic in present.values()
        for number, partition in topic.partitions.items()
        if partition.log_end_offset
    ]
    firsts = await requests.first_records(cluster, tps)
    return {(tp.topic, tp.partition): first for tp, first in firsts.items()}


async def _why_refused(cluster: Cluster, topic: PlannedTopic) -> str:
    """Why the new cluster would not make the topic; "": it would, or a right is missing, which is
    looked at for all topics together.
    """
    try:
        await _create(cluster, topic, validate_only=True)
    except ClusterError as error:
        if error.retriable:
            raise
        return "" if is_refusal(error) else str(error)
    return ""


async def make_topics(cluster: Cluster, plan: RestorePlan) -> dict[str, UUID]:
    """The topics of the plan, also those that are there, with settings that allow padding. Returns
    their ids. Raises ClusterError.
    """
    topics = list(plan.of(TopicAction.CREATE, TopicAction.TAKE))
    for topic in topics:
        if topic.action is TopicAction.CREATE:
            await _create(cluster, topic)
    refused = await rights.set_topic_configs(
        cluster,
        {one.name: configs_to_pad(one) for one in topics if one.action is TopicAction.TAKE},
    )
    if refused:
        raise ClusterError("; ".join(refused))
    planned = plan.of(TopicAction.CREATE, TopicAction.TAKE, TopicAction.KEEP)
    return await _topic_ids(cluster, [topic.name for topic in planned])


async def pad_topics(
    cluster: Cluster,
    plan: RestorePlan,
    ids: Mapping[str, UUID],
    brokers: int,
    say: Callable[[str], None],
) -> dict[Place, str]:
    """`ids`: of the topics. Returns the partitions that are not as they should be, and why. Raises
    ClusterError.
    """
    topics = plan.of(TopicAction.CREATE, TopicAction.TAKE)
    starts = {
        TopicIdPartition(ids[topic.name], topic.name, number): one.end_offset
        for topic in topics
        for number, one in enumerate(topic.archived.partitions)
    }
    faults = await Padding(cluster, say).pad(starts, brokers) if starts else {}
    return {(tp.topic, tp.partition): why for tp, why in faults.items()}


async def _create(cluster: Cluster, topic: PlannedTopic, *, validate_only: bool = False) -> None:
    archived = topic.archived
    await requests.create_topic_of_brokers_choice(
        cluster,
        archived.name,
        len(archived.partitions),
        max(archived.replication_factor, 1),
        configs_while_padding(archived),
        validate_only=validate_only,
    )


async def _topic_ids(cluster: Cluster, names: Sequence[str]) -> dict[str, UUID]:
    """Brokers know a new topic a moment after it was created."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _KNOWN_MAX_S
    while True:
        topics = await cluster.topics_by_name(names, max_age_ms=0)
        ids = {name: one.topic_id for name, one in topics.items() if isinstance(one, TopicInfo)}
        if len(ids) == len(names):
            return ids
        if loop.time() > deadline:
            [error, *_] = [one for one in topics.values() if isinstance(one, ClusterError)]
            raise error
        await asyncio.sleep(_KNOWN_LOOK_S)
