"""The archive's part of a Fetch answer: partition entries in the client's own version. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fetchproxy.model import AbortedTxn, IsolationLevel
from protocol.fetch_request import FLEXIBLE_FROM, PartitionKey, TopicRef
from protocol.fetch_response import (
    FetchResponseHead,
    PartitionPatch,
    encode_head,
    encode_partition_end,
    encode_partition_start,
    encode_topic_end,
    encode_topic_start,
)
from protocol.primitives import Buffer


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    key: PartitionKey
    watermarks: PartitionPatch
    error_code: int = 0
    records: Sequence[Buffer] = ()
    aborted: Sequence[AbortedTxn] = ()

    @property
    def has_news(self) -> bool:
        """Incremental answers name only such partitions."""
        return bool(self.records) or self.error_code != 0


@dataclass(frozen=True, slots=True)
class EncodedTopics:
    topics: int
    pieces: Sequence[Buffer]

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


def encode_topics(
    version: int, isolation: IsolationLevel, answers: Iterable[PartitionAnswer]
) -> EncodedTopics:
    """`answers` as topic entries; records are not copied."""
    grouped: dict[TopicRef, list[PartitionAnswer]] = {}
    for answer in answers:
        grouped.setdefault(answer.key[0], []).append(answer)
    pieces: list[Buffer] = []
    for topic, partitions in grouped.items():
        pieces.append(encode_topic_start(version, topic, len(partitions)))
        for answer in partitions:
            aborted = None
            if isolation is IsolationLevel.READ_COMMITTED:
                aborted = [(a.producer_id, a.first_offset) for a in answer.aborted]
            pieces.append(
                encode_partition_start(
                    version,
                    answer.key[1],
                    answer.error_code,
                    answer.watermarks,
                    aborted,
                    sum(map(len, answer.records)),
                )
            )
            pieces.extend(answer.records)
            pieces.append(encode_partition_end(version))
        pieces.append(encode_topic_end(version))
    return EncodedTopics(len(grouped), pieces)


def encode_own_answer(
    version: int, correlation_id: int, session_id: int, topics: EncodedTopics
) -> list[Buffer]:
    """A whole framed answer, without any part of the broker's."""
    tail = b"\x00" if version >= FLEXIBLE_FROM else b""
    head = FetchResponseHead(correlation_id, 0, 0, session_id, topics.topics)
    return [encode_head(version, head, topics.size + len(tail)), *topics.pieces, tail]
