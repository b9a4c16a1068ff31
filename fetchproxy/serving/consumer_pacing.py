"""Learns from a consumer's pauses how fast it takes records, and when its next response is due.

A librdkafka client stops fetching for `fetch.queue.backoff.ms` (a second) each time
`queued.min.messages` (100,000) records wait for its application. So it reads 150,000 to 220,000
small records a second from a fast server: its queue is empty long before the second is over. Once a
client has paused, its responses leave a little slower than its application takes them, and the
queue stays below that limit.

While the queue has room, the proxy knows how many records it gave, but not how many were taken. A
pause tells: at its begin the queue held QUEUE_RECORDS, and one response earlier it held fewer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from cachetools import TTLCache
from fetchproxy_protocol.fetch import FetchEntry, PartitionKey, fetch_offset

from fetchproxy.observability.metrics import CLIENT_PAUSES, PACED_RESPONSES, PACED_SECONDS

# librdkafka's default of `queued.min.messages`.
QUEUE_RECORDS = 100_000
# 64 MiB (`queued.max.messages.kbytes`) fill its queue, too: larger records count as several.
_RECORD_BYTES = 64 * 1024 * 1024 / QUEUE_RECORDS
# A silence in this range is taken for `fetch.queue.backoff.ms`, which is 1,000. A shorter one comes
# from the network or the machine. During a longer one the application does not empty its queue: it
# is slower than any pace.
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 1.6
# Longest wait of one response: a quarter of the pause that it saves.
DELAY_MAX_S = 0.25
# A paced answer carries the records that are taken in this time, between these two limits. Two
# larger answers fill the queue if they follow a moment in which the machine stood still.
RESPONSE_S = 0.04
RESPONSE_RECORDS_MIN, RESPONSE_RECORDS_MAX = 5_000, QUEUE_RECORDS // 4
# A smaller answer came from the end of the log, or from a store that is slower than its client.
FULL_RESPONSE_BYTES = 64 * 1024
# A larger step in offsets is another reader's, or a seek of the application.
_ADVANCE_MAX = 2_000_000
# A pace is below the measured rate, so that variations do not fill the queue.
_BELOW = 0.94
# The rate is the highest of those measured at this many pauses. One pause says little: after a
# moment in which the machine stood still, the queue is full at any pace.
_TOLD_BY = 3
# A pace must promise this many times the client's rate with pauses. Otherwise pacing rests.
_GAIN_MIN = 1.3
_REST_S = 60.0
# If a single response filled the queue, the client's rate is unknown. It is taken for at most so
# many times the mean rate, pauses included. With a large mean the responses hold several queues, so
# there is less to win.
_GUESS, _GUESS_LARGE, _LARGE_MEAN = 5.0, 1.5, 250_000.0
_RESTS_MAX = 5  # each rest is twice as long as the one before, up to this many doublings
# How fast a pace grows while it holds answers back, as a power of e per second. _SEARCH: until it
# was too high once (a quarter of it with a large mean). _RETURN: after that. _PROBE: near the rate
# that was too high, halved with each pause.
_SEARCH, _RETURN, _PROBE = 1.0, 0.05, 0.02
_NEAR = 0.95
_POINTS_MAX = 128
# No rate is taken of a shorter span: answers of several brokers may be in progress at once.
_SPAN_MIN_S = 0.05
# A nightly job begins with the pace of its last run.
_KNOWN_S = 48 * 3600.0
_KNOWN_MAX = 10_000
# A fetch with more is not paced: all its partitions would be checked in one turn of the loop, and
# their offsets kept.
PARTITIONS_PACED_MAX = 1_000
# The same for clients that are never paced: their records are only counted for the console's page.
PARTITIONS_COUNTED_MAX = 100
_OFFSETS_KEPT_MIN = 100  # a reader keeps that many, whatever its client still names
_PARTITION_BYTES = 250  # memory of a reader per partition: its key and offset
# "Lately" stands for the last LATELY_S to 2 * LATELY_S seconds.
LATELY_S = 5.0
# Characters shown: a client may call itself and its library anything.
CLIENT_ID_SHOWN_MAX = SOFTWARE_SHOWN_MAX = 100
TOPICS_SHOWN_MAX = 5
# Consumers with one address and client id among which a new connection's consumer is searched.
_ALIKE_MAX = 100

_Client = tuple[str, str]  # address, client id
_LastResponse = tuple[float, int]  # when a response left, its records


def may_pause(software: str) -> bool:
    """True: the client library (KIP-511) is librdkafka, or is built on it."""
    return "rdkafka" in software or software.startswith("confluent-kafka")


class _Known(NamedTuple):
    """The pace and record size of a consumer that has left. 0: not known."""

    pace: float
    record_bytes: float


_NOTHING_KNOWN = _Known(0.0, 0.0)


class _Cycle:
    """The records that one consumer was given since its last pause."""

    def __init__(self, begun_at: float) -> None:
        self.begun_at = begun_at
        self.delivered = 0
        self._points: list[tuple[float, int]] = []  # when a response left, records given before it

    def add(self, records: int, time: float) -> None:
        if self._points:  # other connections' responses may come in another order
            time = max(time, self._points[-1][0])
        self._points.append((time, self.delivered))
        self.delivered += records
        if len(self._points) > _POINTS_MAX:
            self._points = [*self._points[:-1:2], self._points[-1]]

    def rate(self, full_at: float, turn_s: float, last: int) -> tuple[float, float]:
        """The least and the most records/s that the application took, at the pause that ends the
        cycle.

        `turn_s`: the client's time to read a response. `last`: the number of last responses, one of
        each connection.

        The least: before the last responses the queue was not full. So between any point and them
        the application took at least the records given, less one queue. The most: the queue was
        empty at the begin, and full with the response that left at `full_at`. So the application
        took at most the records given, less one queue. Other connections may have gone on after
        that.
        """
        end = next((i for i, (at, _) in enumerate(self._points) if at > full_at + turn_s), None)
        points = self._points[:end]
        delivered = self.delivered if end is None else self._points[end][1]
        last_at, before_last = points[max(len(points) - last, 0)]
        low = 0.0
        for at, before in points:
            if last_at - at >= _SPAN_MIN_S:
                low = max(low, (before_last - before - QUEUE_RECORDS) / (last_at - at))
        span = max(full_at + turn_s - points[0][0], 1e-3)
        return low, max((delivered - QUEUE_RECORDS) / span, low)


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One consumer. Only a consumer that uses librdkafka has pauses or a pace.

    `software`: its library's name and version; "" if it tells none. `records_per_s` and
    `bytes_per_s` are of the last seconds. `partitions`: the most of one fetch meanwhile, added up
    over its connections. `pauses` and `held_back_s` count since it connected. `pace_records_per_s`
    is None if it has no pace. `records_per_s` is None if it asks for too many partitions to count
    (PARTITIONS_PACED_MAX, PARTITIONS_COUNTED_MAX). `topics`: up to TOPICS_SHOWN_MAX that it reads;
    none are known if it asks for so many partitions.
    """

    client_id: str
    software: str
    address: str
    connections: int
    partitions: int
    records_per_s: int | None
    bytes_per_s: int
    pauses: int
    pace_records_per_s: int | None
    held_back_s: float
    topics: tuple[str, ...] = ()


