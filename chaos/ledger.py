"""The ledger of written and deliberately lost records, against which readers are checked.

A record's number is in its value. If a producer was not told the offset (its broker died), the
first reader of the record determines it, and all other readers must agree.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

RECORD_BYTES = 400
COMMITTED, ABORTED = b"c", b"a"  # keys: the writer's intention for the record's transaction
_ROW = b"%s/%d/%d|"


def value_of(name: str, history: int, number: int) -> bytes:
    head = _ROW % (name.encode(), history, number)
    return (head * (RECORD_BYTES // len(head) + 1))[:RECORD_BYTES]


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as a reader got it."""

    offset: int
    key: bytes
    value: bytes


@dataclass
class Log:
    """A partition's log. `history` increases when the log begins again."""

    topic: str
    partition: int
    keeps: int | None = None  # the records that retention keeps at least; None: all
    history: int = 0
    count_sent: int = 0
    written: dict[int, bytes] = field(default_factory=dict)  # offset: value
    aborted: set[int] = field(default_factory=set)
    undecided: set[int] = field(default_factory=set)  # of transactions with an unknown end
    lost: list[range] = field(default_factory=list)
    values: set[bytes] = field(default_factory=set)  # all values ever sent

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def next_value(self) -> bytes:
        value = value_of(self.name, self.history, self.count_sent)
        self.count_sent += 1
        self.values.add(value)
        return value

    def is_lost(self, offset: int) -> bool:
        return any(offset in each for each in self.lost)

    def expected(self, begin: int, end: int, *, committed_only: bool) -> set[int]:
        """The offsets that a reader from `begin` to `end` (exclusive) must get."""
        hidden = self.aborted | self.undecided if committed_only else set[int]()
        return {
            offset
            for offset in list(self.written)
            if begin <= offset < end and offset not in hidden and not self.is_lost(offset)
        }

    def begins(self, end: int) -> int:
        """The offset from which a log that ends at `end` must be complete."""
        return 0 if self.keeps is None else max(0, end - self.keeps)

    def wrong(self, record: ReadRecord, *, committed_only: bool) -> str | None:
        """What is wrong with this record alone, or None."""
        if record.value not in self.values:
            return f"offset {record.offset}: {record.value[:40]!r} was never written"
        if self.written.setdefault(record.offset, record.value) != record.value:
            expected_value = self.written[record.offset][:40]
            return f"offset {record.offset}: {record.value[:40]!r} is not {expected_value!r}"
        if committed_only and (record.key == ABORTED or record.offset in self.aborted):
            return f"offset {record.offset}: a record of an aborted transaction"
        return None

    def decide(self, offsets_read: Collection[int], begin: int, end: int) -> None:
        """A complete read of committed records shows the outcome of undecided transactions."""
        decided = {offset for offset in self.undecided if begin <= offset < end}
        self.aborted |= decided - set(offsets_read)
        self.undecided -= decided


def ranges(offsets: Collection[int]) -> list[tuple[int, int]]:
    """(first, last) of each contiguous run, for a message."""
    found_ranges: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found_ranges and found_ranges[-1][1] + 1 == offset:
            found_ranges[-1] = found_ranges[-1][0], offset
        else:
            found_ranges.append((offset, offset))
    return found_ranges
