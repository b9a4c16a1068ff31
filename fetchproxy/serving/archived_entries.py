"""The archive's part of a Fetch response: chooses the records that fit, and encodes them. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from fetchproxy_protocol.fetch import (
    FetchRequest,
    FetchResponseHead,
    PartitionEntries,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    encode_partition_start,
    no_tags,
    response_in_steps,
)
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.model import IsolationLevel
from fetchproxy.segments.aborted_index import AbortedSpan, cut_spans, txn_starts
from fetchproxy.serving.transport import first_bytes

EncodedTopics = Mapping[TopicRef, PartitionEntries]
# A batch (v2) up to the offset of its last record: base offset, length, …, last offset delta.
_BATCH_START = Struct(">qi11xi")
_BATCH_PREFIX_BYTES = 12  # not counted in the batch's length
# Partitions encoded in one step, some 3 µs each.
_ENCODED_AT_ONCE = 400


class PartitionResponse(NamedTuple):
    """`skipped`: the lost offsets in front of `records`, as (first, last), both inclusive."""

    key: PartitionKey
    watermarks: PartitionPatch
    error_code: int = 0
    records: Sequence[Buffer] = ()
    aborted: Sequence[AbortedSpan] = ()
    skipped: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes of records."""
        return sum(map(len, self.records))

    def has_news(self, last_sent: PartitionPatch | None) -> bool:
        """Incremental responses list only partitions with news (Kafka's maybeUpdateResponseData).
        `last_sent`: the log ends that the client last saw.
        """
        return bool(self.records) or self.error_code != 0 or self.watermarks != last_sent


@dataclass(slots=True)
class ResponseRoom:
    """The room for records in a whole response, used up by one partition after the other.

    `first_whole`: the first batch of the response goes even if it does not fit (KIP-74).
    `left_off`: some batches did not fit.
    """

    bytes_max: int
    first_whole: bool
    left_off: bool = False

    def fit(self, response: PartitionResponse) -> PartitionResponse:
        """`response` with as many whole batches as fit."""
        if not response.records:
            return response
        size = response.size
        if size > self.bytes_max:
            response = _first_batches(response, self.bytes_max, self.first_whole)
            self.left_off = self.left_off or response.size < size
        if response.size:
            self.bytes_max -= response.size
            self.first_whole = False
        return response


def _first_batches(
    response: PartitionResponse, bytes_max: int, first_whole: bool
) -> PartitionResponse:
    """Also cuts the aborted transactions: those that begin after the last record are left out."""
    pieces = [memoryview(records) for records in response.records]
    total, last_offset = 0, -1
    while len(start := _peek(pieces, total)) == _BATCH_START.size:
        base_offset, length, last_delta = _BATCH_START.unpack(start)
        size = length + _BATCH_PREFIX_BYTES
        if total + size > bytes_max and (total or not first_whole):
            break
        total += size
        last_offset = base_offset + last_delta
    aborted = cut_spans(response.aborted, last_offset)
    return response._replace(records=first_bytes(pieces, total), aborted=aborted)


def _peek(pieces: Iterable[memoryview], position: int) -> bytes:
    """The start of the batch at `position`, which may extend over several pieces."""
    start = b""
    for piece in pieces:
        if position < len(piece):
            start += piece[position : position + _BATCH_START.size - len(start)]
            if len(start) == _BATCH_START.size:
                break
        position = max(position - len(piece), 0)
    return start


def encode_topics(
    request: FetchRequest, responses: Iterable[PartitionResponse]
) -> Generator[None, None, EncodedTopics]:
    """The entries of `responses`; records are not copied. The caller may pause at each yield."""
    version, committed = request.version, IsolationLevel.READ_COMMITTED
    tags = no_tags(version)
    grouped: dict[TopicRef, list[PartitionResponse]] = {}
    for response in responses:
        grouped.setdefault(response.key[0], []).append(response)
    topics: dict[TopicRef, PartitionEntries] = {}
    encoded = 0
    for topic, partitions in grouped.items():
        pieces: list[Buffer] = []
        for response in partitions:
            encoded += 1
            if not encoded % _ENCODED_AT_ONCE:
                yield
            aborted = None
            if request.isolation_level == committed:
                starts = yield from txn_starts(response.aborted)
                aborted = [(producer_id, first_offset) for first_offset, producer_id in starts]
            pieces.append(
                encode_partition_start(
                    version,
                    response.key[1],
                    response.error_code,
                    response.watermarks,
                    aborted,
                    response.size,
                )
            )
            pieces.extend(response.records)
            pieces.append(tags)
        topics[topic] = PartitionEntries(len(partitions), pieces)
    return topics


def encode_proxy_response(
    request: FetchRequest,
    session_id: int,
    responses: Iterable[PartitionResponse],
    throttle_time_ms: int,
) -> Generator[None, None, list[Buffer]]:
    """A whole framed response of the proxy alone. Yields like `encode_topics`."""
    topics = yield from encode_topics(request, responses)
    head = FetchResponseHead(request.correlation_id, throttle_time_ms, 0, session_id, len(topics))
    return (yield from response_in_steps(request.version, head, topics))
