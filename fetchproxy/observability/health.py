"""The single source of health: faults, their times, and what to do about them.

A part reports a `Condition` when a fault begins and clears it when the fault is over. This module
logs both, once. The page, `/api/status`, `/readyz`, `/metrics` and the commands show these
conditions in these words. A kind (`Kind`) has one name, one level and one remedy in all places. The
table in docs/reference/conditions.md is generated from the kinds.
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

from fetchproxy.config.values import harmless
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import CONDITION_OFFSETS, CONDITIONS

log = structlog.get_logger(__name__)

_PUBLISH_INTERVAL_S = 1.0

Subject = TopicIdPartition | None  # None: the archive as a whole
Offsets = tuple[int, int]  # first and last, both inclusive
_SortKey = tuple[str, int, str, int, int, str, str]


class Level(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    ON_RECORD = "on record"  # nobody has to act: the condition stays


class Meaning(NamedTuple):
    """`subject`: what a condition of the kind is about, and the field's name in the log; "" for the
    process. `waits`: a person has to act, so the condition is at the top of the page; otherwise it
    is next to its subject.
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
    """The value is the name in all places: log event, metric label, object, line, JSON. Within a
    level, the worst kind comes first.
    """

    meaning: Meaning

    def __new__(cls, name: str, meaning: Meaning) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.meaning = meaning
        return kind

    # About this process and its dependencies.
    BROKERS_AWAY = _error(
        "brokers_away",
        "no broker responds: clients are not served, archiving stops, and `/readyz` is 503",
        "start the brokers, or correct `cluster.bootstrap`",
        about="",
    )
    STORE_FAILING = _error(
        "store_failing",
        "listings, reads, writes or deletions in the store fail, or get no response for 8 s",
        "repair the store or the network to it; fetchproxy then continues, without a restart",
        about="operation",
    )
    STORE_THROTTLES = _warning(
        "store_throttles",
        "the store refuses requests because there are too many (503 SlowDown); fetchproxy sends "
        "fewer for a minute",
        "nothing if it clears soon; otherwise ask the store's owner to allow more requests per "
        "second",
        about="operation",
        waits=False,
    )
    SEGMENTS_LOCKED = _error(
        "segments_locked",
        "the key of encrypted segments is not available, so reads of them fail",
        "put the key back into the key ring that `store.encryption_keys` names",
        about="key",
    )
    PLAIN_SEGMENTS_REFUSED = _error(
        "plain_segments_refused",
        "a segment is not encrypted although `store.encryption_keys` requires it, so reads of it "
        "fail",
        "put the encrypted objects back from a copy of the store; if the segment is the same as "
        "its source, leave out `?required=true` until `fetchproxy merge --encrypt-plain` has "
        "encrypted it",
    )
    OBJECT_NOT_READABLE = _error(
        "object_not_readable",
        "the store works but does not return one object, so its offsets cannot be read",
        "as the message says: restore the object, enable its key, give access, or copy the "
        "object back to a readable storage class",
    )
    SEGMENT_DAMAGED = _error(
        "segment_damaged",
        "an object of a segment is damaged or missing, so its offsets cannot be read",
        "put the object back from a copy of the store; `fetchproxy verify --repair` rebuilds "
        "every object except the `.log`",
    )
    SEGMENTS_NOT_ENCRYPTED = _warning(
        "segments_not_encrypted",
        "readers get records of a segment that is not encrypted, although new ones are: someone "
        "without a key may have put it there",
        "compare the segment with its source: if it is the same, run `fetchproxy merge "
        "--encrypt-plain`; if not, put the encrypted objects back from a copy of the store",
    )
    KEY_SERVICE_FAILING = _error(
        "key_service_failing",
        "the key service returns no keys: encrypted segments cannot be read or written",
        "repair the key service, the network to it, or this process's rights and credentials there",
        about="service",
    )
    KEY_RING_UNUSABLE = _error(
        "key_ring_unusable",
        "the changed key ring file cannot be used; until a restart, the process continues with "
        "the previous keys",
        "correct the file as the error says; fetchproxy then reads it without a restart",
        about="path",
    )
    SEGMENT_METADATA_CHANGED = _error(
        "segment_metadata_changed",
        "the metadata of an encrypted segment was changed, so reads of the segment fail",
        "find out who else can write to the store, then run `fetchproxy verify --repair`",
    )
    ARCHIVE_MISSING = _error(
        "archive_missing",
        "there is no archive at `store.url`",
        "correct `store.url` or mount the folder; for a new archive, start the archiver "
        "with `--create` once",
        about="",
    )
    ARCHIVE_MISMATCH = _error(
        "archive_mismatch",
        "the archive belongs to another cluster, or does not match this process's settings",
        "correct `store.url`, `cluster.bootstrap` or the `metadata` keys, then restart",
        about="",
    )
    ARCHIVE_LISTING_FAILING = _error(
        "archive_listing_failing",
        "the archive cannot be listed; the page shows what was known before",
        "read the error; with `metadata.manager = topic`, also check the metadata topic",
        about="",
    )
    PARTITIONS_UNKNOWN = _error(
        "partitions_unknown_to_metadata_topic",
        "the store has partitions that the metadata topic does not know; reads of them wait",
        "run `fetchproxy restore`",
        about="",
    )
    CLUSTER_AUTHENTICATION_REFUSED = _error(
        "cluster_authentication_refused",
        "the brokers refuse the proxy's own credentials; archiving stops, but clients are still "
        "relayed",
        "correct the user on the brokers, or the password file (it is read again without a "
        "restart); a password that is not in a file needs a restart",
        about="",
    )
    ARCHIVER_DISK_FAILING = _error(
        "archiver_disk_failing",
        "an archiver's disk is full or failing, so its partitions are not archived",
        "free space on the disk of the spool folder, or replace the disk",
        about="archiver",
    )
    ARCHIVER_SILENT = _error(
        "archiver_silent",
        "an archiver was killed or cannot write to the store, so its partitions are not archived",
        "start the archiver again",
        about="archiver",
    )
    PART_FAILED = _error(
        "part_failed",
        "a bug stopped a part of this process; it is restarted, with pauses of up to a minute; "
        "the message says what is not done meanwhile",
        "report the bug with the traceback from the log; if the condition does not clear, "
        "restart the process",
        about="part",
    )
    SETTINGS_REFUSED = _error(
        "settings_refused",
        "the settings that were read at SIGHUP cannot be used, so none of them was applied",
        "correct what the message names, and send SIGHUP again",
        about="",
    )
    SETTINGS_WAIT = _warning(
        "settings_wait",
        "settings were changed, and the process uses the old values until it is restarted",
        "restart the process; or change the settings back, and send SIGHUP",
        about="",
        waits=False,
    )
    TLS_FILES_UNUSABLE = _error(
        "tls_files_unusable",
        "changed certificates or keys cannot be used; new connections still get the old ones",
        "correct the files that the error names; fetchproxy then reads them without a restart",
        about="place",
    )
    TLS_CERTIFICATE_EXPIRES = _warning(
        "tls_certificate_expires",
        "the proxy's own certificate expires soon or has expired",
        "replace the certificate file; no restart is needed",
        about="place",
    )
    BROKER_AWAY = _warning(
        "broker_away",
        "a broker does not respond; others do",
        "start the broker; fetchproxy forgets a removed broker after an hour",
        about="address",
    )
    MESSAGE_TOO_LARGE = _warning(
        "message_too_large",
        "a client's request, or a broker's response that the proxy has to read, is too large and "
        "was refused",
        "raise the setting that it names; a limit without a section in its name is fixed: then "
        "make the client request less at once",
        about="limit",
    )
    READERS_HELD = _warning(
        "readers_held",
        "readers wait for records that the brokers have deleted and that are not archived yet",
        "find out what delays the archiver; the message says what they wait for",
        about="wait",
    )
    CLIENTS_WAIT = _warning(
        "clients_wait",
        "logins, lookups by time, or key requests wait too long because some clients send too "
        "many of them",
        "correct the password of the clients that the message names, or make them send fewer "
        "requests",
        about="turn",
    )
    GATEWAY_NOT_LISTENING = _warning(
        "gateway_not_listening",
        "clients cannot connect because the process is starting or stopping; `/readyz` is 503",
        "wait until it has read the archive; with `--archive-only`, the store must be reachable",
        about="",
        waits=False,
    )
    # Only an archiver knows these. It also writes them to the store, for other processes.
    UNARCHIVED_RECORDS_DELETED = _error(
        "unarchived_records_deleted",
        "the brokers have deleted records that are not archived, and may delete more",
        "remove the cause that the message names; until then, raise the brokers' retention",
    )
    ARCHIVE_MARGIN_SMALL = _error(
        "archive_margin_small",
        "the brokers may soon delete records that are not archived",
        "remove the cause that the message names, or raise the brokers' retention",
    )
    OPEN_TRANSACTION = _warning(
        "open_transaction",
        "an open transaction holds back the last stable offset, and records above it are not "
        "archived",
        "if its producer does not finish it, run the `kafka-transactions.sh … abort` command "
        "from the message",
    )
    PARTITION_STOPPED = _error(
        "partition_stopped",
        "archiving and deletion have stopped because the log started over or was truncated",
        "run `fetchproxy resolve`",
    )
    LOG_DAMAGED = _error(
        "log_damaged",
        "a batch in the brokers' log is damaged; archiving stops before it",
        "make another replica the leader (`kafka-leader-election.sh`), or delete the records up "
        "to the batch's last offset (`kafka-delete-records.sh`); the archiver then continues",
    )
    COMPACTED_COPY_LATE = _error(
        "compacted_copy_late",
        "a compacted log was not copied in time: the archive has the last whole copy, or none, and "
        "nothing newer",
        "let the archiver read faster (`archive.copy_bytes_per_s_max`, `archive.workers_max`), or "
        "raise `delete.retention.ms` of the topic; the archiver tries again by itself",
    )
    LOCAL_TRIMMING_STOPPED = _error(
        "local_trimming_stopped",
        "the brokers keep records that are older than local retention, because the archive lacks "
        "some of them",
        "run `fetchproxy verify`, then put back the missing objects",
    )
    TOPIC_DELETION_STOPPED = _error(
        "topic_deletion_stopped",
        "the archives of deleted topics are kept, because this may be another cluster with the "
        "same id",
        "check `cluster.bootstrap`; if the topics really were deleted, do what the message says",
        about="",
    )
    REPLACED_SEGMENT_KEPT = _warning(
        "replaced_segment_kept",
        "a replaced segment is kept because its replacement is damaged or incomplete",
        "run `fetchproxy verify`",
    )
    RETENTION_STEP_ANNOUNCED = _warning(
        "retention_step_announced",
        "retention is about to delete a large part of the archive",
        "nothing if this is intended; otherwise correct the retention or the clock before the "
        "time in the message",
    )
    RETENTION_CLOCK_DOUBTED = _warning(
        "retention_clock_doubted",
        "time-based retention is paused because this machine's clock is ahead of the records or "
        "of the store",
        "correct the clock",
    )
    RETENTION_HELD_UP = _warning(
        "retention_held_up",
        "a record has a timestamp in the future; time-based retention stops there",
        "run `kafka-delete-records.sh` through the proxy, up to the offset in the message, or "
        "limit the archive by bytes",
    )
    LOCAL_RETENTION_HELD_UP = _warning(
        "local_retention_held_up",
        "a record has a timestamp in the future; the brokers keep it and everything after it",
        "run `kafka-delete-records.sh` at a broker, up to the offset in the message, or limit "
        "the brokers' logs by bytes",
    )
    CLUSTER_STATE_INCOMPLETE = _warning(
        "cluster_state_incomplete",
        "the archiver's user lacks rights, so the archive does not have everything that a new "
        "cluster would need besides records",
        "grant the rights that the message names to the archiver's user; if you do not want to "
        "restore the cluster from the archive, set `archive.cluster_state_interval_ms = 0`",
        about="",
    )
    CLUSTER_STATE_OLD = _error(
        "cluster_state_old",
        "the state of the cluster in the archive is no longer written: a restored cluster would "
        "get old offsets of groups, and would lack what was created since",
        "repair what the message names; the archiver tries again by itself",
        about="",
    )
    # About this process's own archiver only.
    JOURNAL_NOT_WRITTEN = _error(
        "journal_not_written",
        "the archiver cannot write its journal: if the cluster is lost now, all records since the "
        "last copies are lost with it",
        "repair what the message names; the archiver tries again by itself",
        about="",
    )
    LOCAL_RETENTION_REFUSED = _error(
        "local_retention_refused",
        "local retention is not applied to the topic because of the topic's own settings",
        "usually: set `retention.ms=-1` and `retention.bytes=-1` on the topic",
        about="topic",
    )
    LOG_BEGINS_AGAIN = _error(
        "log_begins_again",
        "the log started over: the leader's log has none of the archived records",
        "run `fetchproxy resolve`",
        waits=False,
    )
    PARTITION_FAILING = _warning(
        "partition_process_failed",
        "the archiver's last attempt at the partition failed",
        "read the error; the archiver retries",
        waits=False,
    )
    SEGMENT_COPY_STALLED = _warning(
        "segment_copy_stalled",
        "the copy of a segment has used up half of its time limit",
        "check whether the store accepts writes",
        waits=False,
    )
    TOPIC_REFUSED = _error(
        "topic_refused",
        "the topic matches `archive.topics` but cannot be archived",
        "change the topic as the reason says, or exclude it from the pattern",
        about="topic",
        waits=False,
    )
    PARTITIONS_NOT_LED = _error(
        "partitions_not_led",
        "some partitions are not archived: no archiver runs beside the broker that leads them",
        "start an archiver with `archive.log_dirs` beside every broker",
        about="",
    )
    TOPIC_LEFT_OUT = _warning(
        "topic_left_out",
        "the topic was archived, but no archiver's pattern matches it now; its new records are "
        "not archived",
        "if it was excluded on purpose, nothing; otherwise change `archive.topics` so that it "
        "matches",
        about="topic",
        waits=False,
    )
    # Every process finds these in the archive itself.
    ARCHIVED_OFFSETS_MISSING = _error(
        "archived_offsets_missing",
        "offsets that were archived are in no segment any more",
        "find out what deletes objects in the store; put the objects back",
    )
    SEGMENT_METADATA_UNREADABLE = _error(
        "segment_metadata_unreadable",
        "the metadata of a segment cannot be read, so its offsets are not served",
        "run `fetchproxy verify --repair`",
    )
    ARCHIVE_GAP = _on_record(
        "archive_gap",
        "the brokers deleted records before they were copied",
        "the records cannot be recovered; find out why the archiver was late",
    )
    MIRROR_READ = _on_record(
        "mirror_read",
        "the archive in use is a mirror; readers wait for the segments not copied yet",
        "nothing if this is intended; `fetchproxy mirror` copies the rest",
        about="",
    )
    ARCHIVED_OFFSETS_NOT_KNOWN = _on_record(
        "archived_offsets_not_known",
        "some offsets are in no segment, and the archive is too old to have a record of what "
        "happened to them",
        "nothing",
    )
    SEGMENTS_PUT_ASIDE = _on_record(
        "segments_put_aside",
        "after `resolve --new-history`, segments of the old history are hidden",
        "nothing; `fetchproxy resolve --keep` shows them again",
    )