class Lately:
    """One connection's records and bytes of the last LATELY_S to 2 * LATELY_S seconds."""

    __slots__ = ("_before", "_begun_at", "_bytes", "_partitions", "_records")

    def __init__(self, now: float) -> None:
        self._begun_at = now
        self._records, self._bytes = 0, 0
        self._before = (now, 0, 0, 0)  # of the span before: begin, records, bytes, partitions
        self._partitions = 0

    def add(self, time: float, records: int, size_bytes: int, partitions: int) -> None:
        if time - self._begun_at >= LATELY_S:
            self._roll_window(time)
        self._records += records
        self._bytes += size_bytes
        self._partitions = max(self._partitions, partitions)

    @property
    def partitions(self) -> int:
        """The most of one fetch."""
        return max(self._partitions, self._before[3])

    def totals(self, now: float) -> tuple[float, float, int]:
        """Records/s, bytes/s, and the most partitions of one fetch."""
        if now - self._begun_at >= LATELY_S:
            self._roll_window(now)
        begun_at, records, size_bytes, _ = self._before
        span = max(now - begun_at, 1.0)
        return (
            (records + self._records) / span,
            (size_bytes + self._bytes) / span,
            self.partitions,
        )

    def _roll_window(self, now: float) -> None:
        if now - self._begun_at < 2 * LATELY_S:
            self._before = (self._begun_at, self._records, self._bytes, self._partitions)
        else:
            self._before = (now - LATELY_S, 0, 0, 0)
        self._begun_at, self._records, self._bytes, self._partitions = now, 0, 0, 0


