"""Asks each partition's leader; reads the ends of its log and of its leader epochs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from fetchproxy_protocol import list_offsets, offset_for_leader_epoch
from fetchproxy_protocol.apis import ApiKey, ErrorCode, WireError, error_text
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.list_offsets import OffsetResult
from fetchproxy_protocol.offset_for_leader_epoch import EpochResult
from fetchproxy_protocol.primitives import Cursor
from fetchproxy_protocol.topic_entries import TopicInfo

from fetchproxy.brokers.connections import BrokerConnection, BrokerConnections
from fetchproxy.brokers.messages import RETRIABLE
from fetchproxy.brokers.topic_metadata import ClusterMetadataCache
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.model import ZERO_UUID, EpochEnd, IsolationLevel, LogOffsets, TopicIdPartition
from fetchproxy.runtime.cooperative import chosen, collected, cooperative, forget
from fetchproxy.runtime.retrying import Backoff

T = TypeVar("T")
R = TypeVar("R", OffsetResult, EpochResult)

# Pauses between two tries at a leader. An election takes 10 ms to seconds, so the pauses begin
# low and stay below a second. request_max_ms limits the whole anyway.
_RETRY_PAUSES = Backoff(20, 500, 0.2)
RESULTS_PER_STEP = 20

_Topics = Mapping[str | UUID, TopicInfo | ClusterError]
AskTopics = Callable[[Collection[str | UUID]], Awaitable[_Topics]]
# Takes a leader and its wanted partitions. An error that it raises counts for all of them.
AskLeader = Callable[
    [HostPort, Mapping[TopicIdPartition, TopicInfo]],
    Awaitable[Mapping[TopicIdPartition, T | ClusterError]],
]
_GONE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
FoundLogOffsets = dict[TopicIdPartition, LogOffsets | ClusterError]
# (the leader's own epoch, the end it reports). None: it has no such request or reports no epochs.
LeaderEpochEnd = tuple[int, EpochEnd] | None


@dataclass(eq=False, repr=False)
class Leaders:
    _request_max_ms: int
    _rng: random.Random
    _metadata: ClusterMetadataCache
    _topics: AskTopics

    async def ask(
        self,
        tps: Collection[TopicIdPartition],
        ask: AskLeader[T],
        on_result: Callable[[TopicIdPartition, T | ClusterError], None] | None = None,
    ) -> dict[TopicIdPartition, T | ClusterError]:
        """`ask` each partition's leader. If it is wrong or lost: look it up again, back off, retry.

        The brokers are asked in parallel. No try begins later than request_max_ms after the first,
        so the whole takes up to twice that. If the Metadata response says that a topic is gone, the
        topic is not looked up again. Raises no ClusterError: each partition has its own.
        `on_result` is called for each partition as soon as it is settled, while others are still
        asked; perhaps twice.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request_max_ms / 1000
        attempts = 0
        results: dict[TopicIdPartition, T | ClusterError] = {}
        waiting: Collection[TopicIdPartition] = tps
        while True:
            topic_infos = await self._topics_of(waiting, results)
            await self._ask_once(topic_infos, ask, results, on_result)
            waiting = [
                tp async for tp in cooperative(waiting) if _may_pass(results[tp], tp in topic_infos)
            ]
            for name in {topic_infos[tp].name for tp in waiting if tp in topic_infos}:
                self._metadata.expire(name)
            attempts += 1
            pause_s = _RETRY_PAUSES.pause_ms(attempts, self._rng.random()) / 1000
            if not waiting or loop.time() + pause_s > deadline:
                if on_result is not None:
                    await _report_results(results, results, on_result)
                return results
            await asyncio.sleep(pause_s)

    async def _topics_of(
        self,
        tps: Collection[TopicIdPartition],
        results: dict[TopicIdPartition, T | ClusterError],
    ) -> dict[TopicIdPartition, TopicInfo]:
        """The topics of existing partitions; the errors of the others go into `results`."""
        keys = {_key(tp) async for tp in cooperative(tps)}
        try:
            topics = await self._topics(keys)
        except ClusterError as error:  # no broker has answered
            topics = dict.fromkeys(keys, error)
        topic_infos: dict[TopicIdPartition, TopicInfo] = {}
        async for tp in cooperative(tps):
            topic = topics[_key(tp)]
            if isinstance(topic, ClusterError):
                results[tp] = topic
            elif tp.partition not in topic.leaders:
                message = f"{tp} is not a partition of the topic"
                results[tp] = ClusterError(message, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                topic_infos[tp] = topic
        return topic_infos

    async def _ask_once(
        self,
        topic_infos: Mapping[TopicIdPartition, TopicInfo],
        ask: AskLeader[T],
        results: dict[TopicIdPartition, T | ClusterError],
        on_result: Callable[[TopicIdPartition, T | ClusterError], None] | None,
    ) -> None:
        by_leader: dict[HostPort, dict[TopicIdPartition, TopicInfo]] = {}
        async for tp, topic in cooperative(topic_infos.items()):
            leader = self._metadata.brokers.get(topic.leaders[tp.partition][0])
            if leader is None:
                message = f"{topic.name}-{tp.partition} has no leader"
                results[tp] = ClusterUnavailable(message, ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                by_leader.setdefault(leader, {})[tp] = topic

        async def ask_one(leader: HostPort, topics: Mapping[TopicIdPartition, TopicInfo]) -> None:
            try:
                results.update(await ask(leader, topics))
            except ClusterError as error:
                results.update(dict.fromkeys(topics, error))
            if on_result is not None:
                settled = await chosen(topics, lambda tp: not _may_pass(results[tp], True))
                await _report_results(settled, results, on_result)

        async with asyncio.TaskGroup() as asking:
            for address, led_tps in by_leader.items():
                asking.create_task(ask_one(address, led_tps), name=f"ask leader {address}")


async def _report_results(
    tps: Collection[TopicIdPartition],
    results: Mapping[TopicIdPartition, T | ClusterError],
    on_result: Callable[[TopicIdPartition, T | ClusterError], None],
) -> None:
    """A few at a time, because the called function has work to do."""
    async for tp in cooperative(tps, RESULTS_PER_STEP):
        on_result(tp, results[tp])


def _key(tp: TopicIdPartition) -> str | UUID:
    return tp.topic if tp.topic_id == ZERO_UUID else tp.topic_id  # zero: brokers before 2.8


def _may_pass(result: object, topic_is_known: bool) -> bool:
    """Whether the same request may succeed if it is sent again."""
    if not isinstance(result, ClusterError):
        return False
    return result.retriable or (topic_is_known and result.error_code in RETRIABLE)


class _Call:
    """Questions under way. `result` is set when the responses have come."""

    def __init__(self) -> None:
        self.tps: set[TopicIdPartition] = set()
        self.result: asyncio.Future[FoundLogOffsets] = asyncio.get_running_loop().create_future()


class LogOffsetsReads:
    """Start and end of partitions' local logs, from their leaders (ListOffsets), with the time.

    Sends three requests to each broker, however many partitions it leads. A caller that asks for a
    partition that another caller already asks about waits for the same response.
    """

    def __init__(self, leaders: Leaders, connections: BrokerConnections) -> None:
        self._leaders = leaders
        self._connections = connections
        self.known: dict[TopicIdPartition, LogOffsets] = {}
        self._single_flights: list[_Call] = []

    async def forget(self, is_gone: Callable[[TopicIdPartition], bool]) -> None:
        await forget(self.known, is_gone)

    async def get(
        self, tps: Collection[TopicIdPartition], not_older_than: float
    ) -> FoundLogOffsets:
        """Log offsets that were read at that loop time (s) or later. A time in the future means
        now. Raises no ClusterError.
        """
        oldest = min(not_older_than, asyncio.get_running_loop().time())
        failed: FoundLogOffsets = {}

        def is_due(tp: TopicIdPartition) -> bool:
            cached = self.known.get(tp)
            return tp not in failed and (cached is None or cached.read_at < oldest)

        while due := await chosen(tps, is_due):
            call, other_calls = _Call(), set[_Call]()
            self._single_flights.append(call)
            try:
                async for tp in cooperative(due):
                    other = next((f for f in self._single_flights if tp in f.tps), None)
                    if other is None:
                        call.tps.add(tp)
                    else:
                        other_calls.add(other)
                if call.tps:
                    failed.update(await self._ask(call.tps))
            finally:
                # If this caller was cancelled, there are no errors: the waiting callers ask then.
                self._single_flights.remove(call)
                call.result.set_result(failed)
            if not call.tps:
                # Flights that began before `oldest` may land here; the next round then asks again.
                await asyncio.wait([call.result for call in other_calls])
                for call in other_calls:
                    errors = call.result.result()
                    failed.update({tp: errors[tp] for tp in due if tp in errors})
        error = ClusterError("the topic was deleted", ErrorCode.UNKNOWN_TOPIC_ID)
        log_offsets: FoundLogOffsets = {}
        async for tp in cooperative(tps):
            log_offsets[tp] = failed.get(tp) or self.known.get(tp) or error
        return log_offsets

    async def _ask(self, tps: Collection[TopicIdPartition]) -> FoundLogOffsets:
        """Returns the errors. Keeps each broker's response at once, while others are still
        asked.
        """
        failed: FoundLogOffsets = {}
        results = await self._leaders.ask(tps, self._ask_leader)
        async for tp, log_offsets in cooperative(results.items()):
            if isinstance(log_offsets, ClusterError):
                failed[tp] = log_offsets
                if log_offsets.error_code in _GONE:
                    self.known.pop(tp, None)
        return failed

    async def _ask_leader(
        self, leader: HostPort, topics: Mapping[TopicIdPartition, TopicInfo]
    ) -> FoundLogOffsets:
        sent_at = asyncio.get_running_loop().time()
        connection = await self._connections.shared(leader)
        version = connection.version_of(ApiKey.LIST_OFFSETS)
        # The start first and the high watermark last, so that start <= LSO <= high watermark.
        timestamps = (
            (list_offsets.EARLIEST, IsolationLevel(0)),
            (list_offsets.LATEST, IsolationLevel.READ_COMMITTED),
            (list_offsets.LATEST, IsolationLevel.READ_UNCOMMITTED),
        )
        by_topic: dict[str, list[tuple[int, int]]] = {}
        async for tp, topic in cooperative(topics.items()):
            epoch = topic.leaders[tp.partition][1]
            by_topic.setdefault(topic.name, []).append((tp.partition, epoch))
        bodies = []
        for timestamp, isolation in timestamps:
            written = list_offsets.write_request(version, isolation, by_topic, timestamp)
            bodies.append(b"".join(await collected(written)))
        payloads = await connection.send(ApiKey.LIST_OFFSETS, version, bodies)
        starts, stables, ends = [
            await _results(payload, ApiKey.LIST_OFFSETS, version, list_offsets.results_in)
            for payload in payloads
        ]
        by_tp: FoundLogOffsets = {}
        async for tp, topic in cooperative(topics.items()):
            key = (topic.name, tp.partition)
            results = starts.get(key), stables.get(key), ends.get(key)
            by_tp[tp] = log_offsets = _log_offsets_of(sent_at, *results)
            if isinstance(log_offsets, LogOffsets):
                self.known[tp] = log_offsets
        return by_tp


def _log_offsets_of(
    sent_at: float, *results: OffsetResult | ClusterError | None
) -> LogOffsets | ClusterError:
    """Log offsets, made of the log start, the last stable offset and the high watermark."""
    offset_results: list[OffsetResult] = []
    for result in results:
        if isinstance(result, ClusterError):
            return result
        if result is None:
            return ClusterError("ListOffsets was answered without the partition")
        offset_results.append(result)
    start, stable, end = offset_results
    return LogOffsets(start.offset, end.offset, stable.offset, start.leader_epoch, sent_at)


async def epoch_ends(
    connection: BrokerConnection,
    topics: Mapping[TopicIdPartition, TopicInfo],
    epochs: Mapping[TopicIdPartition, int],
) -> dict[TopicIdPartition, LeaderEpochEnd | ClusterError]:
    """Where one epoch of each partition ended in its leader's log (OffsetForLeaderEpoch).

    (-1, -1): the leader knows no epoch so high.
    """
    api_key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    ends: dict[TopicIdPartition, LeaderEpochEnd | ClusterError] = dict.fromkeys(topics, None)
    if api_key not in connection.versions:
        return ends
    by_topic: dict[str, list[tuple[int, int, int]]] = {}
    async for tp, topic in cooperative(topics.items()):
        current = topic.leaders[tp.partition][1]
        if current >= 0:
            by_topic.setdefault(topic.name, []).append((tp.partition, current, epochs[tp]))
    if not by_topic:
        return ends
    version = connection.version_of(api_key)
    body = b"".join(await collected(offset_for_leader_epoch.write_request(version, by_topic)))
    [payload] = await connection.send(api_key, version, [body])
    results = await _results(payload, api_key, version, offset_for_leader_epoch.results_in)
    async for tp, topic in cooperative(topics.items()):
        current = topic.leaders[tp.partition][1]
        if current >= 0:
            missing = ClusterError("OffsetForLeaderEpoch was answered without the partition")
            end = results.get((topic.name, tp.partition), missing)
            ends[tp] = (
                end
                if isinstance(end, ClusterError)
                else (current, EpochEnd(end.leader_epoch, end.end_offset))
            )
    return ends


async def _results(
    payload: memoryview,
    api_key: ApiKey,
    version: int,
    results_in: Callable[[Cursor, int], Iterator[R]],
) -> dict[tuple[str, int], R | ClusterError]:
    """By topic and partition. Raises ClusterError."""
    api = "".join(map(str.capitalize, api_key.name.split("_")))
    results: dict[tuple[str, int], R | ClusterError] = {}
    try:
        async for result in cooperative(
            results_in(response_body(payload, api_key, version), version)
        ):
            code, topic = result.error_code, result.topic
            error = ClusterError(f"{api} of {topic}: {error_text(code)}", code) if code else None
            results[topic, result.partition] = error or result
    except WireError as error:
        raise ClusterError(f"{api} version {version} is malformed: {error}") from None
    return results
