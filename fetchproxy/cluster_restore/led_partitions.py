"""How the phantom leader responds to its followers. Pure.

A follower with an empty log fetches at 0. If that is out of the range of the phantom's log, it is
told so, asks for the ends of the leader's log, and then truncates its own log so that it begins at
the leader's start. From there it fetches all records up to the end. It proves that by a fetch at
the end that says where its log begins: nothing else counts as a proof.

The log of most partitions is empty: its start is its end. That of a partition with local history
has the archived batches, as the old leader had them, with its leader epochs. The rules are those of
Kafka's `Partition.readRecords` and `LeaderEpochFileCache`; a follower whose last epoch ends earlier
in this log is told where (KIP-595, DivergingEpoch), and truncates there.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from fetchproxy_protocol import fetch as wire
from fetchproxy_protocol import list_offsets
from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch_layout import TOPIC_IDS_FROM
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.cluster_restore.plan import Place
from fetchproxy.metadata.lineage import UNDEFINED_EPOCH, end_offset_for
from fetchproxy.model import EpochEnd, EpochStart

# A row takes some 5 µs.
_ROWS_A_STEP = 250
# One tag, DivergingEpoch (0), of 13 bytes: epoch, end offset and no tags.
_DIVERGING = Struct(">BBBiqB")
_ANY_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class LedLog:
    """The log that followers have to get. `epochs`: from its start on. `append_bytes_max`: most
    bytes of records in one response, as a follower appends them to one segment.
    """

    start_offset: int
    end_offset: int
    epochs: tuple[EpochStart, ...] = ()
    append_bytes_max: int = _ANY_BYTES


@dataclass(slots=True)
class LedPartition:
    """`placed`: replicas that are proven to have the log up to its end. `fetched_to`: up to where
    each replica has it. `sent_from`: the offset from which it was last sent records.
    """

    log: LedLog
    placed: set[int] = field(default_factory=set)
    fetched_to: dict[int, int] = field(default_factory=dict)
    sent_from: dict[int, int] = field(default_factory=dict)


class NeededRecords(NamedTuple):
    """A follower fetches at `offset`, which is below `end_offset`."""

    offset: int
    end_offset: int
    bytes_max: int


class Records(NamedTuple):
    """Whole batches, as they are stored."""

    pieces: Sequence[Buffer]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """`is_news`: the follower learns something, so it must not wait for the response."""

    pieces: Sequence[Buffer]
    is_news: bool


class LedPartitions:
    """The partitions that the phantom leads, and the replicas that have followed it.

    `followers`: the brokers; no other id proves anything. None: any id may be one.
    `progress`: rises whenever a follower gets further. `sent_bytes`: of records.
    """

    def __init__(self, followers: Collection[int] | None = None) -> None:
        self._followers = None if followers is None else frozenset(followers)
        self._led: dict[Place, LedPartition] = {}
        self._names: dict[bytes, str] = {}
        self.progress = 0
        self.sent_bytes = 0

    def lead(self, topic: str, topic_id: UUID, logs: Mapping[int, LedLog]) -> None:
        """`logs`: by partition. Proofs of an earlier call stay."""
        self._names[topic_id.bytes] = topic
        for partition, log in logs.items():
            self._led.setdefault((topic, partition), LedPartition(log))

    def knows(self, request: wire.FetchRequest) -> bool:
        """Whether all topics of the request are known."""
        if request.version < TOPIC_IDS_FROM:
            return True  # a name needs no table
        return self._names.keys() >= {topic for topic, _ in request.partitions}

    def placed(self, place: Place) -> frozenset[int]:
        """The replicas that are proven to have the log."""
        return frozenset(self._led[place].placed)

    def needed(
        self, request: wire.FetchRequest
    ) -> Generator[None, None, dict[Place, NeededRecords]]:
        """The records that the request asks for, in its order; in steps."""
        needed: dict[Place, NeededRecords] = {}
        for number, ((topic, partition), entry) in enumerate(request.partitions.items(), 1):
            if not number % _ROWS_A_STEP:
                yield
            name = self._name(request.version, topic)
            led = None if name is None else self._led.get((name, partition))
            if led is None or name is None or _fault(led.log, entry) is not None:
                continue
            offset, log = wire.fetch_offset(entry), led.log
            if offset < log.end_offset and not _would_drop(log, entry):
                bytes_max = min(wire.entry_bytes_max(entry), log.append_bytes_max)
                needed[name, partition] = NeededRecords(offset, log.end_offset, bytes_max)
        return needed

    def fetched(
        self, request: wire.FetchRequest, records: Mapping[Place, Records] | None = None
    ) -> Generator[None, None, FetchResponse]:
        """The response to a follower's Fetch, without a fetch session, in steps. Notes the proofs
        in it.
        """
        by_topic: dict[bytes, list[Buffer]] = {}
        counts: dict[bytes, int] = {}
        is_news = False
        for number, ((topic, partition), entry) in enumerate(request.partitions.items(), 1):
            if not number % _ROWS_A_STEP:
                yield
            name = self._name(request.version, topic)
            led = None if name is None else self._led.get((name, partition))
            row: list[Buffer]
            if led is None or name is None:
                error = _unknown(request.version, name)
                row, news = [_row(request.version, partition, error)], True
            else:
                batches = None if records is None else records.get((name, partition))
                row, news = self._row_of(request, partition, led, entry, batches)
            by_topic.setdefault(topic, []).extend(row)
            counts[topic] = counts.get(topic, 0) + 1
            is_news |= news
        head = wire.FetchResponseHead(request.correlation_id, 0, 0, 0, len(by_topic))
        entries = {
            topic: wire.PartitionEntries(counts[topic], rows) for topic, rows in by_topic.items()
        }
        pieces = yield from wire.response_in_steps(request.version, head, entries)
        return FetchResponse(pieces, is_news)

    def _row_of(
        self,
        request: wire.FetchRequest,
        partition: int,
        led: LedPartition,
        entry: wire.FetchEntry,
        records: Records | None,
    ) -> tuple[list[Buffer], bool]:
        """The partition's row, and whether it is news for the follower."""
        version, log = request.version, led.log
        fault = _fault(log, entry)
        if isinstance(fault, ErrorCode):
            # Without offsets, or the follower would take them for those of its own log.
            return [_row(version, partition, fault)], True
        watermarks = wire.PartitionPatch(log.end_offset, log.end_offset, log.start_offset)
        start = wire.encode_partition_start(
            version,
            partition,
            ErrorCode.NONE,
            watermarks,
            None,
            records.size_bytes if records else 0,
        )
        if fault is not None:
            return [start + _DIVERGING.pack(1, 0, 13, fault.epoch, fault.end_offset, 0)], True
        is_first = self._note(request.replica_id, led, entry)
        if records is None:
            return [start + wire.no_tags(version)], is_first
        self.sent_bytes += records.size_bytes
        # A follower that cannot append them asks for the same ones again, at once.
        offset = wire.fetch_offset(entry)
        is_news = led.sent_from.get(request.replica_id) != offset
        if self._is_follower(request.replica_id):
            led.sent_from[request.replica_id] = offset
        return [start, *records.pieces, wire.no_tags(version)], is_news

    def _note(self, replica: int, led: LedPartition, entry: wire.FetchEntry) -> bool:
        """Whether this is the replica's first proof. A consumer proves nothing. Retention may
        raise the start of a follower's log while it fetches.
        """
        if not self._is_follower(replica):
            return False
        log, offset = led.log, wire.fetch_offset(entry)
        before = led.fetched_to.get(replica, log.start_offset)
        self.progress += max(0, offset - before)
        led.fetched_to[replica] = max(offset, before)
        own_start = wire.followers_log_start(entry)
        if offset != log.end_offset or not log.start_offset <= own_start <= offset:
            return False
        is_first = replica not in led.placed
        led.placed.add(replica)
        return is_first

    def listed(self, requested: Iterable[tuple[Place, int]]) -> dict[str, Any]:
        """The fields of a ListOffsets response. No follower asks by time: the start is not late."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), timestamp in requested:
            led = self._led.get((topic, partition))
            fields: dict[str, Any] = {"partition_index": partition, "error_code": ErrorCode.NONE}
            if led is None:
                fields["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif timestamp < 0 and timestamp != list_offsets.MAX_TIMESTAMP:
                log, is_end = led.log, timestamp == list_offsets.LATEST
                epoch = log.epochs[-1 if is_end else 0].epoch if log.epochs else 0
                offset = log.end_offset if is_end else log.start_offset
                fields |= {"offset": offset, "leader_epoch": epoch}
            topics.setdefault(topic, []).append(fields)
        return {"topics": [{"name": name, "partitions": rows} for name, rows in topics.items()]}

    def epoch_ends(self, requested: Iterable[tuple[Place, int]]) -> dict[str, Any]:
        """The fields of an OffsetForLeaderEpoch response; `requested`: places and epochs."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), epoch in requested:
            led = self._led.get((topic, partition))
            if led is None:
                error, end = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, EpochEnd(-1, -1)
            else:
                error = ErrorCode.NONE
                end = end_offset_for(led.log.epochs, epoch, led.log.end_offset)
            topics.setdefault(topic, []).append(
                {
                    "error_code": error,
                    "partition": partition,
                    "leader_epoch": end.epoch,
                    "end_offset": end.end_offset,
                }
            )
        return {"topics": [{"topic": name, "partitions": rows} for name, rows in topics.items()]}

    def _name(self, version: int, topic: bytes) -> str | None:
        if version >= TOPIC_IDS_FROM:
            return self._names.get(topic)
        # What is no text is the name of no topic, and lies in no table.
        return topic.decode(errors="surrogateescape")

    def _is_follower(self, replica: int) -> bool:
        return replica >= 0 and (self._followers is None or replica in self._followers)


