"""The formulas: their edges, and what a change of the load may change."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_loads import loads

from fetchproxy.config.schema import PricesConfig
from fetchproxy.sizing.coefficients import COEFFICIENTS, EXAMPLE_PRICES, prices_of
from fetchproxy.sizing.estimate import DAY_S, Workload, estimate, log_writes

MIB = 1024 * 1024
ONE = Workload(mb_per_s=1, partitions=1, retention_days=1)


def test_a_quiet_partition_has_a_segment_each_ten_minutes() -> None:
    segments = estimate(replace(ONE, mb_per_s=0.001), EXAMPLE_PRICES).segments
    assert segments.per_partition_day == 144
    assert segments.log_bytes == pytest.approx(0.001e6 * 600)


def test_a_busy_partition_has_full_segments() -> None:
    segments = estimate(replace(ONE, mb_per_s=10), EXAMPLE_PRICES).segments
    assert segments.log_bytes == pytest.approx(64 * MIB)
    assert segments.per_day == pytest.approx(10e6 * DAY_S / (64 * MIB))


@pytest.mark.parametrize(
    ("size", "writes"),
    [(0, 1), (1, 1), (8 * MIB, 1), (8 * MIB + 1, 4), (64 * MIB, 10), (64 * MIB + 1, 11)],
)
def test_a_log_above_one_part_has_a_beginning_and_an_end(size: int, writes: int) -> None:
    assert log_writes(size, COEFFICIENTS) == writes


def test_a_listing_takes_a_request_for_each_thousand_objects() -> None:
    """A partition with 144 segments a day has 576 objects more each day."""
    quiet = replace(ONE, mb_per_s=0.001)
    pages = [
        estimate(replace(quiet, retention_days=days), EXAMPLE_PRICES).segments.pages
        for days in (0, 1, 2, 365)
    ]
    assert pages == [1, 1, 2, 211]


def test_by_topic_a_partition_is_listed_for_orphans_alone() -> None:
    by_store, by_topic = (
        estimate(replace(ONE, partitions=1000, manager=manager), EXAMPLE_PRICES)
        for manager in ("store", "topic")
    )
    assert by_topic.requests_per_day.listings < 0.15 * by_store.requests_per_day.listings
    assert by_topic.requests_per_day.writes == by_store.requests_per_day.writes


def test_money_is_the_sum_of_its_parts() -> None:
    estimated = estimate(replace(ONE, replay_mb_per_s=1), replace(EXAMPLE_PRICES, egress_gb=0.09))
    costs = asdict(estimated.costs_per_month)
    assert costs.pop("total") == pytest.approx(sum(costs.values()))
    assert costs["egress"] == pytest.approx(86.4 * 30 * 0.09)
    assert costs["storage"] == pytest.approx(86.4 * 0.023, rel=1e-3)  # and some states


@given(loads(), st.sampled_from(["mb_per_s", "retention_days", "readers", "replay_mb_per_s"]))
def test_more_of_a_load_never_costs_less(load: Workload, what: str) -> None:
    if what == "mb_per_s":  # it makes small segments larger, so a replay of them costs less
        load = replace(load, replay_mb_per_s=0)
    more = replace(load, **{what: getattr(load, what) * 1.5 + 1})
    before, after = estimate(load, EXAMPLE_PRICES), estimate(more, EXAMPLE_PRICES)
    assert after.costs_per_month.total >= before.costs_per_month.total * (1 - 1e-9)
    assert after.machines.cores >= before.machines.cores
    assert after.stored_gb >= before.stored_gb


@given(loads())
def test_one_process_of_each_kind_may_be_missing(load: Workload) -> None:
    machines = estimate(load, EXAMPLE_PRICES).machines
    assert machines.proxy_cores < machines.proxies - 1 or machines.proxy_cores <= 1
    assert machines.archiver_cores < machines.archivers - 1 or machines.archiver_cores <= 1


def test_a_journal_costs_an_object_each_interval_and_its_deletion() -> None:
    """2 s and 1 MB/s: objects of one part, of each of two archivers."""
    load = replace(ONE, partitions=10, state_interval_s=0)
    without, with_journal = (
        estimate(replace(load, recovery_point_s=seconds), EXAMPLE_PRICES) for seconds in (0, 2)
    )
    before, after = without.requests_per_day, with_journal.requests_per_day
    assert after.writes - before.writes == pytest.approx(2 * DAY_S / 2)
    assert after.deletes - before.deletes == pytest.approx(2 * DAY_S / 2)
    assert (after.listings, after.reads) == (before.listings, before.reads)
    assert with_journal.stored_gb - without.stored_gb == pytest.approx(0.6)  # of ten minutes


def test_large_objects_of_a_journal_are_written_in_parts() -> None:
    load = replace(ONE, mb_per_s=20, state_interval_s=0)
    without, with_journal = (
        estimate(replace(load, recovery_point_s=seconds), EXAMPLE_PRICES) for seconds in (0, 2)
    )
    more = with_journal.requests_per_day.writes - without.requests_per_day.writes
    assert more == pytest.approx(2 * DAY_S / 2 * log_writes(20_000_000, COEFFICIENTS))


def test_each_state_is_a_listing_a_write_and_a_deletion() -> None:
    without, with_states = (
        estimate(replace(ONE, state_interval_s=seconds), EXAMPLE_PRICES) for seconds in (0, 60)
    )
    before, after = without.requests_per_day, with_states.requests_per_day
    for kind in ("writes", "listings", "deletes"):
        assert getattr(after, kind) - getattr(before, kind) == pytest.approx(1440), kind


def test_prices_are_those_of_the_configuration() -> None:
    config = PricesConfig(put_usd_per_1000=1.0, get_usd_per_1000=2.0, storage_usd_per_gb_month=0.5)
    prices = prices_of(config)
    assert (prices.per_1000_writes, prices.per_1000_reads) == (1.0, 2.0)
    assert (prices.gb_month, prices.egress_gb) == (0.5, 0.0)
    assert prices_of(PricesConfig()) == EXAMPLE_PRICES


def test_next_to_nothing_costs_a_finite_amount() -> None:
    estimated = estimate(replace(ONE, mb_per_s=5e-324, replay_mb_per_s=1), EXAMPLE_PRICES)
    assert isfinite(estimated.costs_per_month.total)
