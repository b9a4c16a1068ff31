"""How fast a consumer takes records, learnt from its pauses; and when its next answer is due.

A librdkafka client stops fetching for `fetch.queue.backoff.ms` (a second) each time
`queued.min.messages` (100,000) records wait for its application. So it reads 150,000 to 220,000
small records a second from a fast server: its queue is empty long before the second is over. Once a
client has paused, its answers leave a little slower than it takes them, and its queue stays below
that limit.

While the queue has room, the proxy knows what it gave and not what was taken. A pause tells: at its
begin the queue held QUEUE_RECORDS, and fewer one answer before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cachetools import TTLCache
from fetchproxy_protocol.fetch import FetchEntry, PartitionKey, fetch_offset

from fetchproxy.observability.metrics import CLIENT_PAUSES, PACED_ANSWERS, PACED_SECONDS

# librdkafka's default of `queued.min.messages`.
QUEUE_RECORDS = 100_000
# Such a silence is taken for `fetch.queue.backoff.ms`, which is 1,000. Shorter ones are the
# network's or the machine's. In longer ones the application does not empty its queue: it is slower
# than any pace.
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 1.6
# One answer waits so long at most: a quarter of the pause that it saves.
DELAY_MAX_S = 0.25
# A paced answer carries what is taken in this time, and not less than so many records.
ANSWER_S = 0.04
ANSWER_RECORDS_MIN = 5_000
# Less came from the end of the log, or from a store that is slower than its client.
FULL_ANSWER_BYTES = 64 * 1024
# An offset that is further on is another reader's or the application's choice.
_ADVANCE_MAX = 2_000_000
# Below the measured rate, so that what varies does not fill the queue.
_BELOW = 0.92
# A pace must promise so many times what the client takes with its pauses; else it rests.
_GAIN_MIN = 1.3
_REST_S = 60.0
# A client whose answers fill the queue alone loses little by its pauses. A trial costs it a pause
# more, so it comes late.
_LARGE_PAUSES = 6
_RESTS_MAX = 5  # the last of them, each twice as long as the one before
# How fast a pace grows while it holds answers back, as a power of e per second: until it was too
# high once, after that, and near the rate that was too high. There it halves with each pause.
_SEARCH, _RETURN, _PROBE = 1.0, 0.05, 0.02
_NEAR = 0.95
_POINTS_MAX = 128
# Of shorter spans no rate is taken: answers of several brokers may be under way at once.
_SPAN_MIN_S = 0.05
# A job that runs each night begins with what it took last time.
_KNOWN_S = 48 * 3600.0
_KNOWN_MAX = 10_000
# A fetch of more is not paced: each partition is looked at in one turn of the loop, and remembered.
PARTITIONS_PACED_MAX = 1_000
_PARTITION_BYTES = 250  # that a reader keeps of each: its key and offset

Client = tuple[str, str]  # address, client id


def may_pause(software: str) -> bool:
    """Whether that client library (KIP-511) is librdkafka, or stands on it."""
    return "rdkafka" in software or software.startswith("confluent-kafka")


class _Rate(NamedTuple):
    """Records/s that the application took: at least, and at most."""

    low: float
    high: float


class _Cycle:
    """What one consumer was given since its last pause."""

    def __init__(self, begun_at: float) -> None:
        self.begun_at = begun_at
        self.given = 0
        self.answers_fit = True  # none filled the queue alone
        self._points: list[tuple[float, int]] = []  # when an answer left, given before it

    def add(self, records: int, at: float) -> None:
        if self._points:  # of another connection's answers, too
            at = max(at, self._points[-1][0])
        self._points.append((at, self.given))
        self.given += records
        self.answers_fit &= records < QUEUE_RECORDS
        if len(self._points) > _POINTS_MAX:
            self._points = [*self._points[:-1:2], self._points[-1]]

    def rate(self, turn_s: float) -> _Rate:
        """At the pause that ends it. `turn_s`: the client's time to read an answer.

        Before the last answer the queue was not full: between any point and that one, at least what
        was given less one queue was taken. After it the queue was full, and it was empty at the
        begin: no more than what was given less one queue was taken.
        """
        last_at, before_last = self._points[-1]
        low = 0.0
        for at, before in self._points[:-1]:
            if last_at - at >= _SPAN_MIN_S:
                low = max(low, (before_last - before - QUEUE_RECORDS) / (last_at - at))
        span = max(last_at + turn_s - self._points[0][0], 1e-3)
        return _Rate(low, max((self.given - QUEUE_RECORDS) / span, low))


class Appetite:
    """Of one consumer. Pure: times are the caller's, in s, never falling; rates are records/s."""

    def __init__(self, now: float, known: float = 0.0) -> None:
        """`known`: a pace that it was read at before."""
        self.pace = known  # 0: it is not paced
        self.pauses = 0
        self._natural = 0.0  # the rate without a pace, pauses included
        self._too_fast = known / _BELOW  # no pace above this was kept
        self._misses = 1 if known else 0  # pauses in spite of a pace
        self._cycle = _Cycle(now)
        self._taken_by = now  # all that was given is taken then, at this pace
        self._grown_at = now
        self._turn_s = 0.005
        self._holds = False  # the last answer was held back
        self._rests, self._rests_until = 0, -math.inf

    def asked(self, now: float, answered_at: float, records: int) -> float:
        """A fetch came; the answer before it left with `records`. The fetch waits so long, in s."""
        self._cycle.add(records, answered_at)
        silence = now - answered_at
        if silence < PAUSE_MIN_S:
            self._turn_s += (silence - self._turn_s) / 8
            self._grow(now)
        elif answered_at >= self._cycle.begun_at:  # else another connection told of this pause
            self._silent(now, silence)
        if not self.pace:
            return 0.0
        self._taken_by = max(self._taken_by, now - ANSWER_S) + records / self.pace
        due_in = min(max(self._taken_by - now, 0.0), DELAY_MAX_S)
        self._holds = due_in > 0
        return due_in

    @property
    def answer_records(self) -> int:
        """An answer is to carry no more; while there is a pace."""
        return max(int(self.pace * ANSWER_S), ANSWER_RECORDS_MIN)

    def _silent(self, now: float, silence: float) -> None:
        cycle, self._cycle = self._cycle, _Cycle(now)
        self._taken_by = self._grown_at = now
        if silence > PAUSE_MAX_S or cycle.given < QUEUE_RECORDS:
            return
        self.pauses += 1
        low, high = cycle.rate(self._turn_s)
        if self.pace:
            taken = max(low, self._natural)
            self._too_fast = taken * (1 + 1 - _NEAR)
            self._misses += 1
        else:
            mean = cycle.given / (now - cycle.begun_at)
            self._natural = max(mean, self._natural * 0.7)
            if now < self._rests_until or not (cycle.answers_fit or self.pauses > _LARGE_PAUSES):
                return
            guess = 4 * mean if cycle.answers_fit else 1.5 * mean
            taken = max(low, min((low + high) / 2, guess))
            self._too_fast, self._misses = high, 0
        if taken >= _GAIN_MIN * max(self._natural, QUEUE_RECORDS):
            self.pace = _BELOW * taken
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
        else:
            speed = _PROBE / 2 ** min(self._misses, 5) if near else _RETURN
        self.pace *= math.exp(speed * span)


