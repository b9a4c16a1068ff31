"""What the soak calls flat, bounded and too short: each goal can be missed, and is by a leak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.report import Row
from benchmarks.soak import conclusion
from benchmarks.soak_traffic import Check, Outcome, value_of
from benchmarks.soak_verdict import (
    Disturbance,
    ProcessLife,
    Sample,
    Soaked,
    Verdict,
    flat,
    judge,
    quarter,
)

LONG_S = 1_800
OUTAGE = Disturbance("an outage", 900.0, 1_000.0)


def steady(value: float, seconds: int = LONG_S) -> list[Sample]:
    """Sampled every 5 s, with some noise that repeats."""
    return [Sample(at, value + (at // 5) % 3) for at in range(0, seconds + 1, 5)]


def life(mib: list[Sample], files: list[Sample]) -> ProcessLife:
    return ProcessLife("proxy", mib, files)


def sound(seconds: int = LONG_S) -> Soaked:
    lives = [life(steady(120.0, seconds), steady(40.0, seconds))]
    return Soaked(lives, steady(9.0, seconds), steady(300.0, seconds), (), verify_clean=True)


def judged(soaked: Soaked) -> Verdict:
    return judge(soaked, lag_s_max=30.0, recovery_s_max=60.0)


def row_of(verdict: Verdict, name: str) -> Row:
    [matching_row] = [each for each in verdict.rows if each.name.startswith(name)]
    return matching_row


def test_a_sound_soak_passes() -> None:
    verdict = judged(sound())
    assert verdict.passed
    assert verdict.unjudged == []
    assert all(each.met for each in verdict.rows)
    assert conclusion(verdict) == "passed"


def test_quarters_are_of_the_time_and_not_of_the_samples() -> None:
    series = [Sample(at, at) for at in (100, 101, 102, 103, 140, 160, 199, 200)]
    assert quarter(series, 1) == [100, 101, 102, 103]
    assert quarter(series, 2) == [140]
    assert quarter(series, 4) == [199, 200]
    assert quarter([], 2) == []


def test_a_leak_is_no_warm_up() -> None:
    # 60 MiB in the first quarter are caches that fill; 1 MiB a minute ever after is a leak.
    filling = [Sample(at, 60 + 60 * min(1, at / 400)) for at in range(0, LONG_S + 1, 5)]
    leaking = [Sample(at, 120 + at / 60) for at in range(0, LONG_S + 1, 5)]
    assert flat("memory", "MiB", filling, 12.0).met is True
    assert flat("memory", "MiB", leaking, 12.0).met is False
    verdict = judged(replace(sound(), lives=[life(leaking, steady(40.0))]))
    assert not verdict.passed
    assert verdict.reasons[0].startswith("memory, proxy: 14")
    assert conclusion(verdict).startswith("failed: memory, proxy")


def test_open_files_and_objects_that_grow() -> None:
    growing = [Sample(at, 40 + at // 60) for at in range(0, LONG_S + 1, 5)]
    files = judged(replace(sound(), lives=[life(steady(120.0), growing)]))
    assert [row_of(files, "open files").met, row_of(files, "memory").met] == [False, True]
    more = [Sample(at, 300 + at / 5) for at in range(0, LONG_S + 1, 5)]
    objects = judged(replace(sound(), objects=more))
    assert row_of(objects, "objects").met is False


def test_a_short_soak_neither_passes_nor_fails_what_needs_time() -> None:
    short = sound(seconds=300)
    leaking = [Sample(at, 120 + at) for at in range(0, 301, 5)]
    verdict = judged(replace(short, lives=[life(leaking, steady(40.0, 300))]))
    assert verdict.passed
    assert verdict.unjudged == ["memory, proxy", "open files, proxy", "objects in the store"]
    assert "too short to judge: memory, proxy" in conclusion(verdict)
    assert "passed" not in conclusion(verdict)


def test_nothing_sampled_is_not_flat() -> None:
    assert flat("memory", "MiB", [], 12.0).met is False


@pytest.mark.parametrize(
    ("until_s", "met", "calm_met"),
    [(1_000, True, True), (1_055, True, True), (1_075, False, False), (1_800, False, False)],
)
def test_lag_may_grow_while_something_is_broken(until_s: int, met: bool, calm_met: bool) -> None:
    lag = [
        Sample(at, 80.0 if OUTAGE.from_s < at < until_s else 9.0) for at in range(0, LONG_S + 1, 5)
    ]
    verdict = judged(replace(sound(), lag_s=lag, disturbances=[OUTAGE]))
    assert row_of(verdict, "lag back in bounds after: an outage").met is met
    assert row_of(verdict, "lag while nothing is broken").met is calm_met


def test_lag_that_never_comes_back() -> None:
    lag = [Sample(at, 80.0 if at > 900 else 9.0) for at in range(0, LONG_S + 1, 5)]
    verdict = judged(replace(sound(), lag_s=lag, disturbances=[OUTAGE]))
    assert row_of(verdict, "lag back in bounds after: an outage: never").met is False
    assert row_of(verdict, "lag at the end").met is False


@pytest.mark.parametrize("change", [{"verify_clean": False}, {"faults": ["tail: a hole"]}])
def test_one_fault_is_enough(change: dict[str, object]) -> None:
    assert not judged(replace(sound(), **change)).passed  # type: ignore[arg-type]


def test_the_readers_check_sees_every_kind_of_fault() -> None:
    def faults(partition: int, *records: tuple[int, bytes]) -> int:
        traffic_seen = Outcome()
        check = Check("reader", partition, None, traffic_seen)
        for offset, value in records:
            check.take(offset, value)
        return len(traffic_seen.faults)

    aborted = b"\xff" * 1000
    assert faults(0, (7, value_of(7)), (8, value_of(8))) == 0
    assert faults(3, (9, value_of(7)), (11, value_of(8))) == 0  # a marker between them
    assert faults(0, (7, value_of(7)), (9, value_of(9))) == 1  # a gap
    assert faults(0, (7, value_of(8))) == 1  # another offset's record
    assert faults(3, (9, value_of(7)), (10, value_of(7))) == 1  # twice
    assert faults(3, (9, value_of(7)), (9, value_of(8))) == 1  # not in order
    assert faults(3, (9, aborted)) == 1
    assert faults(0, (7, value_of(7)[:-1] + b"?")) == 1