def _fault(log: LedLog, entry: wire.FetchEntry) -> ErrorCode | EpochEnd | None:
    """Why a follower gets no records: it is out of the log's range, or its log diverges, and where.
    None: neither.
    """
    offset = wire.fetch_offset(entry)
    if not log.start_offset <= offset <= log.end_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    last_epoch = wire.last_fetched_epoch(entry)
    if last_epoch == UNDEFINED_EPOCH or not log.epochs:
        return None
    end = end_offset_for(log.epochs, last_epoch, log.end_offset)
    if end.epoch == UNDEFINED_EPOCH:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return end if end.epoch < last_epoch or end.end_offset < offset else None


def _would_drop(log: LedLog, entry: wire.FetchEntry) -> bool:
    """Whether the follower knows its leader by an epoch below those of batches: it passes over such
    batches without a word, and asks for them again at once (KAFKA-18723).
    """
    return bool(log.epochs) and wire.leader_epoch(entry) < log.epochs[-1].epoch


def _unknown(version: int, name: str | None) -> ErrorCode:
    if version >= TOPIC_IDS_FROM and name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _row(version: int, partition: int, error: int) -> bytes:
    start = wire.encode_partition_start(version, partition, error, wire.PartitionPatch(), None, 0)
    return start + wire.no_tags(version)
