"""Partitions that an archiver cannot archive for its own disk's sake: full, failing, read-only.

Nothing else tells of that disk: store and brokers are well. Decides nothing.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from fetchproxy.metadata.archiver_positions import ForPeople
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVER_DISK_FAILING
from fetchproxy.remote_log.margin import broker_retention

log = structlog.get_logger(__name__)


class DiskTroubles:
    """One per archiver; `spool_dir` as configured.

    `deleted_in_ms`: when the brokers begin to delete what is not archived, None: not known.
    """

    def __init__(
        self, spool_dir: Path | None, deleted_in_ms: Callable[[TopicIdPartition], int | None]
    ) -> None:
        self._where = f"{socket.gethostname()}, {spool_dir or tempfile.gettempdir()}"
        self._deleted_in_ms = deleted_in_ms
        self._failing: dict[TopicIdPartition, str] = {}
        ARCHIVER_DISK_FAILING.set(0)

    def failed(self, tip: TopicIdPartition, error: OSError) -> None:
        if not self._failing:
            log.error("archiver_disk_failing", where=self._where, error=str(error))
        self._failing[tip] = error.strerror or str(error)
        ARCHIVER_DISK_FAILING.set(len(self._failing))

    def over(self, tip: TopicIdPartition) -> None:
        """It was archived, or is archived here no more."""
        if self._failing.pop(tip, None) is None:
            return
        ARCHIVER_DISK_FAILING.set(len(self._failing))
        if not self._failing:
            log.info("archiver_disk_recovered", where=self._where)

    def sentences(self) -> tuple[str, ...]:
        """One, or none. Never blocks."""
        if not self._failing:
            return ()
        first = next(iter(self._failing))
        count = len(self._failing)
        which = f"{first} is" if count == 1 else f"{first} and {count - 1} more partitions are"
        known = [ms for ms in map(self._deleted_in_ms, self._failing) if ms is not None]
        return (
            f"The archiver's disk fails ({self._where}: {self._failing[first]}): until it has "
            f"room again {which} not archived; {until(min(known, default=None))}",
        )


def until(deleted_in_ms: int | None) -> str:
    """In whole minutes, so that it is not another sentence at each look."""
    if deleted_in_ms is None:
        return "no time is known at which the brokers delete it"
    minutes = -(-deleted_in_ms // 60_000)
    if minutes <= 0:
        return "the brokers are deleting it"
    span = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"the brokers begin to delete it in about {span}"


def for_people(disk: DiskTroubles, configs: Iterable[Mapping[str, str] | None]) -> ForPeople:
    """`configs`: of the topics that this archiver gathers."""
    limits = [broker_retention(config or {}) for config in configs]
    ages = [limit.ms for limit in limits if limit.ms is not None]
    sizes = [limit.bytes for limit in limits if limit.bytes is not None]
    return ForPeople(
        disk.sentences(), retention_in_words(min(ages, default=None), min(sizes, default=None))
    )


def retention_in_words(ms: int | None, size_bytes: int | None) -> str:
    """What the brokers do with what nobody archives; None: unlimited."""
    limits = []
    if ms is not None:
        hours, minutes = ms // 3_600_000, ms // 60_000
        limits.append(f"what is older than {f'{hours} h' if hours > 1 else f'{minutes} min'}")
    if size_bytes is not None:
        limits.append(f"what is beyond {size_bytes} bytes of a partition")
    return f"the brokers delete {' and '.join(limits) or 'nothing'}"
