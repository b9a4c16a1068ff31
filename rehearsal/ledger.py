"""The responses that clients of the lost cluster got: offsets of records, and commits of groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

Place = tuple[str, int]  # topic, partition
_VALUE_BYTES = 200


class Acknowledged(NamedTuple):
    """`at`: when its producer got the response (monotonic, s). In a transaction, that is the
    response to the commit.
    """

    number: int
    at: float


@dataclass
class Ledger:
    """`records`: by place and offset. `aborted`: numbers that no reader with read_committed may
    get. `commits`: the last acknowledged offset, by group and place.

    Each record has a number of its own in its value, so that a second one is recognised.
    """

    records: dict[Place, dict[int, Acknowledged]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    commits: dict[tuple[str, Place], int] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def next_number(self) -> int:
        return next(self._numbers)

    def acknowledge(self, place: Place, offset: int, number: int, at: float) -> None:
        self.records.setdefault(place, {})[offset] = Acknowledged(number, at)

    def end(self, place: Place) -> int:
        """Behind the last acknowledged record of the place."""
        return max(self.records.get(place, ()), default=-1) + 1

    @property
    def count(self) -> int:
        return sum(len(of_place) for of_place in self.records.values())


def value_of(number: int) -> bytes:
    return (b"%d|" % number).ljust(_VALUE_BYTES, b".")


def number_of(value: bytes | None) -> int:
    """Raises ValueError if the drill has not written it."""
    return int((value or b"").partition(b"|")[0])
