"""A bare client of fetch sessions: it sends exactly what a test gives it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fetchproxy_protocol.record_batch import walk
from kafka.protocol.consumer import FetchRequest, FetchResponse
from raw_fetch import RawConnection

Offsets = Mapping[int, int]


@dataclass(frozen=True)
class Part:
    error: int
    high_watermark: int
    log_start_offset: int
    offsets: tuple[int, ...]  # base offsets of whole batches
    next_offset: int  # after the last of them, -1: no batches
    size: int


@dataclass(frozen=True)
class SessionResponse:
    error: int
    session_id: int
    throttle_ms: int
    parts: Mapping[tuple[str, int], Part]


class SessionClient(RawConnection):
    """`version` ≥ 7; topics are named by id from version 13 on."""

    def __init__(self, bootstrap: str, version: int) -> None:
        super().__init__(bootstrap)
        self.version = version
        self._ids: dict[str, UUID] = {}

    def _id_of(self, topic: str) -> UUID:
        if topic not in self._ids:
            self._ids[topic] = self.topic_id(topic)
        return self._ids[topic]

    def poll(
        self,
        session: tuple[int, int],
        offsets_by_topic: Mapping[str, Offsets],
        forgotten: Mapping[str, list[int]] | None = None,
        *,
        version: int | None = None,
        wait_ms: int = 100,
        bytes_max: int = 50 << 20,
        partition_bytes: int = 1 << 20,
    ) -> SessionResponse:
        version = version or self.version
        request = FetchRequest[version]()
        request.replica_id, request.max_wait_ms, request.min_bytes = -1, wait_ms, 1
        request.max_bytes, request.isolation_level = bytes_max, 0
        request.session_id, request.session_epoch = session
        request.rack_id = ""
        request.topics, request.forgotten_topics_data = [], []
        for topic, offsets in offsets_by_topic.items():
            fetch_topic = FetchRequest.FetchTopic(version=version)
            fetch_topic.topic, fetch_topic.topic_id, fetch_topic.partitions = topic, None, []
            if version >= 13:
                fetch_topic.topic_id = self._id_of(topic)
            for partition, offset in offsets.items():
                entry = FetchRequest.FetchTopic.FetchPartition(version=version)
                entry.partition, entry.fetch_offset = partition, offset
                entry.partition_max_bytes = partition_bytes
                fetch_topic.partitions.append(entry)
            request.topics.append(fetch_topic)
        for topic, partitions in (forgotten or {}).items():
            gone = FetchRequest.ForgottenTopic(version=version)
            gone.topic, gone.topic_id, gone.partitions = topic, None, partitions
            if version >= 13:
                gone.topic_id = self._id_of(topic)
            request.forgotten_topics_data.append(gone)
        response = self.ask(request, FetchResponse, version)
        if session[1] <= 0:  # all are listed; an incremental answer may list a topic twice
            listed = [
                topic.topic_id if version >= 13 else topic.topic for topic in response.responses
            ]
            assert len(listed) == len(set(listed)), "a topic has two entries"
        return self._read(response, version)

    def _read(self, response: Any, version: int) -> SessionResponse:
        names = {topic_id: name for name, topic_id in self._ids.items()}
        parts: dict[tuple[str, int], Part] = {}
        for topic in response.responses:
            name = names[topic.topic_id] if version >= 13 else topic.topic
            for p in topic.partitions:
                records = bytes(p.records or b"")
                assert (name, p.partition_index) not in parts, "named twice"
                parts[name, p.partition_index] = Part(
                    p.error_code, p.high_watermark, p.log_start_offset,
                    tuple(batch.base_offset for batch in walk(records)),
                    max((batch.last_offset + 1 for batch in walk(records)), default=-1),
                    len(records),
                )  # fmt: skip
        return SessionResponse(
            response.error_code, response.session_id, response.throttle_time_ms, parts
        )


class Session:
    """Keeps (id, epoch) as a well-behaved client does."""

    def __init__(
        self, client: SessionClient, offsets_by_topic: Mapping[str, Offsets], **more: Any
    ) -> None:
        self.client, self.more = client, more
        first = client.poll((0, 0), offsets_by_topic, **more)
        assert first.error == 0
        assert first.session_id != 0
        self.id, self.epoch, self.first = first.session_id, 1, first

    def poll(
        self,
        offsets_by_topic: Mapping[str, Offsets] | None = None,
        forgotten: Mapping[str, list[int]] | None = None,
        **more: Any,
    ) -> SessionResponse:
        response = self.client.poll(
            (self.id, self.epoch), offsets_by_topic or {}, forgotten, **{**self.more, **more}
        )
        if not response.error:
            assert response.session_id in (self.id, 0)
            self.epoch += 1
        return response

    def until(self, key: tuple[str, int], check: Any) -> Part:
        """Poll without changes until `check` holds for a response's part of `key`."""
        deadline = time.monotonic() + 30
        while True:
            part = self.poll().parts.get(key)
            if part is not None and check(part):
                return part
            assert time.monotonic() < deadline, f"{key}: last was {part}"
