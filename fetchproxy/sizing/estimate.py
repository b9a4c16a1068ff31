"""From a load to what it needs and costs, when the archive is as old as its retention.

docs/deploy/sizing.js has the same formulas for the browser: change both. A test compares them over
generated loads. All is an average over a day; MB and GB are 10⁶ and 10⁹ bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from fetchproxy.sizing.coefficients import COEFFICIENTS, Coefficients, Prices

DAY_S = 86_400
MONTH_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`readers`: how often the tail is read; a producer through the proxy counts as one more.
    `replay_mb_per_s`: what clients read of the archive, over all readers.
    `ratio`: bytes in the store for each byte of the log, below 1 with `store.compression`.
    `recovery_point_s`: between two objects of a journal; 0: no journal. `state_interval_s`: between
    two states of the cluster; 0: none.
    """

    mb_per_s: float
    partitions: int
    retention_days: float
    readers: float = 1
    replay_mb_per_s: float = 0
    segment_bytes: int = 64 * 1024 * 1024
    segment_age_s: float = 600
    ratio: float = 1
    manager: Literal["store", "topic"] = "store"
    recovery_point_s: float = 0
    state_interval_s: float = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTotals:
    """`log_bytes` is the size of one; `pages` are the requests that list all of a partition."""

    per_partition_day: float
    per_day: float
    kept: float
    log_bytes: float
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """One process takes one core. `…_cores` is what the load keeps busy."""

    proxies: int
    archivers: int
    cores: int
    proxy_cores: float
    archiver_cores: float
    proxy_memory_bytes: float
    archiver_memory_bytes: float
    archiver_spool_bytes: float
    proxies_mb_per_s: float
    archivers_mb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """A day's requests of all processes. A store that charges takes a listing for a write."""

    writes: float
    listings: float
    reads: float
    deletes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A month's, of the store alone."""

    storage: float
    writes_and_listings: float
    reads: float
    egress: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    segments: SegmentTotals
    machines: Machines
    stored_gb: float
    requests_per_day: Requests
    costs_per_month: Costs


def estimate(load: Workload, prices: Prices, coefficients: Coefficients = COEFFICIENTS) -> Estimate:
    segments = _segments(load, coefficients)
    machines = _machines(load, segments, coefficients)
    requests = _requests(load, segments, machines, coefficients)
    stored_gb = load.mb_per_s * DAY_S * load.retention_days * load.ratio / 1000
    stored_gb += _other_objects_gb(load, segments, coefficients)
    return Estimate(
        segments=segments,
        machines=machines,
        stored_gb=stored_gb,
        requests_per_day=requests,
        costs_per_month=_costs(load, stored_gb, requests, prices),
    )


def _other_objects_gb(load: Workload, segments: SegmentTotals, coefficients: Coefficients) -> float:
    """A journal has what no finished segment has, uncompressed. A state has a line a topic."""
    journal_s = DAY_S / segments.per_partition_day if load.recovery_point_s else 0
    states = 0.0
    if load.state_interval_s:
        states = 3600 / load.state_interval_s + coefficients.states_of_hours
    states_bytes = states * load.partitions * coefficients.state_bytes_per_partition
    return load.mb_per_s * journal_s / 1000 + states_bytes / 1e9


def log_writes(stored_bytes: float, coefficients: Coefficients) -> int:
    """The requests that write a log of this size."""
    parts = max(1, ceil(stored_bytes / coefficients.part_bytes))
    return parts + (coefficients.multipart_writes if parts > 1 else 0)


def _segments(load: Workload, coefficients: Coefficients) -> SegmentTotals:
    """A segment is closed when it is full or old, whichever comes first."""
    bytes_per_day = load.mb_per_s * 1e6 * DAY_S / load.partitions
    by_size, by_age = bytes_per_day / load.segment_bytes, DAY_S / load.segment_age_s
    a_day = max(by_size, by_age)
    objects = a_day * load.retention_days * coefficients.objects_per_segment
    return SegmentTotals(
        per_partition_day=a_day,
        per_day=a_day * load.partitions,
        kept=a_day * load.partitions * load.retention_days,
        log_bytes=bytes_per_day / a_day,
        pages=max(1, ceil(objects / coefficients.page_objects)),
    )


