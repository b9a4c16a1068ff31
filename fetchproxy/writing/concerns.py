"""What an operator has to know of the archive: one name and one sentence for each thing.

Log, store, `/metrics`, `/api/status`, `verify` and `segments` say it with these names and in these
sentences. What an archiver alone knows (that it stopped, what it does not delete, what is at risk)
it keeps in the store too, for other processes and other archivers. What the archive itself tells is
worked out from it by whoever looks: `archive_health`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum

import structlog

from fetchproxy.errors import CorruptSegment, DamagedObject, RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVE_CONCERN_OFFSETS, ARCHIVE_CONCERNS
from fetchproxy.runtime.loop import pieces
from fetchproxy.runtime.retrying import within
from fetchproxy.segments.description import INT64, Fields, decode_document, json_document
from fetchproxy.storage.archive_objects import ConcernObject, ConcernObjects

log = structlog.get_logger(__name__)

VERSION = 1
PUBLISH_INTERVAL_S = 5.0
PUBLISH_MAX_S = 60.0
READ_AT_ONCE = 16

Subject = TopicIdPartition | None  # None: the archive as a whole


class Concern(StrEnum):
    """The value is the name everywhere: event, label of the metric, object, line, JSON."""

    # The archive itself tells these.
    ARCHIVE_GAP = "archive_gap"
    ARCHIVED_OFFSETS_MISSING = "archived_offsets_missing"
    ARCHIVED_OFFSETS_NOT_KNOWN = "archived_offsets_not_known"
    SEGMENT_METADATA_UNREADABLE = "segment_metadata_unreadable"
    SEGMENTS_PUT_ASIDE = "segments_put_aside"
    # An archiver alone knows these.
    ARCHIVE_MARGIN_SMALL = "archive_margin_small"
    UNARCHIVED_RECORDS_DELETED = "unarchived_records_deleted"
    PARTITION_STOPPED = "partition_stopped"
    LOCAL_TRIMMING_STOPPED = "local_trimming_stopped"
    REPLACED_SEGMENT_KEPT = "replaced_segment_kept"
    RETENTION_STEP_ANNOUNCED = "retention_step_announced"
    RETENTION_CLOCK_DOUBTED = "retention_clock_doubted"
    TOPIC_DELETION_STOPPED = "topic_deletion_stopped"


# Nobody has to act: what was lost stays lost, and what was put aside was a person's wish.
ON_RECORD = frozenset(
    {
        Concern.ARCHIVE_GAP,
        Concern.ARCHIVED_OFFSETS_NOT_KNOWN,
        Concern.SEGMENTS_PUT_ASIDE,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know; its fields are the JSON names in all places.

    `concern` is one of Concern, or a newer program's. `topic` None: it is of the archive as a
    whole. Offsets are both inclusive, None where it is of none. `what` is a sentence that names the
    partition.
    """

    concern: str
    topic: str | None
    partition: int | None
    what: str
    first_offset: int | None = None
    last_offset: int | None = None

    def __str__(self) -> str:
        return f"{self.concern}: {self.what}"

    @property
    def offsets(self) -> int:
        if self.first_offset is None or self.last_offset is None:
            return 0
        return self.last_offset - self.first_offset + 1

    def as_json(self) -> dict[str, str | int | None]:
        return asdict(self)


Offsets = tuple[int, int]  # first and last, both inclusive


def finding(concern: str, subject: Subject, what: str, offsets: Offsets | None = None) -> Finding:
    topic, partition = (None, None) if subject is None else (subject.topic, subject.partition)
    return Finding(concern, topic, partition, what, *(offsets or (None, None)))


def lost(tip: TopicIdPartition, first: int, last: int) -> Finding:
    what = f"{tip}: offsets {first} to {last} were lost before they could be copied (recorded gap)"
    return finding(Concern.ARCHIVE_GAP, tip, what, (first, last))


def missing(tip: TopicIdPartition, first: int, last: int) -> Finding:
    what = f"{tip}: {in_no_segment(first, last)}"
    return finding(Concern.ARCHIVED_OFFSETS_MISSING, tip, what, (first, last))


def not_known(tip: TopicIdPartition, first: int, last: int) -> Finding:
    what = f"{tip}: offsets {first} to {last} are in no segment, and nothing says if they ever were"
    return finding(Concern.ARCHIVED_OFFSETS_NOT_KNOWN, tip, what, (first, last))


