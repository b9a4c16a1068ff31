"""Whom to ask about partitions: their leaders, each about all of its own, again if they moved.

Knows neither what is asked nor how connections come to be.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar
from uuid import UUID

from fetchproxy.cluster.answers import RETRIABLE, UNKNOWN_TOPIC_OR_PARTITION, TopicInfo
from fetchproxy.cluster.metadata_cache import MetadataCache
from fetchproxy.config.addresses import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.many_items import chosen, each_of
from fetchproxy.model import ZERO_UUID, TopicIdPartition

T = TypeVar("T")

# Pauses between two tries at a leader. An election takes 10 ms to seconds, so begin low and stay
# below a second: the whole is bounded by request_max_ms anyway.
RETRY_PAUSE_INITIAL_MS = 20
RETRY_PAUSE_MAX_MS = 500
RETRY_JITTER = 0.2
TOLD_AT_ONCE = 20

Topics = Mapping[str | UUID, TopicInfo | ClusterError]
AskTopics = Callable[[Collection[str | UUID]], Awaitable[Topics]]
# One leader, and those of its partitions that are wanted; an error it raises is that of them all.
AskLeader = Callable[
    [HostPort, Mapping[TopicIdPartition, TopicInfo]],
    Awaitable[Mapping[TopicIdPartition, T | ClusterError]],
]


class Leaders:
    def __init__(
        self, request_max_ms: int, rng: random.Random, metadata: MetadataCache, topics: AskTopics
    ) -> None:
        self._request_max_ms = request_max_ms
        self._rng = rng
        self._metadata = metadata
        self._topics = topics

    async def ask(
        self,
        tips: Collection[TopicIdPartition],
        ask: AskLeader[T],
        tell: Callable[[TopicIdPartition, T | ClusterError], None] | None = None,
    ) -> dict[TopicIdPartition, T | ClusterError]:
        """`ask` the leader of each partition; on a wrong or lost one look again, back off, retry.

        The brokers are asked in parallel. No try begins later than request_max_ms after the first,
        so the whole takes up to twice that. That a topic is gone is believed at once when Metadata
        itself says so. Raises no ClusterError: each partition has its own. `tell` hears of each
        as soon as it is settled, while others may still be asked about; perhaps twice.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request_max_ms / 1000
        pause_ms = float(RETRY_PAUSE_INITIAL_MS)
        found: dict[TopicIdPartition, T | ClusterError] = {}
        waiting: Collection[TopicIdPartition] = tips
        while True:
            known = await self._topics_of(waiting, found)
            await self._ask_once(known, ask, found, tell)
            waiting = [tip async for tip in each_of(waiting) if _may_pass(found[tip], tip in known)]
            for name in {known[tip].name for tip in waiting if tip in known}:
                self._metadata.expire(name)
            pause_s = self._jittered(pause_ms) / 1000
            if not waiting or loop.time() + pause_s > deadline:
                if tell is not None:
                    await _tell_all(found, found, tell)
                return found
            await asyncio.sleep(pause_s)
            pause_ms = min(2 * pause_ms, RETRY_PAUSE_MAX_MS)

    async def _topics_of(
        self,
        tips: Collection[TopicIdPartition],
        found: dict[TopicIdPartition, T | ClusterError],
    ) -> dict[TopicIdPartition, TopicInfo]:
        """Of those that have one; the error of the others goes into `found`."""
        keys = {_key(tip) async for tip in each_of(tips)}
        try:
            topics = await self._topics(keys)
        except ClusterError as error:  # no broker has answered
            topics = dict.fromkeys(keys, error)
        known: dict[TopicIdPartition, TopicInfo] = {}
        async for tip in each_of(tips):
            topic = topics[_key(tip)]
            if isinstance(topic, ClusterError):
                found[tip] = topic
            elif tip.partition not in topic.leaders:
                what = f"{tip} is no partition of the topic"
                found[tip] = ClusterError(what, UNKNOWN_TOPIC_OR_PARTITION)
            else:
                known[tip] = topic
        return known

    async def _ask_once(
        self,
        known: Mapping[TopicIdPartition, TopicInfo],
        ask: AskLeader[T],
        found: dict[TopicIdPartition, T | ClusterError],
        tell: Callable[[TopicIdPartition, T | ClusterError], None] | None,
    ) -> None:
        by_leader: dict[HostPort, dict[TopicIdPartition, TopicInfo]] = {}
        async for tip, topic in each_of(known.items()):
            leader = self._metadata.brokers.get(topic.leaders[tip.partition][0])
            if leader is None:
                found[tip] = ClusterUnavailable(f"{topic.name}-{tip.partition} has no leader", 5)
            else:
                by_leader.setdefault(HostPort(leader.host, leader.port), {})[tip] = topic

        async def ask_one(leader: HostPort, its: Mapping[TopicIdPartition, TopicInfo]) -> None:
            try:
                found.update(await ask(leader, its))
            except ClusterError as error:
                found.update(dict.fromkeys(its, error))
            if tell is not None:
                settled = await chosen(its, lambda tip: not _may_pass(found[tip], True))
                await _tell_all(settled, found, tell)

        async with asyncio.TaskGroup() as asking:
            for address, its in by_leader.items():
                asking.create_task(ask_one(address, its), name=f"ask leader {address}")

    def _jittered(self, pause_ms: float) -> float:
        return pause_ms * (1 + RETRY_JITTER * (2 * self._rng.random() - 1))


async def _tell_all(
    tips: Collection[TopicIdPartition],
    found: Mapping[TopicIdPartition, T | ClusterError],
    tell: Callable[[TopicIdPartition, T | ClusterError], None],
) -> None:
    """Some at a time: who hears of it has work to do."""
    async for tip in each_of(tips, TOLD_AT_ONCE):
        tell(tip, found[tip])


def _key(tip: TopicIdPartition) -> str | UUID:
    return tip.topic if tip.topic_id == ZERO_UUID else tip.topic_id  # zero: brokers before 2.8


def _may_pass(found: object, topic_is_known: bool) -> bool:
    """Whether the same question may have another answer in a moment."""
    if not isinstance(found, ClusterError):
        return False
    return found.retriable or (topic_is_known and found.error_code in RETRIABLE)
