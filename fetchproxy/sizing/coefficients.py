"""What one unit of work takes, and what a store costs: plain numbers, which the site's calculator
has too.

Tests compare each with its source: a row of benchmarks/results, a constant of the code, or the
requests that a real S3 server has counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.config.schema import PricesConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    # Seconds of one core for a GB, measured.
    tail_cpu_s_per_gb: float = 0.49
    replay_cpu_s_per_gb: float = 1.11
    archiving_cpu_s_per_gb: float = 2.94
    # Above half of a core, records of the tail begin to wait for each other.
    core_share_max: float = 0.5
    # Two of each, so that one may be missing.
    processes_min: int = 2

    # The limits of a process with default settings, and what it keeps of each segment besides.
    proxy_bytes: int = 1_970_000_000
    archiver_bytes: int = 2_172_000_000
    segment_memory_store_bytes: int = 1_000
    segment_memory_topic_bytes: int = 89

    # A segment's requests. `.metadata` twice, `.index`, `.epochs` and `finished-offsets`; then the
    # log, in one write or as parts between a beginning and an end.
    segment_writes: int = 5
    part_bytes: int = 8 * 1024 * 1024
    multipart_writes: int = 2
    segment_listings_store: int = 2
    segment_reads_store: int = 0  # the response to a write names the object's version
    # Its end, by retention: the log start and `.metadata` are written, the archiver reads it again
    # (store), and each object that it may have goes.
    deletion_writes: int = 2
    deletion_reads_store: int = 1
    deletion_deletes: int = 8
    # Whose archive it is, before each write of `.metadata` and the deletion of the other objects.
    segment_owner_reads: int = 4
    # A reader: the index, the metadata (store), and the log in chunks.
    segment_reads_by_reader: int = 2
    chunk_bytes: int = 4 * 1024 * 1024

    # `.log`, `.index`, `.epochs`, `.metadata`. A listing is one request for each page of objects.
    objects_per_segment: int = 4
    page_objects: int = 1_000

    # A state of the cluster that has changed: one listing, one write, and one deletion later. The
    # archive keeps all of an hour, and one of each hour of a week.
    state_bytes_per_partition: int = 120
    states_of_hours: int = 168

    # Once a day, whatever the load.
    archiver_writes: int = 86_400
    archiver_listings: int = 38_880
    proxy_listings: int = 50_400
    positions_reads: int = 28_800
    owner_reads: int = 43_200
    # How often a day a partition is listed: by its archiver (to refresh the view, and for
    # retention), and by a proxy whose clients replay it.
    refresh_listings: int = 1_440
    retention_listings: int = 288
    replay_listings: int = 2_880
    # Of a long partition only the two ends are listed, and a few times a day everything.
    whole_below_segments: int = 500
    ends_listings: int = 2
    full_listings: int = 4
    # Searches for orphans a day list everything: fewer if that takes many pages, but one.
    orphan_searches: int = 24
    orphan_pages: int = 768
    orphan_searches_min: int = 1


COEFFICIENTS = Coefficients()


# A store's prices in US dollars: those of the configuration (`[prices]`), or an example.


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    name: str
    per_1000_writes: float
    per_1000_reads: float
    gb_month: float
    egress_gb: float


EXAMPLE_PRICES = Prices(
    name="an example: Amazon S3 Standard, US East, public list of April 2024, in dollars",
    per_1000_writes=0.005,
    per_1000_reads=0.0004,
    gb_month=0.023,
    egress_gb=0.0,  # within a region
)


def prices_of(config: PricesConfig) -> Prices:
    """The example if the configuration has no price."""
    if config == PricesConfig():
        return EXAMPLE_PRICES
    return Prices(
        name="those of the configuration, in dollars",
        per_1000_writes=config.put_usd_per_1000,
        per_1000_reads=config.get_usd_per_1000,
        gb_month=config.storage_usd_per_gb_month,
        egress_gb=config.egress_usd_per_gb,
    )
