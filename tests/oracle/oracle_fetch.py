"""Fetch as both sides are asked it: composed by topic, read back by partition, compared."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from oracle_asks import Place, epoch_number, relative_epoch
from oracle_rules import (
    KAFKA,
    PROXY,
    Findings,
    Part,
    PartitionAsk,
    check_archived,
    compare_parts,
    is_archived,
    read_part,
)
from oracle_world import Key, TwinTopic, World

TOPIC_IDS_FROM = 13


@dataclass(frozen=True)
class FetchAsk:
    """A sessionless Fetch of one or more partitions (by number, whichever topic they are of)."""

    version: int
    places: tuple[tuple[int, Place], ...]
    isolation: int = 0
    partition_bytes: int = 1 << 20
    max_bytes: int = 50 << 20
    min_bytes: int = 1
    wait_ms: int = 20
    epoch: int | None = None  # relative to the current one

    def __str__(self) -> str:
        where = ", ".join(f"t{topic}@{place}" for topic, place in self.places)
        text = f"fetch v{self.version} {where} isolation={self.isolation}"
        text += f" bytes={self.partition_bytes}/{self.max_bytes} min={self.min_bytes}"
        return text + f" wait={self.wait_ms}ms epoch={self.epoch}"

    def run(self, world: World, topics: list[TwinTopic], findings: Findings) -> None:
        only = {topics[number].key: topics[number] for number, _ in self.places}
        offsets = {topics[n].key: place.offset(topics[n]) for n, place in self.places}
        deadline = time.monotonic() + world.settle_s
        parts = self._both(world, only, offsets)
        while time.monotonic() < deadline:
            late = [i for i in (0, 1) if self._unsettled(parts, i, only, offsets)]
            if not late:
                break
            for i in late:
                parts[i] = self._once(world, i, only, offsets)
        self._check_total(findings, list(parts[1].values()))
        limit = min(self.partition_bytes, self.max_bytes)
        for key, topic in only.items():
            ask = PartitionAsk(offsets[key], self.isolation, limit)
            if len(only) == 1:
                compare_parts(findings, topic, ask, parts[0][key], parts[1][key])
            else:
                _compare_shared(findings, topic, ask, parts[0][key], parts[1][key])

    def _check_total(self, findings: Findings, proxys: list[Part]) -> None:
        """KIP-74: only a response's first batch may be larger. (Kafka < 4.2 counts remote reads
        as nothing, KAFKA-19462, so only one side is held to it.)"""
        batches = sum(len(part.batches) for part in proxys)
        size = sum(part.size_bytes for part in proxys)
        if batches > 1 and size > self.max_bytes:
            findings.add("fetch.too large in all from fetchproxy", self.max_bytes, size)

    def _unsettled(
        self,
        parts: list[dict[Key, Part]],
        i: int,
        topics: dict[Key, TwinTopic],
        offsets: dict[Key, int],
    ) -> bool:
        """All is empty although data or an error must come: Kafka asks such a client to go on."""
        parts_of_side, others = parts[i], parts[1 - i]
        if any(others[key].error and not part.error for key, part in parts_of_side.items()):
            return all(part.empty for part in parts_of_side.values()) or len(parts_of_side) > 1
        if not all(part.empty for part in parts_of_side.values()):
            return False
        holds = any(topics[key].log.holds(offsets[key], self.isolation) for key in parts_of_side)
        return holds or not all(part.empty for part in others.values())

    def _fields(
        self, i: int, topics: dict[Key, TwinTopic], offsets: dict[Key, int], world: World
    ) -> dict[str, Any]:
        partition_fields = {
            key: {
                "current_leader_epoch": epoch_number(
                    topic.names[i], relative_epoch(topic, self.epoch)
                ),
                "fetch_offset": offsets[key],
                "partition_max_bytes": self.partition_bytes,
            }
            for key, topic in topics.items()
        }
        return fetch_fields(self, fetch_entries(partition_fields, world.sides[i].topic_ids))

    def _both(
        self, world: World, topics: dict[Key, TwinTopic], offsets: dict[Key, int]
    ) -> list[dict[Key, Part]]:
        responses = world.ask(
            "Fetch", self.version, lambda i: self._fields(i, topics, offsets, world)
        )
        return [self._read(world, i, responses[i], topics) for i in (0, 1)]

    def _once(
        self, world: World, i: int, topics: dict[Key, TwinTopic], offsets: dict[Key, int]
    ) -> dict[Key, Part]:
        fields = self._fields(i, topics, offsets, world)
        response = world.sides[i].wire.ask("Fetch", self.version, fields)
        return self._read(world, i, response, topics)

    def _read(
        self, world: World, i: int, response: Any, topics: dict[Key, TwinTopic]
    ) -> dict[Key, Part]:
        side = world.sides[i]
        parts = fetched_parts(response, self.version, i, side.topic_ids, topics)
        assert parts.keys() == topics.keys(), f"{side.name} answered {sorted(parts)}"
        return parts


def fetch_entries(
    partition_fields: Mapping[Key, Mapping[str, Any]], ids: Mapping[str, UUID]
) -> list[dict[str, Any]]:
    """Partitions' fields, grouped by topic."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for (name, number), fields in partition_fields.items():
        always = {"partition": number, "last_fetched_epoch": -1, "log_start_offset": -1}
        grouped.setdefault(name, []).append(always | dict(fields))
    return [
        {"topic": name, "topic_id": ids[name], "partitions": parts}
        for name, parts in grouped.items()
    ]


def fetched_parts(
    response: Any, version: int, i: int, ids: Mapping[str, UUID], topics: Mapping[Key, TwinTopic]
) -> dict[Key, Part]:
    """What side `i` answered; each partition may come once, and only if it was asked."""
    assert response.error_code == 0, response
    names = {ids[name]: name for name, _ in topics}
    parts: dict[Key, Part] = {}
    for entry in response.responses:
        name = names[entry.topic_id] if version >= TOPIC_IDS_FROM else entry.topic
        for partition in entry.partitions:
            key = (name, partition.partition_index)
            assert key in topics, f"side {i} was not asked for {key}: {response}"
            assert key not in parts, f"side {i} answered {key} twice: {response}"
            parts[key] = read_part(partition, version, topics[key].names[i])
    return parts


def fetch_fields(
    ask: Any, entries: list[dict[str, Any]], session: tuple[int, int] = (0, -1)
) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait_ms": ask.wait_ms,
        "min_bytes": ask.min_bytes,
        "max_bytes": ask.max_bytes,
        "isolation_level": ask.isolation,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": entries,
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _compare_shared(
    findings: Findings, topic: TwinTopic, request: PartitionAsk, kafka: Part, proxy: Part
) -> None:
    """Partitions of one fetch share its bytes, and which one gets them is left to the broker.

    So each response alone must be right; that nobody starves is what `DrainAsk` looks at.
    """
    if kafka.error or proxy.error:
        findings.equal("fetch.shared.error", kafka.error, proxy.error)
        return
    if kafka.empty != proxy.empty:
        findings.add("fetch-shared-bytes", kafka.size_bytes, proxy.size_bytes)
    for name, part in ((KAFKA, kafka), (PROXY, proxy)):
        if part.empty:
            continue
        if is_archived(topic, request.offset):
            check_archived(findings, name, topic, request, part)
        else:
            expected = topic.log.from_offset(request.offset)[: len(part.batches)]
            findings.equal(f"fetch.shared.records of {name}", expected, part.batches)
