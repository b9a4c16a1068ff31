"""One partition's log on the simulated broker: all batches ever written, and the part it still has.

The batches are made beforehand, so the truth is known. Over time only the log end, the high
watermark and the log start move over them. Reads follow Kafka's rules (UnifiedLog.read,
ReplicaManager.readFromLog).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from fetchproxy_protocol.record_batch import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
)
from generated_archive import Batch, make_batch

from fetchproxy.model import TopicIdPartition

OFFSET_OUT_OF_RANGE = 1


@dataclass(frozen=True, slots=True)
class Aborted:
    producer_id: int
    first_offset: int
    marker_offset: int


@dataclass(frozen=True, slots=True)
class LogRead:
    error_code: int
    records: bytes = b""
    first_incomplete: bool = False
    aborted: tuple[Aborted, ...] = ()


class SimulatedLog:
    """Batches below the index `written` are produced; those below `replicated` are committed.

    The offsets of `batches` have no holes, until `compact` makes some.
    """

    def __init__(
        self,
        tp: TopicIdPartition,
        batches: Sequence[Batch],
        aborted: Sequence[Aborted],
        stable: Sequence[int],
    ) -> None:
        self.tp = tp
        self.batches = batches
        self.aborted = aborted
        self._stable = stable  # LSO by number of produced batches
        self._last_offsets = [batch.last_offset for batch in batches]
        self.start_offset = self.first_offset = batches[0].base_offset
        self.written = self.replicated = 0
        self.open_since: int | None = None  # the first offset of a transaction that nobody ends
        # Loop time, by batch index, at which the high watermark rose above the batch.
        self.committed_at: list[float] = []

    @property
    def complete(self) -> bool:
        return self.replicated == len(self.batches)

    @property
    def final_offset(self) -> int:
        return self._last_offsets[-1] + 1

    def _end(self, count: int) -> int:
        return self._last_offsets[count - 1] + 1 if count else self.first_offset

    @property
    def log_end_offset(self) -> int:
        return self._end(self.written)

    @property
    def high_watermark(self) -> int:
        return self._end(self.replicated)

    @property
    def last_stable_offset(self) -> int:
        stable = min(self._stable[self.written], self.high_watermark)
        # As Kafka's: it stays where the transaction begins, but never below the log start.
        pinned = stable if self.open_since is None else min(stable, self.open_since)
        return max(pinned, self.start_offset)

    def index_of(self, offset: int) -> int:
        """The index of the batch that holds `offset`, or of the next batch."""
        return bisect_left(self._last_offsets, offset)

    def write(self, count: int) -> None:
        self.written = min(self.written + count, len(self.batches))

    def replicate(self, now: float) -> None:
        self.committed_at += [now] * (self.written - self.replicated)
        self.replicated = self.written

    def trim(self, offset: int) -> None:
        self.start_offset = max(self.start_offset, min(offset, self.high_watermark))

    def compact(self, gone: Collection[int]) -> None:
        """As the log cleaner: the batches with these base offsets go, but never the last one."""
        last = self.written - 1
        stays = [i for i, b in enumerate(self.batches) if i >= last or b.base_offset not in gone]
        lost = len(self.batches) - len(stays)
        self.batches = [self.batches[i] for i in stays]
        self._stable = [self._stable[0], *(self._stable[i + 1] for i in stays)]
        self._last_offsets = [self._last_offsets[i] for i in stays]
        self.committed_at = [self.committed_at[i] for i in stays if i < self.replicated]
        self.written -= lost
        self.replicated -= lost

    def read(self, offset: int, bytes_max: int, committed_only: bool, whole_first: bool) -> LogRead:
        """Read as a consumer does, up to the high watermark or LSO; `bytes_max` may cut a batch.

        `whole_first`: return a first batch larger than `bytes_max` whole (KIP-74).
        """
        if not self.start_offset <= offset <= self.log_end_offset:
            return LogRead(OFFSET_OUT_OF_RANGE)
        upper = self.last_stable_offset if committed_only else self.high_watermark
        first = last = self.index_of(offset)
        content = bytearray()
        while last < self.replicated and self.batches[last].base_offset < upper:
            content += self.batches[last].content
            last += 1
            if len(content) > bytes_max:
                break
        aborted: tuple[Aborted, ...] = ()
        if committed_only:
            aborted = self.overlapping(offset, self._end(last) if content else offset)
        if not content:
            return LogRead(0, aborted=aborted)
        first_size = len(self.batches[first].content)
        limit = max(bytes_max, first_size) if whole_first else bytes_max
        return LogRead(0, bytes(content[:limit]), limit < first_size, aborted)

    def overlapping(self, start: int, end: int) -> tuple[Aborted, ...]:
        """Finished aborted transactions with an offset in `start` … `end` - 1."""
        return tuple(
            a
            for a in self.aborted
            if a.first_offset < end and start <= a.marker_offset < self.log_end_offset
        )


class LogGenerator:
    """Batches by seed: plain ones, transactions of three producers, markers with real records."""

    def __init__(self, rng: Random, noise_bytes_max: int) -> None:
        self._random = rng
        self._noise_bytes_max = noise_bytes_max
        self._batches: list[Batch] = []
        self._stable: list[int] = []
        self._aborted: list[Aborted] = []
        self._open: dict[int, int] = {}

    def generate(self, tp: TopicIdPartition, count: int) -> SimulatedLog:
        rng = self._random
        self._next = first = rng.choice([0, 0, 0, 7, 10_000])
        self._stable.append(first)
        transactional = rng.random() < 0.6
        while len(self._batches) < count:
            fate = rng.random()
            if self._open and fate < 0.25:
                self._marker(rng.choice(sorted(self._open)))
            elif transactional and fate < 0.6:
                self._data(rng.randint(1, 3))
            else:
                self._data(-1)
        for producer_id in sorted(self._open):
            self._marker(producer_id)
        return SimulatedLog(tp, self._batches, self._aborted, self._stable)

    def _data(self, producer_id: int) -> None:
        rng = self._random
        noise = rng.randbytes(rng.randint(1, self._noise_bytes_max))
        if producer_id >= 0:
            self._open.setdefault(producer_id, self._next)
        attributes = TRANSACTIONAL_MASK if producer_id >= 0 else 0
        self._add(rng.randint(1, 9), noise, producer_id, attributes)

    def _marker(self, producer_id: int) -> None:
        first = self._open.pop(producer_id)
        kind = CONTROL_ABORT if self._random.random() < 0.5 else CONTROL_COMMIT
        if kind == CONTROL_ABORT:
            self._aborted.append(Aborted(producer_id, first, self._next))
        self._add(1, control_record(kind), producer_id, TRANSACTIONAL_MASK | CONTROL_MASK)

    def _add(self, count: int, records: bytes, producer_id: int, attributes: int) -> None:
        batch = make_batch(
            self._next,
            count,
            records,
            timestamp_ms=1_000 + self._next,
            producer_id=producer_id,
            attributes=attributes,
        )
        self._batches.append(batch)
        self._next = batch.last_offset + 1
        self._stable.append(min([*self._open.values(), self._next]))


def control_record(kind: int) -> bytes:
    """An end-transaction marker: key (version 0, type), value (version 0, coordinator epoch 0)."""
    key = b"\x00\x00" + kind.to_bytes(2, "big")
    body = b"\x00\x00\x00" + bytes([2 * len(key)]) + key + bytes([2 * 6]) + bytes(6) + b"\x00"
    return bytes([2 * len(body)]) + body