class Appetites:
    """Of all consumers; one that has a connection to each broker is known by them as one.

    Connections of one address with one client id are one consumer's, if no two of them are to the
    same broker. What a consumer took is remembered for its client id, address and topics.
    """

    def __init__(self, clock: Callable[[], float], *, enabled: bool = True) -> None:
        self.clock = clock
        self._enabled = enabled
        self._live: dict[Client, list[_Consumer]] = {}
        # By a hash: what a client calls itself may be long.
        self._known: TTLCache[int, float] = TTLCache(_KNOWN_MAX, _KNOWN_S, timer=clock)

    def reader(
        self, client: Client, node_id: int | None, partitions: Mapping[PartitionKey, FetchEntry]
    ) -> Reader:
        """Of one more connection; it must be closed."""
        consumers = self._live.setdefault(client, [])
        consumer = next((one for one in consumers if node_id not in one.nodes), None)
        if consumer is None:
            subject = hash((client, frozenset(topic for topic, _ in partitions)))
            known = self._known.get(subject, 0.0)
            consumer = _Consumer(client, subject, Appetite(self.clock(), known), set())
            consumers.append(consumer)
        consumer.nodes.add(node_id)
        return Reader(self, consumer, node_id, enabled=self._enabled)

    def left(self, consumer: _Consumer, node_id: int | None) -> None:
        consumer.nodes.remove(node_id)
        if consumer.nodes:
            return
        live = self._live[consumer.client]
        live.remove(consumer)
        if not live:
            del self._live[consumer.client]
        if consumer.appetite.pace:
            self._known[consumer.subject] = consumer.appetite.pace


