"""What the matrix asks of every client, whatever it is written in."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Line = tuple[int, int, str, str]  # partition, offset, key, value (or their CRC-32 in hex)

# In the order of the table's columns.
CASES = ("assign", "group", "read_committed", "idempotent", "transactional", "times")


def crc32(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def by_partition(lines: list[Line]) -> list[Line]:
    """The order within a partition stays as read: nothing may be out of order or twice."""
    return sorted(lines, key=lambda line: line[0])


@dataclass(frozen=True, slots=True)
class MatrixClient:
    """`assign(bootstrap, topic, until, isolation)` reads every partition from 0 until that offset,
    or until so many records were read, as `assign_until` says.

    `group(bootstrap, topic, group, count, isolation)` reads `count` records on from the group's
    committed offsets and commits behind them. Neither may reset a position. `produce(bootstrap,
    topic, count)` and `transact` write to partition 0; `transact` commits `count` records, after
    `aborted` others in a transaction that it aborts. `times(bootstrap, topic, partition,
    timestamp_ms)` gives an offset, -1 for none. What a client cannot do is in `lacks`, with why.
    """

    name: str
    version: Callable[[], str]
    group: Callable[[str, str, str, int, str], list[Line]] | None = None
    produce: Callable[[str, str, int], None] | None = None
    assign: Callable[[str, str, dict[int, int], str], list[Line]] | None = None
    assign_until: Literal["offset", "count"] = "offset"
    transact: Callable[[str, str, int], None] | None = None
    aborted: int = 1
    times: Callable[[str, str, int, int], int] | None = None
    part: str = "clients"
    find: Callable[[], object] = bool
    in_crc32: bool = False
    # librdkafka's automatic commit at close takes control records that were fetched ahead as read,
    # and so skips what is before them (its issue 3400): nobody can go on from the middle.
    commits_ahead: bool = False
    # It cannot be told to stop after some records.
    reads_on: bool = False
    sees_keys: bool = True  # else they are "" in its lines
    sees_offsets: bool = True  # else they are -1 in its lines
    lacks: dict[str, str] = field(default_factory=dict)


def as_client(client: MatrixClient, lines: list[Line]) -> list[Line]:
    """The lines in the form in which this client shows them."""

    def shown_line(line: Line) -> Line:
        p, offset, key, value = line
        if client.in_crc32:
            key, value = crc32(key), crc32(value)
        return p, offset if client.sees_offsets else -1, key if client.sees_keys else "", value

    return [shown_line(line) for line in lines]
