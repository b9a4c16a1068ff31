"""The offset from which archivers accumulate each partition: the next records of the archive.

Only an archiver knows what it has in its spool, and which records it passed over because the
brokers had lost them. So each archiver leaves an object in the store that says it, and
`ArchiverPositions` reads all of them. Records below the position are not coming any more; records
at and above it are.

    {"version": 1, "beat": 17, "troubles": ["a sentence"], "retention": "the brokers delete …",
     "recovery_point": {"age_ms": 2100, "records": 8204},
     "positions": {"<topic id>": {"0": 1234, "1": -1}}}

An archiver rewrites its object when its content changes, and every `HEARTBEAT_INTERVAL_S` with
another `beat`. No clock of another machine counts: an object that the reader sees unchanged for
`SILENT_MAX_S` is ignored. Time in which the reader did not read does not count: the archiver may
not have reached the store then either, and still has its records. A silent archiver is reported
sooner: three reads without a change are not an accident.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotFound, RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.metrics import ARCHIVERS_HEARD, ARCHIVERS_SILENT
from fetchproxy.runtime.cooperative import pieces
from fetchproxy.runtime.fresh_reads import FreshReads
from fetchproxy.runtime.retrying import within
from fetchproxy.segments.json_fields import INT32_LIMIT, INT64_LIMIT, JsonFields, decode_document
from fetchproxy.segments.object_keys import parse_uuid, uuid_text
from fetchproxy.storage.archive_objects import ArchiveObjects

log = structlog.get_logger(__name__)

_VERSION = 1
HEARTBEAT_INTERVAL_S = 2.0
SILENT_MAX_S = 30.0
# A read is a small listing. With these three values a killed archiver is named within 15 s.
POSITIONS_READ_INTERVAL_S = 3.0
MISSED_AFTER_S = 3 * POSITIONS_READ_INTERVAL_S
# If two reads are further apart, a read between them failed. The archiver may have failed then.
LOOK_DELAY_MAX_S = 2.0

# If two reads are further apart, the reader cannot tell whether an archiver was silent.
READS_APART_MAX_S = SILENT_MAX_S / 2

# How long a caller of `refresh_unless_failing` waits for a slow store.
READ_WAIT_MAX_S = 0.5
# An archiver's sentences for people come from the store, and are shown on a page.
TROUBLES_MAX = 8
SENTENCE_CHARS_MAX = 1_000
# The position of an archiver that has the partition but does not know yet where it goes on.
NOT_KNOWN = -1

_RECOVERY_POINT = b'"recovery_point"'  # without it, an object need not be decoded a second time

# By topic id and partition: the first offset that is or will be accumulated.
Positions = Mapping[tuple[UUID, int], int]


@dataclass(frozen=True, slots=True)
class OperatorNotes:
    """An archiver's sentences beside its positions. `troubles`: what keeps it from archiving.
    `retention`: what the brokers do with records that no archiver archives.
    """

    troubles: tuple[str, ...] = ()
    retention: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """What would be lost with brokers and archiver now. `age_ms`: all records up to this long ago
    are safe; None: not known yet.
    """

    age_ms: int | None
    records: int

    def in_words(self) -> str:
        age = "a time that is not known yet"
        if self.age_ms is not None:
            age = f"{self.age_ms / 1000:.1f} s"
        records = f"{self.records:,} record{'' if self.records == 1 else 's'}"
        return f"if cluster and archivers were lost now: {age} and {records} lost"


def of_all_archivers(points: Iterable[RecoveryPoint]) -> RecoveryPoint | None:
    """What would be lost with the brokers and all these archivers. None: there is no journal."""
    every = list(points)
    ages_ms = [point.age_ms for point in every if point.age_ms is not None]
    age_ms = max(ages_ms, default=None) if len(ages_ms) == len(every) else None
    return RecoveryPoint(age_ms, sum(point.records for point in every)) if every else None


async def encode_positions(
    positions: Positions,
    beat: int,
    operator_notes: OperatorNotes = OperatorNotes(),
    recovery_point: RecoveryPoint | None = None,
) -> bytes:
    """Encodes topic by topic: 10,000 partitions at once would block the event loop for ms."""
    topics: dict[UUID, dict[int, int]] = {}
    for (topic_id, partition), offset in positions.items():
        topics.setdefault(topic_id, {})[partition] = offset
    texts = []
    for piece in pieces(sorted(topics)):
        texts += [f'"{uuid_text(topic_id)}":{_json(topics[topic_id])}' for topic_id in piece]
        await asyncio.sleep(0)
    lines = (
        f'"troubles":{_json(operator_notes.troubles)},"retention":{_json(operator_notes.retention)}'
    )
    if recovery_point is not None:
        lines += f',"recovery_point":{json.dumps(asdict(recovery_point))}'
    return (
        f'{{"version":{_VERSION},"beat":{beat},{lines},"positions":{{{",".join(texts)}}}}}\n'
    ).encode()


def _json(value: Mapping[int, int] | tuple[str, ...] | str) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def decode_positions(raw: bytes, key: str) -> tuple[dict[tuple[UUID, int], int], OperatorNotes]:
    """Raises CorruptSegment, naming `key`."""
    return decode_document(raw, key, _VERSION, lambda f: (dict(_entries(f)), _operator_notes(f)))


def decode_recovery_point(raw: bytes, key: str) -> RecoveryPoint | None:
    """None: the archiver has no journal. Raises CorruptSegment, naming `key`."""
    return decode_document(raw, key, _VERSION, _recovery_point)


def _recovery_point(fields: JsonFields) -> RecoveryPoint | None:
    if "recovery_point" not in fields.names():
        return None
    point = JsonFields(fields.mapping("recovery_point"))
    age_ms = None if point.is_null("age_ms") else point.integer("age_ms", 0, INT64_LIMIT)
    return RecoveryPoint(age_ms, point.integer("records", 0, INT64_LIMIT))


def _operator_notes(fields: JsonFields) -> OperatorNotes:
    """Cut to fit on a page. Older archivers write neither field."""
    names = fields.names()
    troubles = fields.texts("troubles")[:TROUBLES_MAX] if "troubles" in names else []
    retention = fields.text("retention") if "retention" in names else ""
    return OperatorNotes(
        tuple(trouble[:SENTENCE_CHARS_MAX] for trouble in troubles), retention[:SENTENCE_CHARS_MAX]
    )


def _entries(fields: JsonFields) -> Iterator[tuple[tuple[UUID, int], int]]:
    for topic, partitions in fields.mapping("positions").items():
        topic_id = parse_uuid(topic)
        if topic_id is None:
            raise CorruptSegment(f"{topic[:80]!r} is not a Kafka Uuid")
        offsets = JsonFields(partitions)
        for partition in offsets.names():
            # Python refuses to parse numbers of thousands of digits.
            short = partition.isascii() and partition.isdecimal() and len(partition) <= 10
            if not short or int(partition) >= INT32_LIMIT:
                raise CorruptSegment(f"{partition[:80]!r} is not a partition")
            yield (topic_id, int(partition)), offsets.integer(partition, NOT_KNOWN, INT64_LIMIT)


@dataclass(frozen=True, slots=True)
class _ReadPositions:
    """One archiver's object as last read: its `version`, and since when that is unchanged.

    `watched_from`: since when every read came in time and found the object unchanged.
    """

    version: str
    seen_at: float
    positions: Positions
    topics: frozenset[UUID]  # that have positions
    operator_notes: OperatorNotes
    watched_from: float
    recovery_point: RecoveryPoint | None = None  # when it was written


class ArchiverPositions:
    """The objects of all archivers. An async context manager that owns its reads of the store.

    `here` asks an archiver in this process, which knows more than any object in the store; None:
    there is none. `own_key` is that archiver's object, whose content is known here already.
    """

    def __init__(
        self,
        objects: ArchiveObjects,
        read_max_ms: int,
        clock: Callable[[], float],
        here: Callable[[TopicIdPartition], int | None] | None = None,
        health: Health | None = None,
        own_key: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._health = health or Health()
        self._own_key = own_key
        self._objects = objects
        self._read_max_ms = read_max_ms
        self._clock = clock
        self._here = here
        self._stored: dict[str, _ReadPositions] = {}
        self._read_at = float("-inf")  # the last time that the store answered
        self._failing = False
        # Objects of silent archivers whose partitions no other has, at the last look.
        self._left_alone: frozenset[str] = frozenset()
        self._reads = FreshReads[None, None](self._read)

    async def __aenter__(self) -> Self:
        await self._reads.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._reads.__aexit__(*failure)

    async def refresh(self, not_older_than: float) -> None:
        """Read the archivers' objects, unless that was done at or after that loop time (s).

        Concurrent callers share the read. Raises RemoteStorageError.
        """
        await self._reads.get(None, not_older_than)

    async def refresh_unless_failing(self, age_max_s: float) -> None:
        """As `refresh`, for callers that no outage may delay: then the last objects count."""
        if self._failing:
            return  # `run` tries again
        with suppress(RemoteStorageError, TimeoutError):
            async with asyncio.timeout(READ_WAIT_MAX_S):
                return await self.refresh(self._clock() - age_max_s)
        self._failing = True

    async def first_read(self) -> None:
        """Wait for the first read, if there was none yet: `run` keeps the last one fresh."""
        if self._read_at == float("-inf"):
            await self.refresh_unless_failing(POSITIONS_READ_INTERVAL_S)

    @property
    def read_at(self) -> float:
        """Loop time (s) at which the last read began that the store answered."""
        return self._read_at

    async def run(self) -> None:
        """Reads for ever, so that callers seldom wait and a silent archiver is noticed."""
        while True:
            with suppress(RemoteStorageError):  # counted by the store
                await self.refresh(self._clock())
            await asyncio.sleep(POSITIONS_READ_INTERVAL_S)

    def _in_words(self, silent: _ReadPositions, partitions: int) -> str:
        """`partitions`: how many of its partitions no other archiver has."""
        whose = "its partition is" if partitions == 1 else f"its {partitions} partitions are"
        since_s = int(self._clock() - silent.seen_at)
        for_ = f"{since_s // 5 * 5} s" if since_s < 60 else f"{since_s // 60} min"
        until = f"; {silent.operator_notes.retention}" if silent.operator_notes.retention else ""
        return (
            f"An archiver has been silent for {for_}: it was killed, or cannot write to the "
            f"store. Until it is back, or another takes over, {whose} not archived{until}"
        )

    def archiver_position(self, tp: TopicIdPartition) -> int | None:
        """As of the last read; None: no archiver accumulates the partition. Never blocks."""
        here = None if self._here is None else self._here(tp)
        if here is not None:
            return here
        oldest = self._clock() - SILENT_MAX_S
        key = (tp.topic_id, tp.partition)
        positions = [
            read_positions.positions[key]
            for read_positions in self._stored.values()
            if read_positions.seen_at > oldest and key in read_positions.positions
        ]
        return min(positions, default=None)

    def recovery_points(self) -> Iterator[RecoveryPoint]:
        """Of the archivers in other processes with a journal that are alive, or have partitions
        that nobody has taken over. Never blocks.

        An age goes on from the first read that saw it: the archiver wrote it up to
        `POSITIONS_READ_INTERVAL_S` before.
        """
        now, own_key = self._clock(), self._own_key()
        for key, read_positions in self._stored.items():
            point = read_positions.recovery_point
            if point is None or key == own_key:
                continue
            if read_positions.seen_at <= now - SILENT_MAX_S and key not in self._left_alone:
                continue
            since_ms = round(1000 * (now - read_positions.seen_at))
            yield replace(point, age_ms=None if point.age_ms is None else point.age_ms + since_ms)

    def accumulates(self, topic_id: UUID) -> bool:
        """Whether `archiver_position` may know a partition of the topic. Never blocks."""
        if self._here is not None:
            return True
        oldest = self._clock() - SILENT_MAX_S
        return any(
            read_positions.seen_at > oldest and topic_id in read_positions.topics
            for read_positions in self._stored.values()
        )

    async def _read(self, _: None, began_at: float) -> None:
        async with within(self._read_max_ms / 1000, "what archivers accumulate"):
            self._stored = await self._read_all(began_at)
            self._read_at = began_at
            self._failing = False
            self._report_archivers(began_at)

    async def _read_all(self, began_at: float) -> dict[str, _ReadPositions]:
        listed = [stored async for stored in self._objects.list_archiver_positions()]
        reads: dict[str, _ReadPositions] = {}
        apart_s = began_at - self._read_at
        for stored in listed:
            previous = self._stored.get(stored.key)
            if previous is not None and previous.version == stored.version:
                reads[stored.key] = _unchanged(previous, began_at, apart_s)
                continue
            positions: Positions = {}
            operator_notes, point = OperatorNotes(), None
            try:
                raw = await self._objects.get_archiver_positions(stored.key)
                positions, operator_notes = decode_positions(raw, stored.key)
                if _RECOVERY_POINT in raw:
                    point = decode_recovery_point(raw, stored.key)
            except ObjectNotFound:
                continue  # its archiver has ended since
            except CorruptSegment as error:
                log.warning(
                    "archiver_positions_unreadable",
                    key=stored.key,
                    error=str(error),
                    hint="if this continues, run the same version of fetchproxy everywhere",
                )
            topics = frozenset(topic_id for topic_id, _ in positions)
            reads[stored.key] = _ReadPositions(
                stored.version, began_at, positions, topics, operator_notes, began_at, point
            )
        return reads

    def _report_archivers(self, read_at: float) -> None:
        """Report which archivers work and which are silent. An archiver whose partitions other
        archivers have taken over counts as neither.
        """
        silent_positions, alive_positions = {}, {}
        accumulated_keys: set[tuple[UUID, int]] = set()
        for key, read_positions in self._stored.items():
            if read_at - read_positions.watched_from >= MISSED_AFTER_S:
                silent_positions[key] = read_positions
            else:
                alive_positions[key] = read_positions
                accumulated_keys.update(read_positions.positions)
        silent = [
            Condition(
                Kind.ARCHIVER_SILENT,
                self._in_words(read_positions, partitions_left),
                key,
                since=read_positions.seen_at,
            )
            for key, read_positions in silent_positions.items()
            if (partitions_left := len(read_positions.positions.keys() - accumulated_keys))
        ]
        self._left_alone = frozenset(condition.subject for condition in silent)
        ARCHIVERS_HEARD.set(len(alive_positions))
        ARCHIVERS_SILENT.set(len(silent))
        self._health.keep(Kind.ARCHIVER_SILENT, silent)
        # Archivers report only a full disk. Two on one disk are reported once.
        own_key, disk = self._own_key(), Kind.ARCHIVER_DISK_FAILING
        others = {
            o.operator_notes.troubles: key for key, o in alive_positions.items() if key != own_key
        }
        self._health.keep(
            disk, [Condition(disk, "; ".join(texts), key) for texts, key in others.items() if texts]
        )


def _unchanged(previous: _ReadPositions, began_at: float, apart_s: float) -> _ReadPositions:
    """`apart_s`: since the last read. In a longer pause the archiver may have had no store."""
    if apart_s > READS_APART_MAX_S:
        return replace(previous, seen_at=began_at, watched_from=began_at)
    if apart_s > POSITIONS_READ_INTERVAL_S + LOOK_DELAY_MAX_S:
        return replace(previous, watched_from=began_at)
    return previous