class _Consumer(NamedTuple):
    client: Client
    subject: int
    appetite: Appetite
    nodes: set[int | None]  # that it has a connection to


class Reader:
    """One connection of a consumer."""

    def __init__(
        self, appetites: Appetites, consumer: _Consumer, node_id: int | None, *, enabled: bool
    ) -> None:
        self._appetites = appetites
        self._consumer = consumer
        self._node_id = node_id
        self._enabled = enabled
        self._offsets: dict[PartitionKey, int] = {}
        self._answered_at = -math.inf
        self._answer_bytes = 0
        self._record_bytes = 0.0

    def asked(self, partitions: Mapping[PartitionKey, FetchEntry]) -> float:
        """A fetch came: it is to wait so long, in s."""
        if not self._enabled or len(partitions) > PARTITIONS_PACED_MAX:
            self._offsets = {}
            return 0.0
        records = self._advance(partitions)
        size, self._answer_bytes = self._answer_bytes, 0
        if size < FULL_ANSWER_BYTES or not records:
            return 0.0
        self._record_bytes = size / records
        appetite = self._consumer.appetite
        pauses = appetite.pauses
        due_in = appetite.asked(self._appetites.clock(), self._answered_at, records)
        CLIENT_PAUSES.inc(appetite.pauses - pauses)
        if due_in:
            PACED_ANSWERS.inc()
            PACED_SECONDS.inc(due_in)
        return due_in

    def bytes_wanted(self, bytes_max: int) -> int:
        appetite = self._consumer.appetite
        if not appetite.pace or not self._record_bytes:
            return bytes_max
        wanted = max(int(appetite.answer_records * self._record_bytes), FULL_ANSWER_BYTES)
        return min(bytes_max, wanted)

    def answered(self, size_bytes: int) -> None:
        self._answer_bytes += size_bytes
        self._answered_at = self._appetites.clock()

    @property
    def kept_bytes(self) -> int:
        return len(self._offsets) * _PARTITION_BYTES

    def close(self) -> None:
        self._appetites.left(self._consumer, self._node_id)

    def _advance(self, partitions: Mapping[PartitionKey, FetchEntry]) -> int:
        """Records of the last answer: as far as the fetch went on behind them (offsets are dense
        enough). A partition that is not asked for may wait in the client's pause."""
        advanced, seen = 0, self._offsets
        for key, entry in partitions.items():
            offset = fetch_offset(entry)
            step = offset - seen.get(key, offset)
            if 0 < step <= _ADVANCE_MAX:
                advanced += step
            seen[key] = offset
        if len(seen) > 2 * len(partitions) + 100:
            self._offsets = {key: seen[key] for key in partitions}
        return advanced
