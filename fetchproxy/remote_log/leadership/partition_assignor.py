"""Who leads which partition: even parts, nothing moved without need. Pure.

The cooperative protocol (KIP-429): a partition that is to move is first given back by its owner and
assigned to the new one in the next round, so no two members are told to lead it. kafka-python's own
assignor has the same outcome, but takes seconds for some thousand partitions, during which the loop
would serve nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

Partition = tuple[str, int]  # topic, number


@dataclass(frozen=True, slots=True)
class Member:
    """`owned` since `generation`; of two that claim the same, the one with the newer is right."""

    topics: frozenset[str]
    owned: frozenset[Partition] = frozenset()
    generation: int = -1


def assign(
    members: Mapping[str, Member], partition_counts: Mapping[str, int]
) -> dict[str, set[Partition]]:
    """Each member's part in this round. Numbers of partitions differ by one at most where all
    members want the same topics, once no partition is on the move."""
    wanted = {topic for member in members.values() for topic in member.topics}
    every = sorted(
        (topic, number) for topic in wanted for number in range(partition_counts.get(topic, 0))
    )
    owners = _owners(members, frozenset(every))
    parts = _kept(members, owners, len(every))
    free = sorted(set(every).difference(*parts.values()))
    loads = [(len(part), member_id) for member_id, part in parts.items()]
    heapq.heapify(loads)
    for partition in free:
        taker = _least_loaded(loads, members, partition[0])
        if taker is not None and owners.get(partition, taker) == taker:
            parts[taker].add(partition)
    return parts


def _owners(members: Mapping[str, Member], every: frozenset[Partition]) -> dict[Partition, str]:
    owners: dict[Partition, str] = {}
    for member_id in sorted(members, key=lambda m: (members[m].generation, m)):
        member = members[member_id]
        for partition in member.owned & every:
            if partition[0] in member.topics:
                owners[partition] = member_id
    return owners


def _kept(
    members: Mapping[str, Member], owners: Mapping[Partition, str], count: int
) -> dict[str, set[Partition]]:
    """What each member owns, up to its even part; who owns most may keep the odd ones."""
    owned: dict[str, list[Partition]] = {member_id: [] for member_id in members}
    for partition in sorted(owners):
        owned[owners[partition]].append(partition)
    even, odd = divmod(count, len(members)) if members else (0, 0)
    kept: dict[str, set[Partition]] = {}
    for rank, member_id in enumerate(sorted(owned, key=lambda m: (-len(owned[m]), m))):
        kept[member_id] = set(owned[member_id][: even + (rank < odd)])
    return kept


def _least_loaded(
    loads: list[tuple[int, str]], members: Mapping[str, Member], topic: str
) -> str | None:
    """The member that wants the topic and has least; it is counted with one more."""
    passed: list[tuple[int, str]] = []
    taker: str | None = None
    while loads:
        load, member_id = heapq.heappop(loads)
        if topic in members[member_id].topics:
            taker = member_id
            passed.append((load + 1, member_id))
            break
        passed.append((load, member_id))
    for entry in passed:
        heapq.heappush(loads, entry)
    return taker
