"""The health of the store, separately for listings, reads, writes and deletions."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import (
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar
from uuid import UUID

from fetchproxy.errors import (
    DamagedObject,
    ObjectNotFound,
    ObjectNotReadable,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageThrottled,
)
from fetchproxy.model import (
    AnySegment,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition, Health, Kind, of_partition
from fetchproxy.observability.metrics import (
    STORE_FAILING_SECONDS,
    STORE_REQUEST_ERRORS,
    STORE_REQUEST_SECONDS,
    STORE_REQUESTS_PER_S_MAX,
    STORE_UP,
)
from fetchproxy.observability.tracing import span
from fetchproxy.runtime.retrying import RESTART_PAUSE_MAX_S
from fetchproxy.segments.object_keys import SegmentFile

# Labels that dashboards know, for methods that are called otherwise.
_LABELS = {
    "put_conditions": "put_concern",
    "get_conditions": "get_concern",
    "delete_conditions": "delete_concern",
    "list_published_conditions": "list_concerns",
    "forget_published_conditions": "forget_concerns",
}
P = ParamSpec("P")
T = TypeVar("T")
# Only the metrics show shorter failures, such as one throttled request.
REPORTED_AFTER_S = 1.0
# Any working store answers small objects, ranges and listings faster. The console looks every 5 s,
# so it names a silent store within 15 s.
SILENT_AFTER_S = 8.0
_LOOK_INTERVAL_S = 1.0
# A store that refuses a lower rate has another problem; fewer requests would only delay readers.
PER_S_MIN = 50.0
GROWTH_PER_S = 1.1
OBJECT_FORGOTTEN_AFTER_S = 60.0
# The store refuses concurrent requests together: this counts as one refusal.
_SAME_REFUSAL_S = 1.0
# A few refusals, or a small share, are no limit of the store: the requests are sent again. Of 25
# requests in two seconds and 2 % refused, the chance of as many refusals is below 10⁻⁷.
REFUSED_MIN = 8
REFUSED_SHARE_MIN = 0.2
# Locked segments that are counted, for each key.
LOCKED_MAX = 10_000
# A locked segment that nobody has tried to read for this long is forgotten: it may be deleted.
LOCKED_FORGOTTEN_S = 600.0
# A reader that waits for an object asks for it again every minute. If none has for this long, none
# waits, and nobody would notice that the object can be read again.
REFUSED_FORGOTTEN_AFTER_S = 600.0
# Objects of one partition that are remembered. A reader asks for a few at a time; a job that meets
# more names each of them itself.
REFUSED_OF_PARTITION_MAX = 100


def measured(operation: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Time an operation of the remote storage and count its errors, under its name.

    A cancelled operation is timed, but not counted as an error.
    """
    label = _LABELS.get(operation.__name__, operation.__name__)

    @wraps(operation)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        clock = asyncio.get_running_loop().time
        begun_at = clock()
        try:
            return await operation(*args, **kwargs)
        except RemoteStorageError as error:
            STORE_REQUEST_ERRORS.labels(label, type(error).__name__).inc()
            raise
        finally:
            # Not before: series of operations that a process never does were half of a scrape.
            STORE_REQUEST_SECONDS.labels(label).observe(clock() - begun_at)

    return run


# The four operations fail separately: a full or read-only bucket can still be read, and a key that
# may not delete can still write. "Failing" means that no request of the kind has succeeded since
# the first failed request began. The response "no such object" is a success. A request without an
# answer fails after SILENT_AFTER_S. The callers pass loop times (s).


# S3 answers `503 SlowDown` above some thousand requests per second and prefix, Cloud Storage 429,
# Azure `503 ServerBusy`. The process then sends at most half as many as in the second before. This
# limit grows by a tenth each second, and ends when the store has refused nothing for a minute.