def in_no_segment(first: int, last: int) -> str:
    return f"offsets {first} to {last} were archived and are in no segment"


def unreadable(tip: TopicIdPartition, objects: int, first: str) -> Finding:
    """`first`: what is wrong with the first of them."""
    what = f"{tip}: metadata of {objects} segments cannot be read, {first}; run fetchproxy verify"
    return finding(Concern.SEGMENT_METADATA_UNREADABLE, tip, what)


def put_aside(tip: TopicIdPartition, segments: int, first: int, last: int) -> Finding:
    what = (
        f"{tip}: {segments} segments with offsets {first} to {last} are put aside, of another "
        f"history of the log; fetchproxy resolve {tip} --keep shows them again"
    )
    return finding(Concern.SEGMENTS_PUT_ASIDE, tip, what, (first, last))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By place, then offset; what is of the whole archive comes first."""

    def place(one: Finding) -> tuple[str, int, int, str, str]:
        partition = -1 if one.partition is None else one.partition
        first = -1 if one.first_offset is None else one.first_offset
        return one.topic or "", partition, first, one.concern, one.what

    return tuple(sorted(set(findings), key=place))


def headlines(findings: Iterable[Finding]) -> tuple[str, ...]:
    """What waits for somebody: one sentence a concern, and how many more there are of it."""
    waiting: dict[str, list[str]] = {}
    for one in findings:
        if one.concern not in ON_RECORD:
            waiting.setdefault(one.concern, []).append(one.what)
    return tuple(
        whats[0] + (f" ({len(whats) - 1} more such)" if len(whats) > 1 else "")
        for whats in waiting.values()
    )


def publish_gauges(findings: Iterable[Finding]) -> None:
    """Of all that is known: as many of each as there are lines of it elsewhere."""
    counts: dict[str, int] = dict.fromkeys(Concern, 0)
    offsets: dict[str, int] = dict.fromkeys(Concern, 0)
    for one in findings:
        counts[one.concern] = counts.get(one.concern, 0) + 1
        offsets[one.concern] = offsets.get(one.concern, 0) + one.offsets
    for name, count in counts.items():
        ARCHIVE_CONCERNS.labels(name).set(count)
        ARCHIVE_CONCERN_OFFSETS.labels(name).set(offsets[name])


class ArchiverConcerns:
    """What one archiver knows; it decides nothing, and `hold`, `release`, `forget` never block.

    Each is an error event when it begins and an info event when it ends. `publish` writes to the
    store what was decided here. Where this archiver has not looked yet, the store keeps what the
    archiver before it has said.
    """

    def __init__(self, objects: ConcernObjects | None = None) -> None:
        """None: nothing is kept in a store."""
        self._objects = objects
        self._held: dict[Concern, dict[Subject, Finding]] = {concern: {} for concern in Concern}
        self._decided: dict[Concern, set[Subject]] = {concern: set() for concern in Concern}
        self._unsaid: set[tuple[Concern, Subject]] = set()
        self._stored: list[StoredConcern] = []  # as last read

    def hold(
        self,
        concern: Concern,
        subject: Subject,
        what: str,
        offsets: Offsets | None = None,
        **fields: object,
    ) -> None:
        """`what`: for people, and may change from look to look; logged when it begins."""
        if subject not in self._held[concern]:
            log.error(concern.value, **_place(subject), **fields, error=what)
        said = finding(concern, subject, what, offsets)
        if self._held[concern].get(subject) != said:
            self._unsaid.add((concern, subject))
        self._held[concern][subject] = said
        self._decided[concern].add(subject)

    def release(self, concern: Concern, subject: Subject) -> None:
        """What was wrong is not any more, or was not."""
        if self._held[concern].pop(subject, None) is not None:
            log.info(f"{concern.value}_no_more", **_place(subject))
            self._unsaid.add((concern, subject))
        if subject not in self._decided[concern]:
            self._decided[concern].add(subject)
            self._unsaid.add((concern, subject))

    def forget(self, tip: TopicIdPartition, *concerns: Concern) -> None:
        """Another archiver looks at the partition from now on, or nobody."""
        for concern in concerns:
            self._held[concern].pop(tip, None)
            self._decided[concern].discard(tip)
            self._unsaid.discard((concern, tip))

    def findings(self) -> tuple[Finding, ...]:
        return in_order(found for held in self._held.values() for found in held.values())

    def merged(self, stored: Iterable[StoredConcern]) -> Iterator[Finding]:
        """What is held here, and those of `stored` that other archivers have decided; in no order,
        as there may be very many."""
        for held in self._held.values():
            yield from held.values()
        decided = {str(concern): subjects for concern, subjects in self._decided.items()}
        for one in stored:
            if one.subject not in decided.get(one.name, ()):
                yield one.finding

    async def publish(self) -> None:
        """Raises RemoteStorageError; what was not said by then is said by the next call."""
        if not self._unsaid or self._objects is None:
            return
        async with within(PUBLISH_MAX_S, "put of concerns"):
            await self._publish(self._objects)

    async def _publish(self, objects: ConcernObjects) -> None:
        self._stored = await read_concerns(objects, self._stored)
        stored = {(s.name, s.subject): s for s in self._stored}
        for concern, subject in list(self._unsaid):
            if (concern, subject) not in self._unsaid:
                continue  # forgotten meanwhile: another archiver's
            wanted = self._held[concern].get(subject)
            said = stored.get((concern, subject))
            if wanted is None and said is not None:
                await objects.delete_concern(subject, concern)
            elif wanted is not None and (said is None or said.finding != wanted):
                await objects.put_concern(subject, concern, encode_concern(wanted))
            if self._held[concern].get(subject) == wanted:  # not changed meanwhile
                self._unsaid.discard((concern, subject))

    async def run(self) -> None:
        """For ever; what fails is logged once per outage and tried again."""
        failing = False
        while True:
            try:
                await self.publish()
                failing = False
            except RemoteStorageError as error:
                if not failing:
                    log.warning("concerns_not_published", error=str(error))
                failing = True
            await asyncio.sleep(PUBLISH_INTERVAL_S)


def _place(subject: Subject) -> dict[str, object]:
    return {} if subject is None else {"topic": subject.topic, "partition": subject.partition}


# --- in the store ---
@dataclass(frozen=True, slots=True)
class StoredConcern:
    name: str
    subject: Subject
    finding: Finding
    version: str = ""  # of its object


async def read_concerns(
    objects: ConcernObjects, known: Iterable[StoredConcern] = ()
) -> list[StoredConcern]:
    """Of the whole archive: a listing, and a small read for each that is not `known` as it is.

    Raises RemoteStorageError.
    """
    before = {(one.name, one.subject, one.version): one for one in known}
    listed = await objects.list_concerns()
    found = [before.get((one.name, one.tip, one.version)) for one in listed]

    async def read(at: int) -> None:
        one = listed[at]
        try:
            raw = await objects.get_concern(one)
            said = None if raw is None else _decode(raw, one)
        except DamagedObject as damage:
            said = finding(one.name, one.tip, str(damage), None)
        if said is not None:
            found[at] = StoredConcern(one.name, one.tip, said, one.version)

    unread = [at for at, one in enumerate(found) if one is None]
    for piece in pieces(unread, READ_AT_ONCE):
        try:
            async with asyncio.TaskGroup() as reads:
                for at in piece:
                    reads.create_task(read(at))
        except ExceptionGroup as failures:
            # They fail together when the store does: the first stands for all.
            raise failures.exceptions[0] from failures
    return [one for one in found if one is not None]


def encode_concern(one: Finding) -> bytes:
    """{"version": 1, "what": "…"}, with "first_offset" and "last_offset" where there are any."""
    offsets = {"first_offset": one.first_offset, "last_offset": one.last_offset}
    fields = {"version": VERSION, "what": one.what}
    known = {name: value for name, value in offsets.items() if value is not None}
    return json_document(fields | known)


def _decode(raw: bytes, listed: ConcernObject) -> Finding:
    """One that cannot be read is told too: its name says the most."""
    try:
        what, offsets = decode_document(raw, listed.key, VERSION, _said)
    except CorruptSegment as error:
        what, offsets = str(error), None
    return finding(listed.name, listed.tip, what, offsets)


def _said(fields: Fields) -> tuple[str, Offsets | None]:
    what = fields.text("what")
    if "first_offset" not in fields.names():
        return what, None
    first = fields.integer("first_offset", 0, INT64)
    return what, (first, fields.integer("last_offset", first, INT64))
