"""A model of librdkafka's queue on virtual time: how fast a stock consumer reads.

The broker thread reads a response partition by partition into one queue. It fetches again at once
unless the queue holds `queued.min.messages`; then it looks again after `fetch.queue.backoff.ms`
(rd_kafka_broker_fetch_toppars, rd_kafka_toppar_fetch_decide). The application takes records from
the queue at a varying rate.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from fetchproxy.serving.consumer_pacing import ConsumerPace

QUEUED_MIN_MESSAGES = 100_000
BACKOFF_S = 1.0
_PARTITION_RECORDS = 1024 * 1024 // 108  # max.partition.fetch.bytes, with records of 100 bytes
_FETCH_RECORDS_MAX = 50 * 1024 * 1024 // 108
_SERVED_PER_S = 3e6
_READ_PER_S = 6e6  # broker thread into the queue
_ROUND_TRIP_S = 0.0005
_STEP_S = 0.02


@dataclass(slots=True)
class Outcome:
    seconds: float
    pauses: int
    longest_delay_s: float


class StockConsumer:
    """A consumer with its queue and its application.

    `taken_per_s`: records that the application takes per second.
    `sleeps`: the application takes nothing at times.
    `stalls_per_s`: how often its machine stands still for 0.1 to 0.4 s.
    """

    def __init__(
        self,
        partitions: int,
        taken_per_s: float,
        seed: int,
        *,
        sleeps: bool = False,
        stalls_per_s: float = 0.0,
    ) -> None:
        self._partitions = partitions
        self._taken_per_s = taken_per_s
        self._random = random.Random(seed)
        self._sleeps = sleeps
        self._stalls_per_s = stalls_per_s
        self._stalls_until = 0.0
        self._awake_until, self._asleep_until = 0.0, 0.0
        self._wander = 0.0
        self.now = 0.0
        self._queue = 0.0
        self.taken = 0.0

    def read(self, records: int, consumer_pace: ConsumerPace | None) -> Outcome:
        begun, records_given, last = self.now, 0, 0
        responded_at: float | None = None
        outcome = Outcome(0.0, 0, 0.0)
        while records_given < records:
            records_wanted = min(self._partitions * _PARTITION_RECORDS, _FETCH_RECORDS_MAX)
            if consumer_pace is not None:
                if responded_at is not None:
                    delay = consumer_pace.fetch_wait_s(self.now, responded_at, last)
                    outcome.longest_delay_s = max(outcome.longest_delay_s, delay)
                    self._pass(delay)
                if consumer_pace.pace:
                    records_wanted = min(records_wanted, consumer_pace.response_records)
            last = min(records_wanted, records - records_given)
            records_given += last
            self._pass(_ROUND_TRIP_S + last / _SERVED_PER_S)
            responded_at = self.now
            for records_left in range(last, 0, -_PARTITION_RECORDS):
                of_partition = min(records_left, _PARTITION_RECORDS)
                self._pass(of_partition / _READ_PER_S)
                self._queue += of_partition
            while self._queue >= QUEUED_MIN_MESSAGES and records_given < records:
                outcome.pauses += 1
                self._pass(BACKOFF_S)
        while self._queue > 1:
            self._pass(_STEP_S)
        outcome.seconds = self.now - begun
        return outcome

    def _pass(self, seconds: float) -> None:
        while seconds > 1e-9:
            step = min(seconds, _STEP_S)
            self._wander = 0.9 * self._wander + self._random.gauss(0, 0.06)
            rate = self._taken_per_s * max(0.2, 1 + self._wander)
            if (self._sleeps and self._is_asleep()) or self._stands_still(step):
                rate = 0.0
            took = min(self._queue, rate * step)
            self._queue -= took
            self.taken += took
            self.now += step
            seconds -= step

    def _stands_still(self, step: float) -> bool:
        if self._stalls_per_s and self._random.random() < self._stalls_per_s * step:
            self._stalls_until = self.now + self._random.uniform(0.1, 0.4)
        return self.now < self._stalls_until

    def _is_asleep(self) -> bool:
        if self.now >= self._asleep_until:
            self._awake_until = self.now + self._random.uniform(0.0, 1.0)
            self._asleep_until = self._awake_until + self._random.uniform(0.0, 2.0)
        return self.now >= self._awake_until
