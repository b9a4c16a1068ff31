"""The last hours in figures: rates between samples, and never more memory than for six hours."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields, replace

from fetchproxy.console.history import (
    SAMPLE_INTERVAL_MS,
    SAMPLES_MAX,
    History,
    ProcessFigures,
    Sample,
    merged_samples,
    sample_of,
)

FIGURES = ProcessFigures(
    lag_offsets=7, lost_offsets=1, archive_bytes=10**12, connections=3, waiting_fetches=2,
    errors=1, archived_bytes=6_000, tail_bytes=12_000, written_bytes=600, history_bytes=60,
    store_bytes=120, store_retries=3, throttle_seconds=30.0,
)  # fmt: skip


def test_states_are_as_they_are_and_counters_become_rates() -> None:
    zero = ProcessFigures()
    sample = sample_of(FIGURES, (40.0, zero), 100.0, 5)
    assert sample == Sample(5, 7, 1, 10**12, 3, 2, 1, 100.0, 200.0, 10.0, 1.0, 2.0, 3.0, 0.5)
    first = sample_of(FIGURES, None, 100.0, 5)
    assert (first.connections, first.tail_bytes_per_s) == (3, None)
    restarted = sample_of(zero, (40.0, FIGURES), 100.0, 5)
    assert restarted.tail_bytes_per_s == 0, "a counter that falls has begun again"


def test_six_hours_are_kept_and_no_more() -> None:
    clock = iter(range(0, 10 * SAMPLES_MAX * SAMPLE_INTERVAL_MS, SAMPLE_INTERVAL_MS))
    history = History(lambda: next(clock))
    for minute in range(3 * SAMPLES_MAX):
        figures = replace(FIGURES, lag_offsets=10**15 + minute, tail_bytes=10**15 * minute)
        history.add(figures, 60.0 * minute)
    samples = history.samples()
    assert len(samples) == SAMPLES_MAX == 6 * 60
    assert samples[-1].at_ms - samples[0].at_ms == (SAMPLES_MAX - 1) * SAMPLE_INTERVAL_MS
    assert samples[-1].lag_offsets == 10**15 + 3 * SAMPLES_MAX - 1
    values = [getattr(one, field.name) for one in samples for field in fields(Sample)]
    size_bytes = sum(map(sys.getsizeof, samples)) + sum(map(sys.getsizeof, values))
    assert size_bytes < 250_000


def test_samples_of_workers_are_sums_but_those_of_the_archive() -> None:
    def of_worker(*minutes: int) -> list[dict[str, object]]:
        every = [
            sample_of(FIGURES, (0.0, ProcessFigures()), 60.0, 60_000 * minute + 7)
            for minute in minutes
        ]
        return [asdict(one) for one in every]

    merged = merged_samples([of_worker(1, 2), of_worker(2, 3), of_worker(2)])
    assert [one["at_ms"] for one in merged] == [60_007, 120_007, 180_007]
    assert [one["connections"] for one in merged] == [3, 9, 3]
    assert [one["tail_bytes_per_s"] for one in merged] == [200.0, 600.0, 200.0]
    assert [one["lag_offsets"] for one in merged] == [7, 7, 7]
    none = {**merged[0], "throttled_clients": None}
    assert merged_samples([[none], [merged[0]]])[0]["throttled_clients"] == 0.5
    assert len(merged_samples([of_worker(*range(2 * SAMPLES_MAX))])) == SAMPLES_MAX