MEANINGS: Mapping[str, Meaning] = {kind: kind.meaning for kind in Kind}
# For kinds that a newer version has written to the store.
_NEWER = Meaning(
    Level.ERROR, "partition", "", "it was written by a newer fetchproxy: update this one"
)
_SEVERITY = {kind: place for place, kind in enumerate(MEANINGS)}
_LEVELS = list(Level)


@dataclass(frozen=True, slots=True)
class Condition:
    """A fault, or a fact on record. Its fields are the JSON names in all places.

    `kind` is one of Kind, or a newer version's. `what` is a plain sentence. `topic` and `partition`
    are None if the condition is not about one. Both offsets are inclusive. `missing` names what the
    process lacks to be ready; "" if the process is ready despite the condition. `since` and `until`
    are loop times (s): when the condition began, and when harm is done if nobody acts; None: not
    known. `object_key` and `byte_position` (in the object) are of what a check has found wrong in
    the archive. `retriable`: the object could not be read now, which says nothing of its content.
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
    object_key: str | None = None
    byte_position: int | None = None
    retriable: bool = False

    def __post_init__(self) -> None:
        # Sentences name what brokers, clients and the store said.
        object.__setattr__(self, "what", harmless(self.what))

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"

    @property
    def where_and_what(self) -> str:
        """For the lists of a report, whose headings stand for the kind."""
        place, byte, offset = self.subject, "", ""
        if self.object_key is not None:
            place += f": {self.object_key}"
            byte = "" if self.byte_position is None else f" at byte {self.byte_position}"
            offset = "" if self.first_offset is None else f", offset {self.first_offset}"
        return f"{place}{byte}{offset}: {self.what}"

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
        """The fields that do not depend on the time, for commands."""
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


def of_object(
    kind: str,
    tp: TopicIdPartition,
    object_key: str,
    what: str,
    offset: int | None = None,
    byte_position: int | None = None,
    *,
    retriable: bool = False,
) -> Condition:
    """`offset`: an offset in the log. `byte_position`: a position in the object."""
    place = str(tp), tp.topic, tp.partition, offset, None
    return Condition(kind, what, *place, "", None, None, object_key, byte_position, retriable)


Source = Callable[[float], Iterable[Condition]]


class Health:
    """The conditions now. Nothing here blocks, and no decision depends on it.

    `about` says what a condition is about if its `subject` is not exact enough: two topics may
    have had the same name.
    """

    def __init__(self) -> None:
        self._reported: dict[str, dict[Hashable, Condition]] = {}
        self._sources: list[Source] = []

    # --- for the parts ---
    def report(self, condition: Condition, about: Hashable = None, **fields: object) -> None:
        """Logs the condition with `fields` when it begins; `what` may change from call to call."""
        if self.hold(condition, about):
            _log_condition(condition, fields)

    def hold(self, condition: Condition, about: Hashable = None) -> bool:
        """As `report`, but the caller logs it. True: the condition begins."""
        conditions_of_kind = self._reported.setdefault(condition.kind, {})
        about = condition.subject if about is None else about
        before = conditions_of_kind.get(about)
        if condition.since is None:
            since = asyncio.get_running_loop().time() if before is None else before.since
            condition = replace(condition, since=since)
        conditions_of_kind[about] = condition
        return before is None

    def clear(self, kind: str, about: Hashable = "", now: float | None = None) -> bool:
        """The condition is over, at loop time `now` (s). True: it had been reported."""
        over = self._reported.get(kind, {}).pop(about, None)
        if over is not None:
            log.info(f"{kind}_no_more", **_location_fields(over), **_duration_fields(over, now))
        return over is not None

    def forget(self, kind: str, about: Hashable = "") -> None:
        """Clears without a log line: another process took over, or the caller logs it."""
        self._reported.get(kind, {}).pop(about, None)

    def keep(self, kind: str, conditions: Iterable[Condition]) -> None:
        """Replaces all conditions of the kind by these."""
        by_subject = {condition.subject: condition for condition in conditions}
        for gone_subject in self._reported.get(kind, {}).keys() - by_subject.keys():
            self.clear(kind, gone_subject)
        for condition in by_subject.values():
            self.report(condition)

    def watch(self, source: Source) -> None:
        """Adds a source of conditions that is called at each look. It does its own logging."""
        self._sources.append(source)

    # --- for readers ---
    def reported(self, kind: str, about: Hashable = "") -> Condition | None:
        return self._reported.get(kind, {}).get(about)

    def all(self, now: float) -> Iterator[Condition]:
        """Unordered, as there may be very many; `now` is loop time (s)."""
        for conditions_of_kind in self._reported.values():
            yield from conditions_of_kind.values()
        for source in self._sources:
            yield from source(now)

    def conditions(self, now: float) -> tuple[Condition, ...]:
        """The worst first."""
        return worst_first(self.all(now))

    async def run(self) -> None:
        """Updates the gauges, for ever."""
        while True:
            publish_gauges(self.all(asyncio.get_running_loop().time()))
            await asyncio.sleep(_PUBLISH_INTERVAL_S)


def _log_condition(condition: Condition, fields: Mapping[str, object]) -> None:
    write = {Level.ERROR: log.error, Level.WARNING: log.warning}.get(condition.level, log.info)
    write(str(condition.kind), **{**_location_fields(condition), "error": condition.what, **fields})


def _location_fields(condition: Condition) -> dict[str, object]:
    if condition.partition is not None:
        return {"topic": condition.topic, "partition": condition.partition}
    return {condition.meaning.subject: condition.subject} if condition.subject else {}


def _duration_fields(condition: Condition, now: float | None) -> dict[str, object]:
    if condition.since is None:
        return {}
    now = asyncio.get_running_loop().time() if now is None else now
    return {"lasted_s": round(now - condition.since, 1)}


# --- shared by the places that show conditions: pure ---
def in_order(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """By place, then offset, each once; conditions about no partition come first."""
    return tuple(sorted(set(conditions), key=condition_order))


def worst_first(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Each once: by level, conditions that prevent readiness first, then by kind and place."""

    def worst(one: Condition) -> tuple[int, bool, int, _SortKey]:
        severity = _SEVERITY.get(one.kind, len(_SEVERITY))
        return _LEVELS.index(one.level), not one.missing, severity, condition_order(one)

    return tuple(sorted(set(conditions), key=worst))