def _machines(load: Workload, segments: SegmentTotals, coefficients: Coefficients) -> Machines:
    tail_mb, by_topic = load.mb_per_s * load.readers, load.manager == "topic"
    proxy_cores = tail_mb / 1000 * coefficients.tail_cpu_s_per_gb
    proxy_cores += load.replay_mb_per_s / 1000 * coefficients.replay_cpu_s_per_gb
    archiver_cores = load.mb_per_s / 1000 * coefficients.archiving_cpu_s_per_gb
    proxies, archivers = (
        max(coefficients.processes_min, ceil(cores / coefficients.core_share_max))
        for cores in (proxy_cores, archiver_cores)
    )
    a_segment = (
        coefficients.segment_memory_topic_bytes
        if by_topic
        else coefficients.segment_memory_store_bytes
    )
    # By topic each process knows all segments; from the store an archiver those that it archives,
    # and a proxy those of partitions that are replayed.
    of_archiver = segments.kept if by_topic else segments.kept / archivers
    of_proxy = segments.kept if by_topic or load.replay_mb_per_s > 0 else 0
    return Machines(
        proxies=proxies,
        archivers=archivers,
        cores=proxies + archivers,
        proxy_cores=proxy_cores,
        archiver_cores=archiver_cores,
        proxy_memory_bytes=coefficients.proxy_bytes + of_proxy * a_segment,
        archiver_memory_bytes=coefficients.archiver_bytes + of_archiver * a_segment,
        archiver_spool_bytes=load.partitions / archivers * segments.log_bytes,
        proxies_mb_per_s=tail_mb + load.replay_mb_per_s,
        archivers_mb_per_s=load.mb_per_s,
    )


def _requests(
    load: Workload, segments: SegmentTotals, machines: Machines, coefficients: Coefficients
) -> Requests:
    by_store = load.manager == "store"
    replay_bytes = load.replay_mb_per_s * 1e6 * DAY_S
    replayed = replay_bytes / segments.log_bytes if segments.log_bytes >= 1 else 0
    of_segment = coefficients.segment_writes + log_writes(
        segments.log_bytes * load.ratio, coefficients
    )
    processes = machines.proxies + machines.archivers
    states = DAY_S / load.state_interval_s if load.state_interval_s else 0
    journals, of_journal = _journals(load, machines, coefficients)
    return Requests(
        writes=segments.per_day * (of_segment + coefficients.deletion_writes)
        + machines.archivers * coefficients.archiver_writes
        + journals * of_journal
        + states,
        listings=load.partitions * _listings(load, segments, coefficients)
        + machines.archivers * coefficients.archiver_listings
        + machines.proxies * coefficients.proxy_listings
        + states,
        reads=segments.per_day
        * (coefficients.segment_reads_store + coefficients.deletion_reads_store)
        * by_store
        + segments.per_day * coefficients.segment_owner_reads
        + machines.archivers * coefficients.owner_reads
        + processes * machines.archivers * coefficients.positions_reads
        + replayed * coefficients.segment_reads_by_reader
        + replay_bytes * load.ratio / coefficients.chunk_bytes,
        deletes=segments.per_day * coefficients.deletion_deletes + journals + states,
    )


def _journals(load: Workload, machines: Machines, coefficients: Coefficients) -> tuple[float, int]:
    """A day's objects of all archivers' journals, and the requests that write one."""
    if not load.recovery_point_s:
        return 0, 0
    object_bytes = load.mb_per_s * 1e6 * load.recovery_point_s / machines.archivers
    return machines.archivers * DAY_S / load.recovery_point_s, log_writes(
        object_bytes, coefficients
    )


def _listings(load: Workload, segments: SegmentTotals, coefficients: Coefficients) -> float:
    """A day's requests that list one partition, or its ends."""
    pages = segments.pages
    searches = max(coefficients.orphan_searches_min, coefficients.orphan_pages / pages)
    searches = min(coefficients.orphan_searches, searches)
    if load.manager == "topic":
        return searches * pages
    copies = segments.per_partition_day
    # A copy lists the partition itself, which puts off the next timed listing.
    listings = copies * coefficients.segment_listings_store
    listings += max(coefficients.retention_listings, coefficients.refresh_listings - copies)
    # After a search for orphans the archiver lists everything, too.
    full_listings = searches + max(searches, coefficients.full_listings)
    if segments.kept / load.partitions < coefficients.whole_below_segments:
        replay_listings = coefficients.replay_listings * (load.replay_mb_per_s > 0)
        return (listings + 2 * searches + replay_listings) * pages
    if load.replay_mb_per_s > 0:
        listings, full_listings = (
            listings + coefficients.replay_listings,
            full_listings + coefficients.full_listings,
        )
    return listings * coefficients.ends_listings + full_listings * pages


def _costs(load: Workload, stored_gb: float, requests: Requests, prices: Prices) -> Costs:
    replay_gb = load.replay_mb_per_s * DAY_S * MONTH_DAYS * load.ratio / 1000
    dear = (requests.writes + requests.listings) * MONTH_DAYS / 1000 * prices.per_1000_writes
    reads = requests.reads * MONTH_DAYS / 1000 * prices.per_1000_reads
    storage, egress = stored_gb * prices.gb_month, replay_gb * prices.egress_gb
    return Costs(
        storage=storage,
        writes_and_listings=dear,
        reads=reads,
        egress=egress,
        total=storage + dear + reads + egress,
    )