class RequestBudget:
    """Limits the requests of one kind to a store that refuses many of them as too many. Pure. Times
    are loop times (s) and never decrease.
    """

    def __init__(self) -> None:
        self._second, self._in_second, self._before = 0, 0, 0
        # What was refused in this second, and in the one before.
        self._refused: set[Hashable] = set()
        self._refused_before: set[Hashable] = set()
        self._per_s: float | None = None  # the limit at `refused_at`
        self.refused_at = 0.0  # the last refusal
        self._next_at = 0.0

    def per_s(self, now: float) -> float | None:
        if self._per_s is None or now - self.refused_at >= OBJECT_FORGOTTEN_AFTER_S:
            return None
        return float(self._per_s * GROWTH_PER_S ** (now - self.refused_at))

    def wait_s(self, now: float) -> float:
        """Seconds until the next request may begin."""
        return 0.0 if self.per_s(now) is None else max(self._next_at - now, 0.0)

    def begins(self, now: float) -> None:
        self._count_until(now)
        self._in_second += 1
        per_s = self.per_s(now)
        if per_s is not None:
            self._next_at = max(self._next_at, now) + 1 / per_s

    def refused(self, now: float, name: Hashable) -> None:
        """`name`: what was refused. The same name counts once: it may have a limit of its own."""
        self._count_until(now)
        self._refused.add(name)
        limit = self.per_s(now)
        if limit is not None and now - self.refused_at < _SAME_REFUSAL_S:
            return
        refused = len(self._refused | self._refused_before)
        share = 0.0 if limit is not None else REFUSED_SHARE_MIN
        if refused < max(REFUSED_MIN, share * (self._before + self._in_second)):
            return
        requests = max(self._before, self._in_second)
        self._per_s = max(min(requests, limit or requests) / 2, PER_S_MIN)
        self.refused_at = now
        self._refused, self._refused_before = set(), set()

    def _count_until(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            follows = second == self._second + 1
            self._before = self._in_second if follows else 0
            self._refused_before = self._refused if follows else set()
            self._second, self._in_second, self._refused = second, 0, set()


class StoreOperation(StrEnum):
    """The values are the names in the log, the metrics' labels and `/api/status`."""

    LIST = "list"
    READ = "read"
    WRITE = "write"
    DELETE = "delete"

    @property
    def requests(self) -> str:
        return {"list": "listings", "delete": "deletions"}.get(self.value, f"{self.value}s")


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """`up` is None before the first response. `last_error` is kept after recovery."""

    up: bool | None
    failing_for_s: float
    last_error: str | None


class OperationHealth:
    def __init__(self, operation: StoreOperation, health: Health | None = None) -> None:
        self.operation = operation
        self._health = health or Health()
        self._waiting: dict[object, float] = {}  # unanswered requests: start times, oldest first
        self.failing_since: float | None = None
        self.last_failure_at = float("-inf")
        self._last_success_at = float("-inf")
        self._last_error: str | None = None
        self._budget = RequestBudget()
        self._turns = asyncio.Lock()
        self._recovery: asyncio.TimerHandle | None = None  # when no request has crashed for a while

    def succeeded(self, now: float) -> None:
        self._last_success_at = now
        if self.failing_since is not None:
            self.failing_since = None
            self._health.clear(Kind.STORE_FAILING, self.operation.value, now)
            STORE_UP.labels(self.operation).set(1)
            STORE_FAILING_SECONDS.labels(self.operation).set(0)

    def failed(self, now: float, began_at: float, error: Exception) -> None:
        """The outage counts from the start of the failed request, because a hanging store shows no
        error before the time-out; but never from before the last success.
        """
        self.last_failure_at = now
        self._note(now, began_at, f"{type(error).__name__}: {error}")

    def crashed(self, error: Exception) -> None:
        """A request ended by a fault of fetchproxy itself, which says nothing about the store."""
        if self._recovery is not None:
            self._recovery.cancel()
        part = f"{self.operation.requests} of the store"
        message = f'the part "{part}" fails: {error!r}; what failed is tried again'
        self._health.hold(Condition(Kind.PART_FAILED, message, part))
        loop = asyncio.get_running_loop()
        self._recovery = loop.call_later(
            RESTART_PAUSE_MAX_S, self._health.clear, Kind.PART_FAILED, part
        )

    def look(self, now: float) -> None:
        """Find requests that are silent for too long, and update the shown state and times."""
        oldest = next(iter(self._waiting.values()), now)
        if now - oldest >= SILENT_AFTER_S:
            if self._last_success_at < oldest:
                self._note(now, oldest, f"no response for {int(now - oldest)} s")
        elif self.failing_since is not None:
            self._note(now, self.failing_since, self._last_error or "")
        self._look_at_budget(now)

    def _look_at_budget(self, now: float) -> None:
        per_s = self._budget.per_s(now)
        STORE_REQUESTS_PER_S_MAX.labels(self.operation).set(per_s or 0)
        kind, name = Kind.STORE_THROTTLES, self.operation.value
        if per_s is None:
            self._health.clear(kind, name, now)
            return
        message = (
            f"The store refuses {self.operation.requests} as too many: fetchproxy sends "
            f"at most {per_s:.0f} a second, and slowly increases that"
        )
        self._health.report(Condition(kind, message, name, since=self._budget.refused_at))

    def failing_for_s(self, now: float) -> float:
        return 0.0 if self.failing_since is None else now - self.failing_since

    def status(self, now: float) -> OperationStatus:
        was_used = self.failing_since is not None or self._last_success_at > float("-inf")
        up = self.failing_since is None if was_used else None
        return OperationStatus(up, self.failing_for_s(now), self._last_error)

    def _note(self, now: float, began_at: float, error: str) -> None:
        self._last_error = error
        if self.failing_since is None:
            self.failing_since = max(began_at, self._last_success_at)
            STORE_UP.labels(self.operation).set(0)
        if now - self.failing_since >= REPORTED_AFTER_S:
            message = f"The store's {self.operation.requests} have been failing: {error}"
            name, since = self.operation.value, self.failing_since
            self._health.report(
                Condition(Kind.STORE_FAILING, message, name, since=since), error=error
            )
        STORE_FAILING_SECONDS.labels(self.operation).set(now - self.failing_since)

    @asynccontextmanager
    async def watch_request(
        self, *, key: str = "", may_take_long: bool = False, attempt_times: Sequence[float] = ()
    ) -> AsyncIterator[Callable[[], None]]:
        """Watch one request, with all its tries; each of them begins with `turn`. The caller may
        call the given function to report a response before the request ends. `may_take_long`: long
        silence is not a failure. `attempt_times`: loop times at which they begin; an outage counts
        from the last one, so that an error that passes is none.
        """
        loop = asyncio.get_running_loop()
        await self.turn()
        request, began_at = object(), loop.time()
        if not may_take_long:
            self._waiting[request] = began_at

        def responded() -> None:
            if self._waiting.pop(request, None) is not None:
                self.succeeded(loop.time())

        try:
            with span(f"store {self.operation}", key=key):
                yield responded
        except (ObjectNotFound, RangeNotSatisfiable, DamagedObject):
            self.succeeded(loop.time())
            raise
        except RemoteStorageError as error:
            self.failed(loop.time(), attempt_times[-1] if attempt_times else began_at, error)
            raise
        else:
            self.succeeded(loop.time())
        finally:
            self._waiting.pop(request, None)

    async def turn(self) -> None:
        """Wait for a turn, if the store refuses many requests."""
        clock = asyncio.get_running_loop().time
        if self._budget.wait_s(clock()):
            async with self._turns:  # first come, first served
                await asyncio.sleep(self._budget.wait_s(clock()))
        self._budget.begins(clock())

    def refused(self, error: RemoteStorageError, name: Hashable = None) -> None:
        """A try has failed. `name`: the object, if the store may limit it alone."""
        if isinstance(error, StorageThrottled):
            now = asyncio.get_running_loop().time()
            self._budget.refused(now, object() if name is None else name)


@dataclass(frozen=True, slots=True)
class _Refused:
    """`at`: loop time (s) of the last try."""

    segment: AnySegment
    why: str
    at: float


class Refusals:
    """What cannot be read of segments: one condition for each partition, until it can be read. What
    is forgotten is found again by its next reader.
    """

    def __init__(self, health: Health, kind: Kind, message: str) -> None:
        self._health, self._kind, self._what = health, kind, message
        # By partition, each place's last refusal, oldest first. A place is an object or a part.
        self._of: dict[TopicIdPartition, dict[Hashable, _Refused]] = {}

    def add(self, segment: AnySegment, place: Hashable, why: str) -> None:
        partition = segment.segment_id.topic_id_partition
        refused = self._of.setdefault(partition, {})
        before = refused.pop(place, None)
        refused[place] = _Refused(segment, why, asyncio.get_running_loop().time())
        if before is not None and before.why == why:
            return  # it is reported, and each read comes here
        if len(refused) > REFUSED_OF_PARTITION_MAX:
            del refused[next(iter(refused))]
        self._report(partition)

    def readable(self, segment: AnySegment, chunk_key: Hashable) -> None:
        partition = segment.segment_id.topic_id_partition
        if chunk_key in self._of.get(partition, ()):
            del self._of[partition][chunk_key]
            self._report(partition)

    def forget(self, segment: AnySegment) -> None:
        partition = segment.segment_id.topic_id_partition
        self._keep(partition, lambda one: one.segment.segment_id != segment.segment_id)

    def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        for partition in [partition for partition in self._of if is_gone(partition.topic_id)]:
            del self._of[partition]
            self._health.forget(self._kind, partition)

    def look(self, now: float) -> None:
        """Forget what no reader has asked for lately."""
        oldest = now - REFUSED_FORGOTTEN_AFTER_S
        for partition in list(self._of):
            self._keep(partition, lambda one: one.at > oldest)

    def _keep(self, partition: TopicIdPartition, stays: Callable[[_Refused], bool]) -> None:
        refused = self._of.get(partition, {})
        staying = {place: one for place, one in refused.items() if stays(one)}
        if len(staying) < len(refused):
            self._of[partition] = staying
            self._report(partition)

    def _report(self, partition: TopicIdPartition) -> None:
        refused = self._of[partition].values()
        if not refused:
            del self._of[partition]
            self._health.clear(self._kind, partition)
            return
        first = min(refused, key=lambda one: one.segment.start_offset)
        segments = {read.segment.segment_id for read in refused}
        more = f" (and {len(segments) - 1} more segments)" if len(segments) > 1 else ""
        offsets = None
        if isinstance(first.segment, RemoteLogSegmentMetadata):
            offsets = first.segment.start_offset, first.segment.end_offset
        message = f"{self._what}: {first.why}{more}"
        self._health.report(of_partition(self._kind, partition, message, offsets), partition)


class WatchedKeys(Protocol):
    """A key ring with a health of its own, which `run` keeps current."""

    health: Health

    async def run(self) -> None: ...


class StoreHealth:
    """The health of one store. `run` keeps it current, even without requests to the store."""

    def __init__(self) -> None:
        self._health = Health()
        self._of = {
            operation: OperationHealth(operation, self._health) for operation in StoreOperation
        }
        self._changed: dict[TopicIdPartition, UUID] = {}  # the reported segment
        # By key: segments that it does not open, with the loop time of the last try, oldest first.
        self._locked: dict[str, dict[UUID, float]] = {}
        self._keys: WatchedKeys | None = None
        self._refused = Refusals(
            self._health, Kind.OBJECT_NOT_READABLE, "The store does not return an object"
        )
        # What was read and is wrong, or missing: who reads it says so.
        self.damaged = Refusals(
            self._health, Kind.SEGMENT_DAMAGED, "A segment is damaged or not complete"
        )
        # Segments that are not encrypted, by whether they are refused.
        self._plain = {
            False: Refusals(
                self._health,
                Kind.SEGMENTS_NOT_ENCRYPTED,
                "A segment is not encrypted, unlike new ones",
            ),
            True: Refusals(
                self._health, Kind.PLAIN_SEGMENTS_REFUSED, "A segment is refused as not encrypted"
            ),
        }
        self._refusals = self._refused, self.damaged, *self._plain.values()

    def __getitem__(self, operation: StoreOperation) -> OperationHealth:
        return self._of[operation]

    def status(self, now: float) -> dict[StoreOperation, OperationStatus]:
        return {operation: health.status(now) for operation, health in self._of.items()}

    def conditions(self, now: float) -> Iterable[Condition]:
        """Failing and throttled operations; segments that are locked, were changed, are damaged, or
        are not given out.
        """
        return self._health.all(now)

    def watch_keys(self, keys: WatchedKeys) -> None:
        """The conditions of a key ring, which `run` keeps current too."""
        self._keys = keys
        self._health.watch(keys.health.all)

    def locked(self, segment_id: UUID, key_id: str, why: str | None) -> None:
        """`why`: the reason why this segment cannot be decrypted; None: it can. Another segment of
        the same key says nothing about this one.
        """
        locked = self._locked.setdefault(key_id, {})
        locked.pop(segment_id, None)
        if why is not None:
            locked[segment_id] = asyncio.get_running_loop().time()
            if len(locked) > LOCKED_MAX:
                del locked[next(iter(locked))]
            self._say_locked(key_id, why)
        elif not locked:
            del self._locked[key_id]
            self._health.clear(Kind.SEGMENTS_LOCKED, key_id)

    def _say_locked(self, key_id: str, why: str) -> None:
        count = len(self._locked[key_id])
        subject = "An encrypted segment" if count == 1 else f"{count} encrypted segments"
        message = f"{subject} cannot be read: {why}"
        self._health.report(Condition(Kind.SEGMENTS_LOCKED, message, key_id))

    def plain(self, segment: AnySegment, object_key: str, *, refused: bool) -> None:
        """It is not encrypted, as it should be: a condition until this segment is opened with a
        key, or deleted. `refused`: nobody gets its records.
        """
        self._plain[refused].add(segment, segment.segment_id.id, object_key)

    def encrypted(self, segment: AnySegment) -> None:
        for refusals in self._plain.values():
            refusals.readable(segment, segment.segment_id.id)

    def changed(self, segment: AnySegment, message: str | None) -> None:
        """`message`: how the segment's metadata differs from the metadata it was encrypted with;
        None: they are the same. Only one segment of each partition is reported.
        """
        tp, segment_id = segment.segment_id.topic_id_partition, segment.segment_id.id
        if message is not None:
            self._changed.setdefault(tp, segment_id)
        if self._changed.get(tp) != segment_id:
            return
        if message is None:
            del self._changed[tp]
            self._health.clear(Kind.SEGMENT_METADATA_CHANGED, tp)
        else:
            self._health.report(of_partition(Kind.SEGMENT_METADATA_CHANGED, tp, message), tp)

    @contextmanager
    def reading(self, segment: AnySegment, file: SegmentFile = SegmentFile.LOG) -> Iterator[None]:
        """Around a read of one of the segment's objects: if the store does not give this object
        out, that is a condition of its partition until it does.
        """
        chunk_key = segment.segment_id.id, file
        try:
            yield
        except ObjectNotReadable as error:
            self._refused.add(segment, chunk_key, str(error))
            raise
        self._refused.readable(segment, chunk_key)

    def forget(self, segment: AnySegment) -> None:
        """The segment was deleted."""
        for key_id in list(self._locked):
            self.locked(segment.segment_id.id, key_id, None)
        for refusals in self._refusals:
            refusals.forget(segment)

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        """Nobody reads what is left of a topic, so no read ends its conditions."""
        for tp in [tp for tp in self._changed if is_gone(tp.topic_id)]:
            del self._changed[tp]
            self._health.forget(Kind.SEGMENT_METADATA_CHANGED, tp)
        for refusals in self._refusals:
            refusals.forget_topics(is_gone)

    def look(self, now: float) -> None:
        for health in self._of.values():
            health.look(now)
        for refusals in self._refusals:
            refusals.look(now)
        for key_id, locked in list(self._locked.items()):
            for segment_id in [
                id_ for id_, since in locked.items() if now - since > LOCKED_FORGOTTEN_S
            ]:
                self.locked(segment_id, key_id, None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._keys is not None:
                tasks.create_task(self._keys.run(), name="key ring")
            while True:
                self.look(asyncio.get_running_loop().time())
                await asyncio.sleep(_LOOK_INTERVAL_S)