def condition_order(one: Condition) -> _SortKey:
    partition = -1 if one.partition is None else one.partition
    byte = -1 if one.byte_position is None else one.byte_position
    first = -1 if one.first_offset is None else one.first_offset
    return one.topic or "", partition, one.object_key or "", byte, first, one.kind, one.what


def first_of_each_kind(conditions: Iterable[Condition]) -> list[Condition]:
    by_kind: dict[str, Condition] = {}
    for condition in conditions:
        by_kind.setdefault(condition.kind, condition)
    return list(by_kind.values())


def counts(conditions: Iterable[Condition]) -> Counter[str]:
    """By kind."""
    return Counter(condition.kind for condition in conditions)


def headlines(conditions: Sequence[Condition]) -> tuple[str, ...]:
    """One sentence for each kind on which somebody has to act, and how many more there are."""
    waiting = [condition for condition in conditions if condition.meaning.waits]
    number = counts(waiting)
    return tuple(
        condition.what
        + (f" (and {number[condition.kind] - 1} more)" if number[condition.kind] > 1 else "")
        for condition in first_of_each_kind(waiting)
    )


def missing(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """What the process lacks to be ready; empty: it is ready."""
    return tuple(condition.missing for condition in conditions if condition.missing)


def publish_gauges(conditions: Iterable[Condition]) -> None:
    number: Counter[str] = Counter()
    offsets: Counter[str] = Counter()
    for condition in conditions:
        number[condition.kind] += 1
        offsets[condition.kind] += condition.offsets
    for kind in [*MEANINGS, *(number.keys() - MEANINGS.keys())]:
        CONDITIONS.labels(kind, MEANINGS.get(kind, _NEWER).level).set(number[kind])
        CONDITION_OFFSETS.labels(kind).set(offsets[kind])


def table() -> str:
    """A Markdown table of every kind, the worst first."""
    rows = ["| kind | level | about | meaning | what to do |", "|---|---|---|---|---|"]
    for level in Level:
        rows += [
            f"| `{kind}` | {level} | {of.subject or 'the process'} | {of.means} | {of.remedy} |"
            for kind, of in MEANINGS.items()
            if of.level == level
        ]
    return "\n".join(rows) + "\n"
