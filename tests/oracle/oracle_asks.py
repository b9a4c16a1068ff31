"""Questions that both sides are asked, and how their responses are compared.

Each is a frozen value whose `str` is its line in a transcript; offsets are `Place`s, resolved when
the question is asked, so that a shorter sequence still asks something sensible.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from oracle_log import Names
from oracle_rules import Findings
from oracle_world import TwinTopic, World

LATEST_TIERED = -5
# REPLICA_NOT_AVAILABLE, UNKNOWN_SERVER_ERROR: what a leader says that is new to its remote tier;
# REQUEST_TIMED_OUT: where Kafka's own look into its remote tier took too long.
_NOT_YET = (9, -1, 7)
SPECIAL = {-1: "latest", -2: "earliest", -3: "max timestamp", -4: "earliest local"}
SPECIAL |= {-5: "latest tiered", -6: "earliest pending upload"}


@dataclass(frozen=True)
class Place:
    """An offset by what it is near to: `Place("local", -1)` is the last one that was trimmed."""

    anchor: str
    delta: int = 0
    share: float = 0.0

    def offset(self, topic: TwinTopic) -> int:
        log = topic.log
        anchors = {
            "start": log.log_start,
            "local": log.local_start,
            "archived": log.archived,
            "stable": log.last_stable,
            "end": log.end,
            "share": int(log.end * self.share),
            "zero": 0,
        }
        return max(anchors[self.anchor] + self.delta, 0)

    def __str__(self) -> str:
        if self.anchor == "share":
            return f"{self.share:.0%}"
        return self.anchor + (f"{self.delta:+d}" if self.delta else "")


def epoch_number(names: Names, ordinal: int | None) -> int:
    """A side's number for `ordinal`; those never seen lie above all known; None: do not check."""
    if ordinal is None:
        return -1
    if 0 <= ordinal < len(names.epochs):
        return names.epochs[ordinal]
    return names.epochs[-1] + 100 * (ordinal - len(names.epochs) + 1) if ordinal >= 0 else ordinal


def relative_epoch(topic: TwinTopic, relative: int | None) -> int | None:
    """The ordinal of the current epoch plus `relative`; one below the first is the first."""
    if relative is None:
        return None
    return max(len(topic.names[0].epochs) - 1 + relative, 0)


@dataclass(frozen=True)
class ListOffsetsAsk:
    """`time` is a special one, or (batch share, ms to add) of a written batch."""

    version: int
    topic: int
    time: int | tuple[float, int]
    isolation: int = 0
    epoch: int | None = None

    def __str__(self) -> str:
        what = SPECIAL.get(self.time, self.time) if isinstance(self.time, int) else self.time
        text = f"list offsets v{self.version} t{self.topic} {what}"
        return f"{text} isolation={self.isolation} epoch={self.epoch}"

    def run(self, world: World, topics: list[TwinTopic], findings: Findings) -> None:
        topic = topics[self.topic]
        timestamp = self.time if isinstance(self.time, int) else _time_near(topic, *self.time)

        def fields(i: int) -> dict[str, Any]:
            current = epoch_number(topic.names[i], relative_epoch(topic, self.epoch))
            part = {"partition_index": topic.partition, "timestamp": timestamp}
            part |= {"current_leader_epoch": current}
            entry = {"name": topic.name, "partitions": [part]}
            request_fields = {
                "replica_id": -1,
                "isolation_level": self.isolation,
                "topics": [entry],
            }
            return request_fields | {"timeout_ms": 30_000}

        responses = world.ask("ListOffsets", self.version, fields)
        deadline = time.monotonic() + world.settle_s
        while _code(responses[0]) in _NOT_YET and time.monotonic() < deadline:
            responses = world.ask("ListOffsets", self.version, fields)
        offsets_of_sides = []
        for i, response in enumerate(responses):
            p = response.topics[0].partitions[0]
            epoch = topic.names[i].epoch(p.leader_epoch) if self.version >= 4 else None
            time_shown = "marker" if 0 < p.timestamp < world.first_ms else p.timestamp
            offsets_of_sides.append((p.error_code, p.offset, time_shown, epoch))
        if offsets_of_sides[0] != offsets_of_sides[1]:
            findings.add(
                _kind(topic, timestamp, offsets_of_sides), offsets_of_sides[0], offsets_of_sides[1]
            )


