"""The one truth of health: what is wrong, since when, until when, and what to do about it.

A part reports a `Condition` when something begins to be wrong and clears it when that is over;
each of the two is logged once, here. Page, `/api/status`, `/readyz`, `/metrics` and the commands
read conditions and have no words of their own. A kind has one name, one level and one remedy in all
these places (`Kind`), and the table of docs/operations.md is made of these.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple, Self

import structlog

from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import CONDITION_OFFSETS, CONDITIONS

log = structlog.get_logger(__name__)

PUBLISH_INTERVAL_S = 1.0

Subject = TopicIdPartition | None  # None: the archive as a whole
Offsets = tuple[int, int]  # first and last, both inclusive


class Level(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    ON_RECORD = "on record"  # nobody has to act: it stays as it is


class Meaning(NamedTuple):
    """`subject`: what a condition of the kind is about, and that field's name in the log; "" for
    the process. `waits`: somebody has to act, so it stands at the top of the page; else it stands
    where it belongs.
    """

    level: Level
    subject: str
    means: str
    remedy: str
    waits: bool = True


def _kind(
    level: Level, name: str, means: str, remedy: str, about: str = "partition", waits: bool = True
) -> tuple[str, Meaning]:
    return name, Meaning(level, about, means, remedy, waits)


_error = partial(_kind, Level.ERROR)
_warning = partial(_kind, Level.WARNING)
_on_record = partial(_kind, Level.ON_RECORD, waits=False)


class Kind(StrEnum):
    """The value is the name everywhere: event, label of the metric, object, line, JSON. Of one
    level, the worst kind comes first.
    """

    meaning: Meaning

    def __new__(cls, name: str, meaning: Meaning) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.meaning = meaning
        return kind

    # This process, and what it depends on.
    BROKERS_AWAY = _error(
        "brokers_away",
        "no broker answers: clients are not served and nothing is archived; `/readyz` is 503",
        "start the brokers, or correct `cluster.bootstrap`",
        about="",
    )
    STORE_FAILING = _error(
        "store_failing",
        "the store's listings, reads, writes or deletions fail, or are not answered for 8 s",
        "mend the store or the way to it; fetchproxy goes on by itself",
        about="operation",
    )
    STORE_THROTTLES = _warning(
        "store_throttles",
        "the store refuses requests as too many (503 SlowDown); fetchproxy asks less for a minute",
        "nothing if it ends; else ask the store's owner for more requests a second",
        about="operation",
        waits=False,
    )
    SEGMENTS_LOCKED = _error(
        "segments_locked",
        "segments are encrypted with a key that is not at hand: their reads fail",
        "put the key back into the key ring that `store.encryption_keys` names",
        about="key",
    )
    SEGMENT_METADATA_CHANGED = _error(
        "segment_metadata_changed",
        "somebody has changed the metadata of an encrypted segment: its reads fail",
        "see who else can write to the store; `fetchproxy verify --repair`",
    )
    ARCHIVE_MISSING = _error(
        "archive_missing",
        "there is no archive at `store.url`",
        "correct `store.url`, mount the folder, or give `--create` for a new archive",
        about="",
    )
    ARCHIVE_MISMATCH = _error(
        "archive_mismatch",
        "the archive belongs to another cluster, or is set up in another way",
        "correct `store.url`, `cluster.bootstrap` or the `metadata` keys, then restart",
        about="",
    )
    ARCHIVE_LISTING_FAILING = _error(
        "archive_listing_failing",
        "the page cannot learn what the archive holds: it shows what was known before",
        "see the error; with `metadata.manager = topic` look at the metadata topic too",
        about="",
    )
    PARTITIONS_UNKNOWN = _error(
        "partitions_unknown_to_metadata_topic",
        "the store has partitions that the metadata topic does not know: their reads fail",
        "`fetchproxy restore`",
        about="",
    )
    CLUSTER_AUTHENTICATION_REFUSED = _error(
        "cluster_authentication_refused",
        "the brokers refuse the proxy's own credentials: nothing is archived; clients are relayed",
        "correct the credentials in `[cluster]`, or the user on the brokers",
        about="",
    )
    ARCHIVER_DISK_FAILING = _error(
        "archiver_disk_failing",
        "an archiver's disk is full or fails: its partitions are not archived",
        "free space on the disk of the spool folder, or replace it",
        about="archiver",
    )
    ARCHIVER_SILENT = _error(
        "archiver_silent",
        "an archiver was killed, or cannot write to the store: its partitions are not archived",
        "start it again",
        about="archiver",
    )
    TLS_FILES_UNUSABLE = _error(
        "tls_files_unusable",
        "changed certificates or keys cannot be used; connections get the former ones",
        "correct the files that it names; they are read again by themselves",
        about="place",
    )
    TLS_CERTIFICATE_EXPIRES = _warning(
        "tls_certificate_expires",
        "our own certificate ends soon, or has ended",
        "put a new certificate in its place; it is read by itself",
        about="place",
    )
    BROKER_AWAY = _warning(
        "broker_away",
        "a broker does not answer; others do",
        "start it; one that was taken out of the cluster is forgotten after an hour",
        about="address",
    )
    READERS_HELD = _warning(
        "readers_held",
        "readers wait for records that the brokers have deleted and that are not archived yet",
        "see what keeps the archiver",
        about="",
    )
    GATEWAY_NOT_LISTENING = _warning(
        "gateway_not_listening",
        "clients cannot connect yet; `/readyz` is 503",
        "wait: it reads the archive first; with `--archive-only` the store has to answer",
        about="",
        waits=False,
    )
    # An archiver alone knows these. It also keeps them in the store, for other processes.
    UNARCHIVED_RECORDS_DELETED = _error(
        "unarchived_records_deleted",
        "the brokers have deleted records that are not archived, and may delete more",
        "raise the brokers' retention, and see what keeps the archiver",
    )
    ARCHIVE_MARGIN_SMALL = _error(
        "archive_margin_small",
        "the brokers may soon delete what is not archived",
        "raise the brokers' retention, or see what keeps the archiver",
    )
    PARTITION_STOPPED = _error(
        "partition_stopped",
        "nothing is archived or deleted: the log begins again, was cut, or was compacted",
        "`fetchproxy resolve`",
    )
    LOCAL_TRIMMING_STOPPED = _error(
        "local_trimming_stopped",
        "the brokers keep what local retention would delete, as the archive lacks some of it",
        "`fetchproxy verify`; put back what is missing",
    )
    TOPIC_DELETION_STOPPED = _error(
        "topic_deletion_stopped",
        "deleted topics keep their archive, as this may be another cluster with the same id",
        "check `cluster.bootstrap`; if they were deleted, do as the sentence says",
        about="",
    )
    REPLACED_SEGMENT_KEPT = _warning(
        "replaced_segment_kept",
        "a replaced segment is not deleted, as what replaces it is damaged or incomplete",
        "`fetchproxy verify`",
    )
    RETENTION_STEP_ANNOUNCED = _warning(
        "retention_step_announced",
        "retention is about to delete a large part of the archive",
        "correct retention or clock before the time that it names; nothing if it is intended",
    )
    RETENTION_CLOCK_DOUBTED = _warning(
        "retention_clock_doubted",
        "retention by time waits, as this machine's clock is ahead of records or of the store",
        "set the clock right",
    )
    # Of its own archiver's work alone.
    LOCAL_RETENTION_REFUSED = _error(
        "local_retention_refused",
        "local retention deletes nothing of the topic, because of the topic's own settings",
        "mostly: set `retention.ms=-1` and `retention.bytes=-1` on the topic",
        about="topic",
    )
    LOG_BEGINS_AGAIN = _error(
        "log_begins_again",
        "the leader's log has nothing of the archive",
        "`fetchproxy resolve`",
        waits=False,
    )
    PARTITION_FAILING = _warning(
        "partition_process_failed",
        "the archiver's last turn at the partition failed",
        "see the error; it tries again by itself",
        waits=False,
    )
    SEGMENT_COPY_STALLED = _warning(
        "segment_copy_stalled",
        "a copy has used up half of the time that it may take",
        "see whether the store takes writes",
        waits=False,
    )
    TOPIC_REFUSED = _error(
        "topic_refused",
        "the topic matches those to be archived, and cannot be",
        "leave it out of the pattern, or change the topic as the reason says",
        about="topic",
        waits=False,
    )
    # The archive itself tells these, to whoever looks.
    ARCHIVED_OFFSETS_MISSING = _error(
        "archived_offsets_missing",
        "offsets were archived, and no segment has them any more",
        "find out what deletes in the store; put the objects back",
    )
    SEGMENT_METADATA_UNREADABLE = _error(
        "segment_metadata_unreadable",
        "metadata of a segment cannot be read: its offsets are not served",
        "`fetchproxy verify --repair`",
    )
    ARCHIVE_GAP = _on_record(
        "archive_gap",
        "offsets were lost before they could be copied",
        "nothing brings them back; see why the archiver was late",
    )
    ARCHIVED_OFFSETS_NOT_KNOWN = _on_record(
        "archived_offsets_not_known",
        "offsets are in no segment, and nothing is on record of them: an older archive",
        "nothing",
    )
    SEGMENTS_PUT_ASIDE = _on_record(
        "segments_put_aside",
        "segments are of another history of the log, by `resolve --new-history`",
        "nothing; `fetchproxy resolve --keep` shows them again",
    )


MEANINGS: Mapping[str, Meaning] = {kind: kind.meaning for kind in Kind}
# What a newer program has left in the store.
_NEWER = Meaning(Level.ERROR, "partition", "", "a newer fetchproxy knows it: update this one")
_SEVERITY = {kind: place for place, kind in enumerate(MEANINGS)}
_LEVELS = list(Level)


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing to know; its fields are the JSON names in all places.

    `kind` is one of Kind, or a newer program's. `what` is a plain sentence. `topic` and `partition`
    are None where it is of none; offsets are both inclusive. `missing` names what the process lacks
    to be ready; "" where it is ready all the same. `since` and `until` are loop times (s): when it
    began, and when harm is done if nobody acts; None: not known.
    """

    kind: str
    what: str
    subject: str = ""
    topic: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    missing: str = ""
    since: float | None = field(default=None, compare=False)
    until: float | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"

    @property
    def meaning(self) -> Meaning:
        return MEANINGS.get(self.kind, _NEWER)

    @property
    def level(self) -> Level:
        return self.meaning.level

    @property
    def remedy(self) -> str:
        """In plain text."""
        return self.meaning.remedy.replace("`", "")

    @property
    def offsets(self) -> int:
        if self.first_offset is None or self.last_offset is None:
            return 0
        return self.last_offset - self.first_offset + 1

    def as_json(self) -> dict[str, str | int | float | bool | None]:
        """The fields that do not change with time, for commands."""
        return {
            "kind": self.kind,
            "level": self.level.value,
            "subject": self.subject,
            "topic": self.topic,
            "partition": self.partition,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "what": self.what,
            "remedy": self.remedy,
        }

    def as_json_at(self, now: float) -> dict[str, str | int | float | bool | None]:
        """For a running process; `now` is loop time (s)."""
        return self.as_json() | {
            "waits": self.meaning.waits,
            "missing": self.missing,
            "since_s": None if self.since is None else round(now - self.since, 1),
            "until_s": None if self.until is None else round(self.until - now, 1),
        }


