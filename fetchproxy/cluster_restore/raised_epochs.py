"""Leader epochs of padded partitions are raised to those of the archive, with a client's rights.

A topic of the brokers begins with epoch 0. Its log can continue an archived one only if no new
record has a lower epoch than the archived ones. To exchange two replicas and to elect the first one
is one epoch more; it needs ALTER on the cluster, and a second replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_restore import controller_requests as requests
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.new_cluster import read_placements
from fetchproxy.cluster_restore.plan import (
    EPOCHS_RAISED_MAX,
    FoundPartition,
    FoundTopic,
    LostTopic,
    Place,
)
from fetchproxy.errors import ClusterError

# Without any change for so long, the brokers do not do it.
STUCK_AFTER_S = 20.0
_LOOK_INTERVAL_S = 0.05


async def raise_epochs(
    cluster: Cluster, brokers: ActiveController, topics: Iterable[LostTopic]
) -> dict[str, str]:
    """`brokers`: they pass the requests on to their controller. `topics`: that exist. Returns those
    whose epochs stay below the archived ones, and why. Raises ClusterUnavailable, and ClusterError
    if the topics cannot be looked at.
    """
    by_name = {topic.name: topic for topic in topics}
    clock = asyncio.get_running_loop().time
    before, changed_at = dict[Place, int](), clock()
    while True:
        present = (await read_placements(cluster, by_name)).topics
        low = {name: _low(topic, present.get(name)) for name, topic in by_name.items()}
        low = {name: partitions for name, partitions in low.items() if partitions}
        why = {name: _why_not(by_name[name], partitions) for name, partitions in low.items()}
        places = {
            (name, number): partition
            for name, partitions in low.items()
            if not why[name]
            for number, partition in partitions.items()
        }
        epochs = {place: partition.leader_epoch for place, partition in places.items()}
        if epochs != before:
            before, changed_at = epochs, clock()
        if not places or clock() > changed_at + STUCK_AFTER_S:
            return {name: reason or "the brokers do not raise them" for name, reason in why.items()}
        try:
            await _one_more(brokers, places)
        except ClusterError as error:
            if error.retriable:
                raise
            # The right is missing, or a service does without these requests.
            refused = f"to raise them needs elections, and ALTER on the cluster: {error}"
            return {name: reason or refused for name, reason in why.items()}
        await asyncio.sleep(_LOOK_INTERVAL_S)


def _low(topic: LostTopic, present: FoundTopic | None) -> dict[int, FoundPartition]:
    """The partitions whose next records would have a lower epoch than archived ones."""
    if present is None:
        return {}
    return {
        number: present.partitions[number]
        for number, one in enumerate(topic.partitions)
        if number in present.partitions
        and present.partitions[number].leader_epoch < one.record_epoch
    }


def _why_not(topic: LostTopic, low: Mapping[int, FoundPartition]) -> str:
    """ "": they can be raised."""
    if any(topic.partitions[number].record_epoch > EPOCHS_RAISED_MAX for number in low):
        return f"archived ones are above {EPOCHS_RAISED_MAX:,}"
    if any(len(partition.replicas) < 2 for partition in low.values()):
        return "a partition with one replica has no other to elect"
    return ""


async def _one_more(brokers: ActiveController, places: Mapping[Place, FoundPartition]) -> None:
    """An election where another replica than the leader is the first one; there, the next look
    shows another epoch. Else the next replica in sync becomes the first.
    """
    swapped = {
        place: _other_first(one) for place, one in places.items() if one.replicas[0] == one.leader
    }
    if swapped := {place: replicas for place, replicas in swapped.items() if replicas}:
        await requests.reassign(brokers, swapped)
    await requests.elect_preferred(brokers, list(places))


def _other_first(present: FoundPartition) -> tuple[int, ...]:
    """(): no other replica is in sync yet."""
    others = [node for node in present.replicas[1:] if node in present.in_sync]
    if not others:
        return ()
    return (others[0], *(node for node in present.replicas if node != others[0]))
