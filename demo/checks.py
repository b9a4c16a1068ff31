"""The demo's claims. A claim fails with its name and the actual result."""

from __future__ import annotations

from collections.abc import Mapping

from demo import records


class CheckFailed(Exception):
    """`check`: the claim that did not hold. `seen`: the actual result."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check
        self.detail = detail


def require(holds: bool, check: str, detail: str) -> None:
    """Raises CheckFailed unless `holds`."""
    if not holds:
        raise CheckFailed(check, detail)


class ReadCheck:
    """Compares every record that a reader gets with the record that was produced at its offset.

    The offsets of a partition must come without a gap, a repetition or a step back. So a reader
    that has finished has seen each record exactly once.
    """

    def __init__(self, reader: str, first_offsets: Mapping[int, int]) -> None:
        self.reader = reader
        self.bytes = 0
        self.records = 0
        self._next = dict(first_offsets)
        self.records_expected = sum(
            records.RECORDS_PER_PARTITION - first for first in first_offsets.values()
        )

    @property
    def finished(self) -> bool:
        return self.records == self.records_expected

    def take(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Checks the next record of this reader. Raises CheckFailed."""
        expected = self._next[partition]
        if offset != expected:
            self._fail(partition, f"offset {expected} expected, {offset} came")
        wanted_key, wanted_value = records.key(partition, offset), records.value(partition, offset)
        if key != wanted_key:
            self._fail(partition, f"offset {offset} has key {key!r}, not {wanted_key!r}")
        if value != wanted_value:
            self._fail(partition, f"offset {offset} has a value that was not produced there")
        self._next[partition] = expected + 1
        self.bytes += len(wanted_key) + len(wanted_value)
        self.records += 1

    def _fail(self, partition: int, detail: str) -> None:
        raise CheckFailed(
            f"{self.reader} gets every record once and in order", f"partition {partition}: {detail}"
        )