def of_partition(
    kind: str,
    about: Subject,
    what: str,
    offsets: Offsets | None = None,
    *,
    since: float | None = None,
    until: float | None = None,
) -> Condition:
    first, last = offsets or (None, None)
    if about is None:
        return Condition(kind, what, "", None, None, first, last, "", since, until)
    place = str(about), about.topic, about.partition
    return Condition(kind, what, *place, first, last, "", since, until)


def of_topic(kind: str, topic: str, what: str) -> Condition:
    return Condition(kind, what, topic, topic)


Source = Callable[[float], Iterable[Condition]]


class Health:
    """What is wrong now. Nothing here blocks, and nothing is decided by it.

    `about` says what a condition is about where its `subject` is not exact enough: two topics may
    have had one name.
    """

    def __init__(self) -> None:
        self._reported: dict[str, dict[Hashable, Condition]] = {}
        self._sources: list[Source] = []

    # --- for the parts ---
    def report(self, condition: Condition, about: Hashable = None, **fields: object) -> None:
        """Logged when it begins, with `fields`; `what` may change from call to call."""
        if self.hold(condition, about):
            _say(condition, fields)

    def hold(self, condition: Condition, about: Hashable = None) -> bool:
        """As `report`, where the part itself logs it. True: it begins."""
        of_kind = self._reported.setdefault(condition.kind, {})
        about = condition.subject if about is None else about
        before = of_kind.get(about)
        if condition.since is None:
            since = asyncio.get_running_loop().time() if before is None else before.since
            condition = replace(condition, since=since)
        of_kind[about] = condition
        return before is None

    def clear(self, kind: str, about: Hashable = "", now: float | None = None) -> bool:
        """It is over (`now`: at that loop time), or was not. True: it was reported."""
        over = self._reported.get(kind, {}).pop(about, None)
        if over is not None:
            log.info(f"{kind}_no_more", **_place(over), **_lasted(over, now))
        return over is not None

    def forget(self, kind: str, about: Hashable = "") -> None:
        """It is over and nothing is said, as another process sees to it, or the part says it."""
        self._reported.get(kind, {}).pop(about, None)

    def keep(self, kind: str, conditions: Iterable[Condition]) -> None:
        """These are all of that kind."""
        found = {one.subject: one for one in conditions}
        for gone in self._reported.get(kind, {}).keys() - found.keys():
            self.clear(kind, gone)
        for one in found.values():
            self.report(one)

    def watch(self, source: Source) -> None:
        """Asked at each look for what changes while nothing happens; it logs for itself."""
        self._sources.append(source)

    # --- for whoever shows it ---
    def reported(self, kind: str, about: Hashable = "") -> Condition | None:
        return self._reported.get(kind, {}).get(about)

    def all(self, now: float) -> Iterator[Condition]:
        """In no order, as there may be very many; `now` is loop time (s)."""
        for of_kind in self._reported.values():
            yield from of_kind.values()
        for source in self._sources:
            yield from source(now)

    def conditions(self, now: float) -> tuple[Condition, ...]:
        """The worst first."""
        return worst_first(self.all(now))

    async def run(self) -> None:
        """Keep the gauges right, for ever."""
        while True:
            publish_gauges(self.all(asyncio.get_running_loop().time()))
            await asyncio.sleep(PUBLISH_INTERVAL_S)