class ConsumerPace:
    """Learns how fast one consumer takes records. Pure: the caller passes times in s that never
    fall; rates are records/s.
    """

    def __init__(self, now: float, known: float = 0.0) -> None:
        """`known`: the consumer's pace when it left before; 0: not known."""
        self.pace = known  # 0: it is not paced
        self.pauses = 0
        self.waited_s = 0.0  # total wait of its fetches
        self._natural = 0.0  # the rate without a pace, pauses included
        self._too_fast = known / _BELOW  # no pace above this was kept
        self._misses = 1 if known else 0  # pauses in spite of a pace
        # The least rate that each of the last pauses tells; a known pace counts as one of them.
        self._took: deque[float] = deque([known] if known else [], _TOLD_BY)
        self._cycle = _Cycle(now)
        self._taken_by = now  # at this pace, the application has then taken all that was given
        self._grown_at = now
        self._turn_s = 0.005
        self._holds = False  # the last response was held back
        self._rests, self._rests_until = 0, -math.inf

    def fetch_wait_s(
        self, now: float, responded_at: float, records: int, others: Sequence[_LastResponse] = ()
    ) -> float:
        """A fetch came; the response before it had `records`. Returns the fetch's wait, in s.

        `others`: after a silence, other connections' last responses that no fetch has followed yet.
        """
        silence = now - responded_at
        if (
            responded_at < self._cycle.begun_at
        ):  # another connection counted the pause and `records`
            records = 0
        elif silence < PAUSE_MIN_S:
            self._cycle.add(records, responded_at)
            self._turn_s += (silence - self._turn_s) / 8
            self._grow(now)
        else:
            others = [other for other in others if other[0] >= self._cycle.begun_at]
            for time, record_count in sorted([(responded_at, records), *others]):
                self._cycle.add(record_count, time)
            self._silent(now, responded_at, 1 + len(others))
        if not self.pace:
            return 0.0
        # It gets overdue records at once, but no more than one response of them.
        late_max_s = self.response_records / self.pace
        self._taken_by = max(self._taken_by, now - late_max_s) + records / self.pace
        due_in = min(max(self._taken_by - now, 0.0), DELAY_MAX_S)
        self._holds = due_in > 0
        self.waited_s += due_in
        return due_in

    @property
    def response_records(self) -> int:
        """Most records of one response, while there is a pace."""
        return min(max(int(self.pace * RESPONSE_S), RESPONSE_RECORDS_MIN), RESPONSE_RECORDS_MAX)

    def _silent(self, now: float, responded_at: float, last: int) -> None:
        """`last`: the number of last responses in the cycle, one of each connection."""
        cycle, self._cycle = self._cycle, _Cycle(now)
        self._taken_by = self._grown_at = now
        if now - responded_at > PAUSE_MAX_S or cycle.delivered < QUEUE_RECORDS:
            return
        self.pauses += 1
        low, high = cycle.rate(responded_at, self._turn_s, last)
        self._took.append(low)
        if self.pace:
            low = max(low, min(max(self._took), self.pace))
        at_least = max(self._natural, QUEUE_RECORDS)
        if self.pace and low < at_least:  # too short to tell; there may be less to win
            taken = min(high, self.pace / 2)
            self._too_fast = self.pace
        elif self.pace:
            taken = low
            self._too_fast = taken * (1 + 1 - _NEAR)
            self._misses += 1
        else:
            mean = cycle.delivered / (now - cycle.begun_at)
            self._natural = max(mean, self._natural * 0.7)
            if now < self._rests_until:
                return
            guess = (_GUESS_LARGE if mean > _LARGE_MEAN else _GUESS) * mean
            taken = max(low, min(high, guess))
            self._too_fast, self._misses = high, 0
        if taken >= _GAIN_MIN * max(self._natural, QUEUE_RECORDS):
            self.pace = _BELOW * taken
            return
        if not self.pace:
            return
        self.pace = 0.0
        self._rests_until = now + _REST_S * 2**self._rests
        self._rests = min(self._rests + 1, _RESTS_MAX)

    def _grow(self, now: float) -> None:
        span, self._grown_at = now - self._grown_at, now
        if not self._holds:
            return
        near = self.pace >= _NEAR * self._too_fast
        if not self._misses:
            speed = _SEARCH / 2 if near else _SEARCH
            if self._natural > _LARGE_MEAN:
                speed /= 4
        else:
            speed = _PROBE / 2 ** min(self._misses, 5) if near else _RETURN
        self.pace *= math.exp(speed * span)


