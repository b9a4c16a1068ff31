"""What was written, as one log that both brokers must hold: the third opinion of every comparison.

Also the form in which two brokers' batches are compared: all bytes, but the four things that two
brokers cannot have in common (see `normal_form`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fetchproxy_protocol.record_batch import (
    CONTROL_ABORT,
    HEADER_BYTES,
    BatchHeader,
    check_crc,
    control_type,
    walk,
)

NO_PRODUCER = "-"


class NormalBatch(NamedTuple):
    """A batch as both brokers must give it. `epoch` counts leader epochs from 0 upwards."""

    base_offset: int
    last_offset: int
    epoch: int
    attributes: int
    producer: str
    producer_epoch: int
    base_sequence: int
    rest: object  # data: times, record count and all bytes after the header; marker: its type

    def __str__(self) -> str:
        kind = f"marker {self.rest}" if self.attributes & 0x20 else f"codec {self.attributes & 7}"
        return f"[{self.base_offset}-{self.last_offset} e{self.epoch} {self.producer} {kind}]"


@dataclass
class Names:
    """One side's numbers for what both sides have: producers and leader epochs."""

    producers: dict[int, str] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)  # of the partition, rising

    def producer(self, producer_id: int) -> str:
        if producer_id < 0:
            return NO_PRODUCER
        return self.producers.get(producer_id, f"unknown producer {producer_id}")

    def epoch(self, epoch: int | None) -> object:
        if epoch is None or epoch < 0:
            return epoch
        return self.epochs.index(epoch) if epoch in self.epochs else f"unknown epoch {epoch}"


def normal_form(records: bytes, names: Names) -> tuple[list[NormalBatch], bytes]:
    """The whole batches, and what is left of a partial last one.

    Left out: the numbers of producer ids and leader epochs (their order must be equal), the CRC
    where a producer id is part of it (it is checked instead), and of transaction markers, which
    each broker writes by itself, time and coordinator epoch.
    """
    batches, end = [], 0
    for header in walk(records):
        assert check_crc(records, header), f"batch at {header.base_offset} fails its CRC"
        batches.append(_normal_batch(records, header, names))
        end = header.end
    return batches, records[end:]


def _normal_batch(records: bytes, header: BatchHeader, names: Names) -> NormalBatch:
    if header.is_control:
        kind = control_type(records, header)
        rest: object = "abort" if kind == CONTROL_ABORT else "commit"
    else:
        body = records[header.position + HEADER_BYTES : header.end]
        rest = (header.base_timestamp, header.max_timestamp, header.records_count, body)
    epoch = names.epoch(header.partition_leader_epoch)
    return NormalBatch(
        header.base_offset,
        header.last_offset,
        epoch,  # type: ignore[arg-type]
        header.attributes,
        names.producer(header.producer_id),
        header.producer_epoch,
        header.base_sequence,
        rest,
    )


@dataclass(frozen=True)
class Txn:
    """`last` is the marker's offset; open ones have none and no outcome."""

    producer: str
    first: int
    last: int | None = None
    aborted: bool = False


@dataclass
class ReferenceLog:
    """One partition as it was written. Offsets of `batches` rise without a hole."""

    batches: list[NormalBatch] = field(default_factory=list)
    txns: list[Txn] = field(default_factory=list)
    log_start: int = 0
    local_start: int = 0
    archived: int = 0  # exclusive end of what the remote tier holds

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    @property
    def last_stable(self) -> int:
        return min([t.first for t in self.txns if t.last is None], default=self.end)

    def visible_end(self, isolation: int) -> int:
        return self.last_stable if isolation else self.end

    def holds(self, offset: int, isolation: int) -> bool:
        return self.log_start <= offset < self.visible_end(isolation)

    def from_offset(self, offset: int) -> list[NormalBatch]:
        return [batch for batch in self.batches if batch.last_offset >= offset]

    def append(self, batches: list[NormalBatch]) -> None:
        for batch in batches:
            assert batch.base_offset == self.end, (batch, self.end)
            self.batches.append(batch)

    def begin(self, producer: str, first: int) -> None:
        if not any(t.producer == producer and t.last is None for t in self.txns):
            self.txns.append(Txn(producer, first))

    def finish(self, producer: str, marker: int, aborted: bool) -> None:
        for i, txn in enumerate(self.txns):
            if txn.producer == producer and txn.last is None:
                self.txns[i] = Txn(producer, txn.first, marker, aborted)

    def aborted_between(self, first: int, last: int) -> set[tuple[str, int]]:
        """(producer, first offset) of aborted transactions with an offset in `first` … `last`."""
        return {
            (t.producer, t.first)
            for t in self.txns
            if t.aborted and t.last is not None and t.first <= last and t.last >= first
        }

    def committed_data(self, batches: list[NormalBatch]) -> list[tuple[int, int]]:
        """Base and last offset of the data batches among `batches` that no abort takes back."""
        return [
            (b.base_offset, b.last_offset)
            for b in batches
            if not b.attributes & 0x20 and not self._is_aborted(b)
        ]

    def _is_aborted(self, batch: NormalBatch) -> bool:
        return batch.attributes & 0x10 != 0 and any(
            t.aborted and t.producer == batch.producer and t.first <= batch.base_offset <= t.last
            for t in self.txns
            if t.last is not None
        )


def filter_aborted(
    batches: list[NormalBatch], aborted: list[tuple[str, int]]
) -> list[tuple[int, int]]:
    """What a read_committed consumer keeps, by the response alone (Kafka's CompletedFetch).

    A producer counts as aborted from a listed first offset up to its next ABORT marker.
    """
    waiting = sorted(aborted, key=lambda entry: entry[1])
    aborting: set[str] = set()
    ranges_kept: list[tuple[int, int]] = []
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last_offset:
            aborting.add(waiting.pop(0)[0])
        if batch.attributes & 0x20:
            if batch.rest == "abort":
                aborting.discard(batch.producer)
        elif not (batch.attributes & 0x10 and batch.producer in aborting):
            ranges_kept.append((batch.base_offset, batch.last_offset))
    return ranges_kept


def build_batch(
    codec: int,
    times: list[int],
    values: list[bytes],
    producer: Mapping[str, Any],
    *,
    transactional: bool = False,
) -> bytes:
    """Encoded by kafka-python; `producer` has producer_id, producer_epoch and base_sequence."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    made = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=transactional, batch_size=1 << 24,
        **producer,
    )  # fmt: skip
    for delta, (time, value) in enumerate(zip(times, values, strict=True)):
        made.append(delta, time, b"k%d" % delta, value, [])
    return bytes(made.build())


def with_place(batch: bytes, base_offset: int, epoch: int) -> bytes:
    """As the broker stores it: with its base offset and the leader epoch."""
    placed = bytearray(batch)
    struct.pack_into(">q", placed, 0, base_offset)
    struct.pack_into(">i", placed, 12, epoch)
    return bytes(placed)
