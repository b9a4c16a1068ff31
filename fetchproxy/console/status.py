"""What the console shows, as plain values, and the one thing it asks of its surroundings.

The console renders a `Status`; who gathers it (`fetchproxy.console.collect` in the product, a
function in a test) is none of its business. Field names are the JSON names of `/api/status`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fetchproxy.cluster.broker_watch import BrokersStatus
from fetchproxy.remote_log.concerns import Finding


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `first` to `last`, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """`archived` are ranges without a hole, `gaps` the holes: what each is `Status.concerns` says.

    What is not known is None, never 0.

    `lag_offsets`: on the brokers below the last stable offset, and not archived yet.
    `margin_offsets`: archive end minus the broker's log start; below 0, the brokers have deleted
    what is not archived. `role` in this
    process: leader or follower, None where it archives nothing of it. `copy_seconds`: since when a
    copy is under way. `retention_used`: the share of the brokers' retention that the oldest record
    that is not archived has used up. `deleted_in_seconds`: when the brokers begin to delete what is
    not archived, as things go; None: not under way, or not known.
    """

    topic: str
    partition: int
    archived: tuple[OffsetRange, ...] = ()
    gaps: tuple[OffsetRange, ...] = ()
    segments: int = 0
    size_bytes: int = 0
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    lag_offsets: int | None = None
    margin_offsets: int | None = None
    role: str | None = None
    copy_seconds: float | None = None
    retention_used: float | None = None
    deleted_in_seconds: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """All partitions of a topic. `faulty`: with an error, a concern or a loss. `lag_offsets` and
    `size_bytes` are sums, `deleted_in_seconds` is the least."""

    topic: str
    partitions: int = 0
    faulty: int = 0
    lag_offsets: int = 0
    size_bytes: int = 0
    deleted_in_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ArchiverStatus:
    """How this archiver stands to others (`leadership`: sole, group or log-dirs), and topics that
    match and are not archived, with the reason. `members` is None where nobody has said."""

    leadership: str
    state: str
    leads: int
    follows: int
    members: int | None = None
    error: str | None = None
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """`up` is None before the first answer."""

    up: bool | None
    failing_seconds: float = 0.0
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """`up` is None before the first answer, and False while any of `operations` fails: list, read,
    write, delete. The other two are of what has been failing for longest."""

    url: str
    up: bool | None
    failing_seconds: float = 0.0
    last_error: str | None = None
    operations: dict[str, OperationStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemoteReadsStatus:
    """`waiting` are fetches in the RemoteFetchPurgatory; counts are since the start.

    `held_partitions` have a reader now that waits for the archiver. `led_on` are answers that led a
    reader behind lost offsets, `offsets_skipped` those offsets.
    """

    in_flight: int = 0
    queued: int = 0
    waiting: int = 0
    read_bytes: int = 0
    backoffs: int = 0
    catches: int = 0
    held_stale: int = 0
    passed_on: int = 0
    held_partitions: int = 0
    led_on: int = 0
    offsets_skipped: int = 0
    corrupt_chunks: int = 0


@dataclass(frozen=True, slots=True)
class CacheStatus:
    bytes: int = 0
    bytes_max: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class RelayStatus:
    connections: int = 0
    connections_max: int = 0
    to_broker_bytes: int = 0
    to_client_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """`count` alike events in a row are one line; `at` is the last one's time, ISO 8601, UTC."""

    at: str
    level: str
    event: str
    count: int
    details: dict[str, str]


@dataclass(frozen=True, slots=True)
class Status:
    """`missing` names what stands between this process and readiness; empty: ready.

    `cluster_refusal` is what the brokers said of the proxy's own credentials; None: nothing bad.
    `archiver` is None where this process does not archive. `concerns`: what there is to see to, or
    to know, of the partitions asked for; `headlines`: of all those that wait for a person,
    one sentence a kind, and of readers that wait. `partitions`: as asked for, those with a fault
    first, then by topic and partition; `topics` and the totals are of all that there are.
    """

    version: str
    mode: str
    bootstrap: str
    uptime_seconds: float
    missing: tuple[str, ...]
    listeners: tuple[str, ...]
    store: StoreStatus
    relay: RelayStatus
    remote_reads: RemoteReadsStatus
    cache: CacheStatus
    partitions: tuple[PartitionStatus, ...]
    events: tuple[Event, ...]
    brokers: BrokersStatus = field(default_factory=BrokersStatus)
    cluster_refusal: str | None = None
    archiver: ArchiverStatus | None = None
    headlines: tuple[str, ...] = ()
    concerns: tuple[Finding, ...] = ()
    topics: tuple[TopicStatus, ...] = ()
    partitions_total: int = 0
    partitions_matching: int = 0
    concerns_total: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """Of the partitions with `name_part` in their name, `rows_max` at most, None: all of them."""

    rows_max: int | None = None
    name_part: str = ""


NO_PARTITIONS = Asked(rows_max=0)

# Called on the loop for every request, so it must wait for nobody, and take short turns alone.
StatusSource = Callable[[Asked], Awaitable[Status]]
