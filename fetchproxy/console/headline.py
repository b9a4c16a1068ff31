"""What is wrong, what it means for readers and until when, in an operator's words. Pure.

A condition says what a part has found. The page begins with problems: one for each kind of
condition, the worst first. Each has a short sentence that is understood at first sight, and says
what readers feel. The outlook says when records are lost if nobody acts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fetchproxy.observability.health import Condition, Kind
from fetchproxy.observability.logs import utc_text
from fetchproxy.storage.store_health import StoreOperation

_NOTHING = "Readers notice nothing."
_NOT_YET = "Readers notice nothing yet."
_WAIT = "Readers of these records wait and keep their position. All others continue."
_HISTORY_WAITS = (
    "Readers of archived records wait and keep their position. Readers of new records continue."
)
_ALL_WAIT = "Readers wait and keep their position."
_SKIP = "Readers skip these offsets and continue after them."
# A time that is nearer is told to the minute, a later one in steps: it is an estimate.
_NEAR_S, _STEP_MS, _MINUTE_MS, _DAY_S = 3_600.0, 600_000, 60_000, 86_400.0

# What these say of a process stops its own archiver only.
_STOPS_OWN_ARCHIVER = frozenset((
    Kind.STORE_FAILING, Kind.KEY_SERVICE_FAILING, Kind.ARCHIVE_MISSING, Kind.ARCHIVE_MISMATCH,
    Kind.ARCHIVE_LISTING_FAILING, Kind.CLUSTER_AUTHENTICATION_REFUSED,
))  # fmt: skip


class _Wording(NamedTuple):
    """`says`: what is wrong; `{who}` stands for what the condition is about. `readers`: what they
    feel. `stops`: whether records are not archived while it lasts. `until`: what ends it, or what
    happens at the condition's time (`{at}`) if that is not a loss.
    """

    says: str
    readers: str
    stops: bool = False
    until: str = ""


_WORDS: Mapping[str, _Wording] = {
    Kind.BROKERS_AWAY: _Wording(
        "No broker responds", "No client is served, and nothing is archived.",
        until="Until a broker responds. If only this process cannot reach them, the brokers may "
        "delete unarchived records meanwhile.",
    ),
    Kind.STORE_FAILING: _Wording("The store is failing", _HISTORY_WAITS, stops=True),
    Kind.STORE_THROTTLES: _Wording(
        "The store limits requests", "Reads of archived records are slower."
    ),
    Kind.SEGMENTS_LOCKED: _Wording("The key {who} for encrypted segments is missing", _WAIT),
    Kind.PLAIN_SEGMENTS_REFUSED: _Wording("A segment of {who} is not encrypted", _WAIT),
    Kind.SEGMENTS_NOT_ENCRYPTED: _Wording(
        "A segment of {who} is not encrypted", "Readers get its records, which may be forged."
    ),
    Kind.OBJECT_NOT_READABLE: _Wording("The store does not return an object of {who}", _WAIT),
    Kind.SEGMENT_DAMAGED: _Wording("An archived segment of {who} is damaged", _WAIT),
    Kind.KEY_SERVICE_FAILING: _Wording("The key service returns no keys", _HISTORY_WAITS, True),
    Kind.KEY_RING_UNUSABLE: _Wording("The changed key ring cannot be used", _NOTHING),
    Kind.SEGMENT_METADATA_CHANGED: _Wording("The metadata of {who} was changed", _WAIT),
    Kind.ARCHIVE_MISSING: _Wording("There is no archive at store.url", _HISTORY_WAITS, True),
    Kind.ARCHIVE_MISMATCH: _Wording("The archive belongs to another cluster", _HISTORY_WAITS, True),
    Kind.ARCHIVE_LISTING_FAILING: _Wording("The archive cannot be listed", _HISTORY_WAITS, True),
    Kind.PARTITIONS_UNKNOWN: _Wording("The metadata topic lacks some partitions", _WAIT),
    Kind.CLUSTER_AUTHENTICATION_REFUSED: _Wording(
        "The brokers refuse the proxy's own login",
        "Readers of archived records wait. All others continue. Nothing is archived.",
        stops=True,
    ),
    Kind.ARCHIVER_DISK_FAILING: _Wording("The archiver's disk is full or failing", _NOT_YET, True),
    Kind.ARCHIVER_SILENT: _Wording("An archiver is not running", _NOT_YET, stops=True),
    Kind.PART_FAILED: _Wording("A part of the process failed and is restarted", "See below."),
    Kind.SETTINGS_REFUSED: _Wording("Changed settings cannot be used", _NOTHING),
    Kind.SETTINGS_WAIT: _Wording("Changed settings wait for a restart", _NOTHING),
    Kind.TLS_FILES_UNUSABLE: _Wording("Changed certificates cannot be used", _NOT_YET),
    Kind.TLS_CERTIFICATE_EXPIRES: _Wording(
        "A certificate expires soon", "Clients cannot connect when it has expired.",
        until="The certificate expires at {at}.",
    ),
    Kind.BROKER_AWAY: _Wording(
        "A broker does not respond: {who}", "Readers of its partitions wait for another leader."
    ),
    Kind.MESSAGE_TOO_LARGE: _Wording("A message is too large", "Its client gets an error."),
    Kind.READERS_HELD: _Wording("Readers wait for records that are not archived yet", _WAIT),
    Kind.CLIENTS_WAIT: _Wording(
        "Clients wait too long", "Some logins, lookups by time or key requests wait."
    ),
    Kind.GATEWAY_NOT_LISTENING: _Wording("Clients cannot connect now", "No client is served."),
    Kind.UNARCHIVED_RECORDS_DELETED: _Wording(
        "Records are lost: {who}", _SKIP, stops=True
    ),
    Kind.ARCHIVE_MARGIN_SMALL: _Wording(
        "Time is running out: {who} must be archived soon", _NOT_YET, stops=True
    ),
    Kind.OPEN_TRANSACTION: _Wording(
        "An open transaction blocks {who}",
        "Consumers with read_committed also wait for it.",
        stops=True,
    ),
    Kind.PARTITION_STOPPED: _Wording("Archiving has stopped for {who}", _NOT_YET, stops=True),
    Kind.LOG_DAMAGED: _Wording("The brokers' log is damaged: {who}", _NOT_YET, stops=True),
    Kind.LOCAL_TRIMMING_STOPPED: _Wording("The brokers keep too much of {who}", _NOTHING),
    Kind.TOPIC_DELETION_STOPPED: _Wording("The archive of deleted topics is kept", _NOTHING),
    Kind.REPLACED_SEGMENT_KEPT: _Wording("A replaced segment of {who} is kept", _NOTHING),
    Kind.RETENTION_STEP_ANNOUNCED: _Wording(
        "Retention is about to delete much of {who}",
        "Readers lose the old records.",
        until="It deletes them at {at}.",
    ),
    Kind.RETENTION_CLOCK_DOUBTED: _Wording("Retention is paused: the clock may be wrong", _NOTHING),
    Kind.RETENTION_HELD_UP: _Wording(
        "A record with a future timestamp blocks retention of {who}", _NOTHING
    ),
    Kind.LOCAL_RETENTION_HELD_UP: _Wording(
        "The brokers keep {who} because of a future timestamp", _NOTHING
    ),
    Kind.CLUSTER_STATE_INCOMPLETE: _Wording(
        "The archived state of the cluster is incomplete: rights are missing", _NOTHING
    ),
    Kind.CLUSTER_STATE_OLD: _Wording(
        "The archived state of the cluster is old", "A restored cluster would get old offsets."
    ),
    Kind.LOCAL_RETENTION_REFUSED: _Wording("Local retention does not apply to {who}", _NOTHING),
    Kind.COMPACTED_COPY_LATE: _Wording(
        "A compacted log was not copied in time: {who}",
        "A new cluster would get its last whole copy.",
    ),
    Kind.JOURNAL_NOT_WRITTEN: _Wording(
        "The archiver's journal is not written", "A lost cluster would lose minutes of records."
    ),
    Kind.LOG_BEGINS_AGAIN: _Wording("The log of {who} started over", _NOT_YET, stops=True),
    Kind.PARTITION_FAILING: _Wording("Archiving fails for {who}", _NOT_YET, stops=True),
    Kind.SEGMENT_COPY_STALLED: _Wording(
        "A copy to the store hangs: {who}", _NOT_YET, stops=True,
        until="The copy is given up at {at}, and tried again.",
    ),
    Kind.TOPIC_REFUSED: _Wording(
        "Not archived: {who}", "Readers get only what the brokers still have."
    ),
    Kind.PARTITIONS_NOT_LED: _Wording("No archiver copies some partitions", _NOT_YET, stops=True),
    Kind.TOPIC_LEFT_OUT: _Wording("No longer archived: {who}", _NOT_YET),
    Kind.ARCHIVED_OFFSETS_MISSING: _Wording("Archived records of {who} are gone", _SKIP),
    Kind.SEGMENT_METADATA_UNREADABLE: _Wording("Metadata of {who} cannot be read", _WAIT),
    Kind.ARCHIVE_GAP: _Wording("Records of {who} were lost before they were archived", _SKIP),
    Kind.MIRROR_READ: _Wording(
        "The archive in use is a mirror", "Readers wait for segments that are not copied yet."
    ),
    Kind.ARCHIVED_OFFSETS_NOT_KNOWN: _Wording("Some offsets of {who} are in no segment", _SKIP),
    Kind.SEGMENTS_PUT_ASIDE: _Wording("Old segments of {who} are hidden", _NOTHING),
}  # fmt: skip
_NEWER_WORDS = _Wording("A newer fetchproxy reports: {who}", "See below.")
_STORE_WORDS = {
    StoreOperation.LIST: _Wording("The store cannot be listed", _HISTORY_WAITS),
    StoreOperation.READ: _Wording("The store cannot be read", _HISTORY_WAITS),
    StoreOperation.WRITE: _Wording("The store accepts no writes", _NOT_YET),
    StoreOperation.DELETE: _Wording("The store refuses deletions", _NOTHING),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """All conditions of one kind. `says`: what is wrong. `readers`: what they feel. `until`: what
    happens when, "" if nothing is known. `what` and `remedy` are those of one condition: of the
    first, or the most urgent one. `count`: how many there are. `waits`: a person has to act.
    `since_s`: how long the longest of them has lasted.
    """

    kind: str
    level: str
    says: str
    readers: str
    until: str
    what: str
    remedy: str
    count: int
    waits: bool
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """`says`: whether and when records are lost, "" if nothing threatens them. `lost_in_seconds`: 0
    if they are being lost now; None: not known.
    """

    says: str = ""
    lost_in_seconds: int | None = None


class LeastTimesLeft(NamedTuple):
    """The least time (s) until the brokers delete unarchived records, as far as it is known: of the
    partitions that this process leads, of all others, and of those with a fault.
    """

    led: int | None = None
    elsewhere: int | None = None
    faulty: int | None = None

    def of(self, stopping: Iterable[Condition]) -> list[int]:
        """The times of the partitions that are not archived because of these conditions: a healthy
        partition is archived in time, however little it has.
        """
        times_left: set[int | None] = set()
        for condition in stopping:
            if condition.kind in _STOPS_OWN_ARCHIVER:
                times_left |= {self.led, self.elsewhere}
            else:
                times_left.add(self.elsewhere if condition.partition is None else self.faulty)
        return [seconds for seconds in times_left if seconds is not None]


@dataclass(frozen=True, slots=True)
class Moment:
    """Loop time (s) and epoch time (ms) of the same moment."""

    now: float
    now_ms: int

    def in_words(self, in_s: float) -> str:
        """14:20 UTC (in 2 h 10 min): never later than it is, and the same for some time."""
        step_ms = _MINUTE_MS if in_s < _NEAR_S else _STEP_MS
        utc = utc_text((self.now_ms + round(in_s * 1000)) // step_ms * step_ms)
        return f"{utc if in_s >= _DAY_S else utc[-9:]} (in {_span(in_s)})"


def problems(
    conditions: Iterable[Condition], moment: Moment, *, tail: bool = True
) -> tuple[Problem, ...]:
    """`conditions`: the worst first. Not `tail`: there are no brokers that serve new records."""
    by_kind: dict[str, list[Condition]] = {}
    for condition in conditions:
        by_kind.setdefault(condition.kind, []).append(condition)
    return tuple(_problem(alike, moment, tail) for alike in by_kind.values())


def _problem(alike: Sequence[Condition], moment: Moment, tail: bool) -> Problem:
    kind = alike[0].kind
    words = _WORDS.get(kind, _NEWER_WORDS)
    if kind == Kind.STORE_FAILING:
        words, alike = _store_words(alike)
    first = min(alike, key=lambda one: float("inf") if one.until is None else one.until)
    begin_times = [condition.since for condition in alike if condition.since is not None]
    until = words.until if "{at}" not in words.until else ""
    if first.until is not None and words.until:
        until = words.until.format(at=moment.in_words(first.until - moment.now))
    return Problem(
        kind=kind,
        level=first.level.value,
        says=words.says.format(who=_subject_text(alike)),
        readers=words.readers if tail or words.readers != _HISTORY_WAITS else _ALL_WAIT,
        until=until,
        what=first.what,
        remedy=first.remedy,
        count=len(alike),
        waits=first.meaning.waits,
        since_s=round(moment.now - min(begin_times), 1) if begin_times else None,
    )


def _store_words(alike: Sequence[Condition]) -> tuple[_Wording, Sequence[Condition]]:
    """Deletions that fail matter least: they are told if nothing else fails."""
    matter = [
        condition for condition in alike if condition.subject != StoreOperation.DELETE
    ] or alike
    operations = {condition.subject for condition in matter}
    if len(operations) > 1:
        return _Wording("The store is failing", _HISTORY_WAITS), matter
    operation = StoreOperation(matter[0].subject)
    return _STORE_WORDS[operation], matter


def _subject_text(alike: Sequence[Condition]) -> str:
    """The one that the conditions are about, or how many."""
    partitions = {
        (condition.topic, condition.partition)
        for condition in alike
        if condition.partition is not None
    }
    topics = {condition.topic for condition in alike if condition.topic is not None}
    if len(partitions) > 1:
        in_topics = f" in {len(topics):,} topics" if len(topics) > 1 else f" of {alike[0].topic}"
        return f"{len(partitions):,} partitions{in_topics}"
    if not partitions and len(topics) > 1:
        return f"{len(topics):,} topics"
    subjects = {condition.subject for condition in alike}
    more = f" and {len(subjects) - 1:,} more" if len(subjects) > 1 else ""
    first = alike[0]
    return (first.subject or first.topic or "see below") + more


def outlook(
    conditions: Iterable[Condition], least_times: LeastTimesLeft, moment: Moment, *, archives: bool
) -> Outlook:
    """When records are lost. `archives`: this process is an archiver."""
    stopping = [condition for condition in conditions if _stops_archiving(condition, archives)]
    if not stopping:
        return Outlook()
    says, lost_in_seconds = _loss(stopping, least_times, moment)
    lead = (
        "Nothing is archived now. "
        if any(condition.kind in _STOPS_OWN_ARCHIVER for condition in stopping)
        else ""
    )
    return Outlook(lead + says, lost_in_seconds)


def _loss(
    stopping: Sequence[Condition], least_times: LeastTimesLeft, moment: Moment
) -> tuple[str, int | None]:
    if any(condition.kind == Kind.UNARCHIVED_RECORDS_DELETED for condition in stopping):
        return "Records are being lost: the brokers are deleting unarchived records.", 0
    timed_conditions = [
        condition
        for condition in stopping
        if condition.until is not None and not _WORDS[condition.kind].until
    ]
    times_left = [
        condition.until - moment.now
        for condition in timed_conditions
        if condition.until is not None
    ]
    times_left += least_times.of(stopping)
    if not times_left:
        return "It is not known when the brokers will delete unarchived records.", None
    seconds_left = max(min(times_left), 0.0)
    if seconds_left < _MINUTE_MS / 1000:
        return "Records may be lost at any moment: the brokers may delete them now.", 0
    time_words = moment.in_words(seconds_left)
    return f"If this continues, records are lost from about {time_words} on.", int(seconds_left)


def archiving_stopped_elsewhere(conditions: Iterable[Condition]) -> bool:
    """Whether an archiver does not archive, be it this process or another one."""
    return any(_stops_archiving(condition, archives=False) for condition in conditions)


def _stops_archiving(one: Condition, archives: bool) -> bool:
    """Whether records are not archived because of it."""
    if one.kind == Kind.STORE_FAILING and one.subject == StoreOperation.DELETE:
        return False
    return _WORDS.get(one.kind, _NEWER_WORDS).stops and (
        archives or one.kind not in _STOPS_OWN_ARCHIVER
    )


def _span(seconds: float) -> str:
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