class ConsumerPaces:
    """All consumers. A consumer's connections to several brokers count as one consumer.

    Connections with one address, client id and library belong to one consumer if no two of them go
    to the same broker. A consumer's pace is remembered by its client id, address and topics.
    """

    def __init__(self, clock: Callable[[], float], *, enabled: bool = True) -> None:
        self.clock = clock
        self._enabled = enabled
        # Both are keyed by a hash: a client's name may be long.
        self._live: dict[int, dict[Consumer, None]] = {}
        self._unpaced = ConsumerPace(clock())  # for all that are only counted: it is never asked
        self._known: TTLCache[int, _Known] = TTLCache(_KNOWN_MAX, _KNOWN_S, timer=clock)

    def reader(
        self,
        client: _Client,
        node_id: int | None,
        partitions: Mapping[PartitionKey, FetchEntry],
        software: str,
        *,
        paced: bool,
    ) -> Reader:
        """The reader of a new connection; it must be closed. Not `paced`: it is only counted."""
        consumers = self._live.setdefault(hash(client), {})
        alike = (one for one in islice(consumers, _ALIKE_MAX) if one.software == software)
        consumer = next(
            (condition for condition in alike if node_id not in condition.readers), None
        )
        paced = paced and self._enabled
        subject = hash((client, frozenset(topic for topic, _ in partitions)))
        knowledge = self._known.get(subject, _NOTHING_KNOWN)
        if consumer is None:
            consumer_pace = ConsumerPace(self.clock(), knowledge.pace) if paced else self._unpaced
            label = client[0], client[1][:CLIENT_ID_SHOWN_MAX]
            consumer = Consumer(hash(client), label, software, subject, consumer_pace, {})
            consumers[consumer] = None
        reader = Reader(self, consumer, node_id, knowledge.record_bytes, paced)
        consumer.readers[node_id] = reader
        return reader

    def consumers(self) -> list[Consumer]:
        """All connected consumers that have fetched."""
        return [one for all_of in self._live.values() for one in all_of]

    def left(self, consumer: Consumer, node_id: int | None) -> None:
        reader = consumer.readers.pop(node_id)
        if consumer.readers:
            return
        live = self._live[consumer.of_client]
        del live[consumer]
        if not live:
            del self._live[consumer.of_client]
        if consumer.consumer_pace.pace:
            self._known[consumer.subject] = _Known(consumer.consumer_pace.pace, reader.record_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Consumer:
    of_client: int  # a hash
    client: _Client  # shortened for display
    software: str
    subject: int
    consumer_pace: ConsumerPace
    readers: dict[int | None, Reader]  # its connections, by the broker

    def unfollowed_responses(self, but: Reader) -> list[_LastResponse]:
        """The last responses of its other connections that no fetch has followed yet."""
        others = (reader.last_response for reader in self.readers.values() if reader is not but)
        return [other for other in others if other[1]]

    def topics(self) -> set[bytes]:
        """Up to TOPICS_SHOWN_MAX, as the client names them: by name or by id."""
        refs: set[bytes] = set()
        for reader in self.readers.values():
            for topic in reader.topics():
                refs.add(topic)
                if len(refs) == TOPICS_SHOWN_MAX:
                    return refs
        return refs

    def status(self, now: float) -> ClientStatus:
        address, client_id = self.client
        records = size_bytes = 0.0
        partitions, counted = 0, True
        for reader in self.readers.values():
            of_reader = reader.lately.totals(now)
            records, size_bytes = records + of_reader[0], size_bytes + of_reader[1]
            partitions += of_reader[2]
            counted = counted and of_reader[2] <= reader.partitions_max
        pace = self.consumer_pace.pace
        return ClientStatus(
            client_id,
            self.software,
            address,
            len(self.readers),
            partitions,
            round(records) if counted else None,
            round(size_bytes),
            self.consumer_pace.pauses,
            round(pace) if pace else None,
            round(self.consumer_pace.waited_s, 2),
        )


@dataclass(slots=True, eq=False, repr=False)
class Reader:
    """One connection of a consumer. `record_bytes`: size of its records; 0: not known."""

    _consumer_paces: ConsumerPaces
    _consumer: Consumer
    _node_id: int | None
    record_bytes: float
    _paced: bool
    _offsets: dict[PartitionKey, int] = field(default_factory=dict)
    _responded_at: float = -math.inf
    _response_bytes: int = 0
    partitions_max: int = field(init=False)
    lately: Lately = field(init=False)

    def __post_init__(self) -> None:
        self.partitions_max = PARTITIONS_PACED_MAX if self._paced else PARTITIONS_COUNTED_MAX
        self.lately = Lately(self._consumer_paces.clock())

    def fetch_wait_s(
        self, partitions: Mapping[PartitionKey, FetchEntry], session_partitions: int = 0
    ) -> float:
        """A fetch came. Returns how long it must wait, in s. It need not name all of the
        `session_partitions` that its client wants.
        """
        size, self._response_bytes = self._response_bytes, 0
        wide = max(len(partitions), session_partitions)
        if wide > self.partitions_max:
            self._offsets = {}
            self.lately.add(self._responded_at, 0, size, wide)
            return 0.0
        records = self._advance(partitions)
        self.lately.add(self._responded_at, records, size, wide)
        if not self._paced or size < FULL_RESPONSE_BYTES or not records:
            return 0.0
        records = max(records, int(size / _RECORD_BYTES))
        self.record_bytes = size / records
        consumer_pace = self._consumer.consumer_pace
        pauses = consumer_pace.pauses
        now = self._consumer_paces.clock()
        silent = now - self._responded_at >= PAUSE_MIN_S
        others = self._consumer.unfollowed_responses(self) if silent else ()
        due_in = consumer_pace.fetch_wait_s(now, self._responded_at, records, others)
        CLIENT_PAUSES.inc(consumer_pace.pauses - pauses)
        if due_in:
            PACED_RESPONSES.inc()
            PACED_SECONDS.inc(due_in)
        return due_in

    def fetch_repeats(self, named: int, session_partitions: int) -> bool:
        """As `fetch_wait_s` for a fetch that names the same partitions, `named` in number, at the
        same offsets as the one before: no record was taken, so it does not wait.

        False: nothing was counted, as the consumer is paced or there are offsets to forget.
        """
        if self._consumer.consumer_pace.pace or self._has_others(named):
            return False
        size, self._response_bytes = self._response_bytes, 0
        self.lately.add(self._responded_at, 0, size, max(named, session_partitions))
        return True

    def budget_bytes(self, bytes_max: int) -> int:
        consumer_pace = self._consumer.consumer_pace
        if not consumer_pace.pace or not self.record_bytes:
            return bytes_max
        records = consumer_pace.response_records / len(
            self._consumer.readers
        )  # their responses coincide
        size_bytes = max(int(records * self.record_bytes), FULL_RESPONSE_BYTES)
        return min(bytes_max, size_bytes)

    def responded(self, size_bytes: int) -> None:
        self._response_bytes += size_bytes
        self._responded_at = self._consumer_paces.clock()

    @property
    def last_response(self) -> _LastResponse:
        """Its last response, if no fetch has followed it; the records are estimated by its
        bytes.
        """
        full = self._response_bytes >= FULL_RESPONSE_BYTES and self.record_bytes
        return self._responded_at, int(self._response_bytes / self.record_bytes) if full else 0

    @property
    def kept_bytes(self) -> int:
        return len(self._offsets) * _PARTITION_BYTES

    def topics(self) -> Iterator[bytes]:
        return (topic for topic, _ in self._offsets)

    def close(self) -> None:
        self._consumer_paces.left(self._consumer, self._node_id)

    def _advance(self, partitions: Mapping[PartitionKey, FetchEntry]) -> int:
        """The records of the last response: the advance of the fetch's offsets, which are dense
        enough. A partition that the fetch does not name may wait in the client's pause.
        """
        advanced, offsets = 0, self._offsets
        for key, entry in partitions.items():
            offset = fetch_offset(entry)
            step = offset - offsets.get(key, offset)
            if 0 < step <= _ADVANCE_MAX:
                advanced += step
            offsets[key] = offset
        if self._has_others(len(partitions)):
            self._offsets = {key: offsets[key] for key in partitions}
        return advanced

    def _has_others(self, named: int) -> bool:
        """Most offsets are of partitions that the client does not name any more."""
        known_offsets = len(self._offsets)
        if known_offsets <= _OFFSETS_KEPT_MIN:
            return False
        return known_offsets > 2 * max(named, self.lately.partitions) + _OFFSETS_KEPT_MIN