def _say(condition: Condition, fields: Mapping[str, object]) -> None:
    write = {Level.ERROR: log.error, Level.WARNING: log.warning}.get(condition.level, log.info)
    write(str(condition.kind), **{**_place(condition), "error": condition.what, **fields})


def _place(condition: Condition) -> dict[str, object]:
    if condition.partition is not None:
        return {"topic": condition.topic, "partition": condition.partition}
    return {condition.meaning.subject: condition.subject} if condition.subject else {}


def _lasted(condition: Condition, now: float | None) -> dict[str, object]:
    if condition.since is None:
        return {}
    now = asyncio.get_running_loop().time() if now is None else now
    return {"lasted_s": round(now - condition.since, 1)}


# --- what the places that show conditions have in common: pure ---
def in_order(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """By place, then offset, each once; what is of no partition comes first."""
    return tuple(sorted(set(conditions), key=_by_place))


def worst_first(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Each once: by level, then what keeps the process from being ready, then kind and place."""

    def worst(one: Condition) -> tuple[int, bool, int, tuple[str, int, int, str, str]]:
        severity = _SEVERITY.get(one.kind, len(_SEVERITY))
        return _LEVELS.index(one.level), not one.missing, severity, _by_place(one)

    return tuple(sorted(set(conditions), key=worst))


def _by_place(one: Condition) -> tuple[str, int, int, str, str]:
    partition = -1 if one.partition is None else one.partition
    first = -1 if one.first_offset is None else one.first_offset
    return one.topic or "", partition, first, one.kind, one.what


def first_of_each_kind(conditions: Iterable[Condition]) -> list[Condition]:
    found: dict[str, Condition] = {}
    for one in conditions:
        found.setdefault(one.kind, one)
    return list(found.values())


def counts(conditions: Iterable[Condition]) -> Counter[str]:
    """By kind."""
    return Counter(one.kind for one in conditions)


def headlines(conditions: Sequence[Condition]) -> tuple[str, ...]:
    """What waits for somebody: one sentence a kind, and how many more there are of it."""
    waiting = [one for one in conditions if one.meaning.waits]
    number = counts(waiting)
    return tuple(
        one.what + (f" ({number[one.kind] - 1} more such)" if number[one.kind] > 1 else "")
        for one in first_of_each_kind(waiting)
    )


def missing(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """What stands between the process and readiness; empty: it is ready."""
    return tuple(one.missing for one in conditions if one.missing)


def publish_gauges(conditions: Iterable[Condition]) -> None:
    number: Counter[str] = Counter()
    offsets: Counter[str] = Counter()
    for one in conditions:
        number[one.kind] += 1
        offsets[one.kind] += one.offsets
    for kind in [*MEANINGS, *(number.keys() - MEANINGS.keys())]:
        CONDITIONS.labels(kind, MEANINGS.get(kind, _NEWER).level).set(number[kind])
        CONDITION_OFFSETS.labels(kind).set(offsets[kind])


def table() -> str:
    """A Markdown table of every kind, the worst first."""
    rows = ["| kind | level | about | meaning | what to do |", "|---|---|---|---|---|"]
    for level in Level:
        rows += [
            f"| `{kind}` | {level} | {one.subject or 'the process'} | {one.means} | {one.remedy} |"
            for kind, one in MEANINGS.items()
            if one.level == level
        ]
    return "\n".join(rows) + "\n"