def _kind(topic: TwinTopic, timestamp: int, responses: list[tuple[Any, ...]]) -> str:
    if responses[0][0] != responses[1][0]:
        return "list-offsets.error"
    gone = topic.log.archived <= topic.log.log_start
    if timestamp == LATEST_TIERED and gone and responses[1][1:] == (-1, -1, responses[1][3]):
        return "list-offsets-latest-tiered-of-nothing"
    return f"list-offsets.{SPECIAL.get(timestamp, 'timestamp')}"


def _code(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


def _time_near(topic: TwinTopic, share: float, delta_ms: int) -> int:
    data = [b for b in topic.log.batches if isinstance(b.rest, tuple)]
    if not data:
        return topic.clock_ms
    batch = data[min(int(share * len(data)), len(data) - 1)]
    assert isinstance(batch.rest, tuple)
    return int(batch.rest[0]) + delta_ms


@dataclass(frozen=True)
class EpochAsk:
    """OffsetForLeaderEpoch; `epoch` counts from 0, those above the current one are unknown."""

    version: int
    topic: int
    epoch: int
    current: int | None = None

    def __str__(self) -> str:
        text = f"offset for epoch v{self.version} t{self.topic} epoch={self.epoch}"
        return f"{text} current={self.current}"

    def run(self, world: World, topics: list[TwinTopic], findings: Findings) -> None:
        topic = topics[self.topic]

        def fields(i: int) -> dict[str, Any]:
            names = topic.names[i]
            current = epoch_number(names, relative_epoch(topic, self.current))
            leader_epoch = epoch_number(names, self.epoch)
            part = {"partition": topic.partition, "current_leader_epoch": current}
            part |= {"leader_epoch": leader_epoch}
            return {"replica_id": -1, "topics": [{"topic": topic.name, "partitions": [part]}]}

        responses = []
        for i, response in enumerate(world.ask("OffsetForLeaderEpoch", self.version, fields)):
            p = response.topics[0].partitions[0]
            responses.append((p.error_code, topic.names[i].epoch(p.leader_epoch), p.end_offset))
        findings.equal("offset-for-leader-epoch", responses[0], responses[1])


@dataclass(frozen=True)
class MetadataAsk:
    version: int
    topic: int

    def __str__(self) -> str:
        return f"metadata v{self.version} t{self.topic}"

    def run(self, world: World, topics: list[TwinTopic], findings: Findings) -> None:
        topic = topics[self.topic]

        def fields(i: int) -> dict[str, Any]:
            return {"topics": [{"name": topic.name, "topic_id": UUID(int=0)}]}

        responses = []
        for i, response in enumerate(world.ask("Metadata", self.version, fields)):
            ports = {broker.node_id: broker.port for broker in response.brokers}
            own_port = world.sides[i].kafka.port
            dialled = "broker" if set(ports.values()) == {own_port} else "other"
            assert dialled == ("broker" if i == 0 else "other"), f"side {i} shows {ports}"
            entry = response.topics[0]
            known = world.sides[i].topic_ids[topic.name]
            same_id = self.version < 10 or entry.topic_id == known
            parts = [
                (p.partition_index, p.error_code, p.leader_id, p.replica_nodes, p.isr_nodes)
                + ((topic.names[i].epoch(p.leader_epoch),) if self.version >= 7 else ())
                for p in entry.partitions
                if p.partition_index == topic.partition
            ]
            responses.append((sorted(ports), entry.error_code, entry.name, same_id, parts))
        findings.equal("metadata", responses[0], responses[1])


@dataclass(frozen=True)
class DescribeAsk:
    topic: int

    def __str__(self) -> str:
        return f"describe topic partitions t{self.topic}"

    def run(self, world: World, topics: list[TwinTopic], findings: Findings) -> None:
        topic = topics[self.topic]

        def fields(i: int) -> dict[str, Any]:
            request_fields = {"topics": [{"name": topic.name}], "response_partition_limit": 10}
            return request_fields | {"cursor": None}

        responses = []
        for i, response in enumerate(world.ask("DescribeTopicPartitions", 0, fields)):
            entry = response.topics[0]
            parts = [
                (
                    p.partition_index,
                    p.error_code,
                    p.leader_id,
                    topic.names[i].epoch(p.leader_epoch),
                    p.isr_nodes,
                )
                for p in entry.partitions
                if p.partition_index == topic.partition
            ]
            same_id = entry.topic_id == world.sides[i].topic_ids[topic.name]
            responses.append((entry.error_code, entry.name, same_id, parts))
        findings.equal("describe-topic-partitions", responses[0], responses[1])
