"""Decides whether a soak passed: rows, goals and reasons, from the samples. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.report import Row

# A quarter of a process's life has to contain enough samples. The first quarter has to contain the
# warm-up: caches fill, code is loaded, threads start.
JUDGED_LIFE_S_MIN = 480.0
# The allocator keeps the memory of a burst (a segment, a listing), and bursts coincide by chance. A
# leak per segment, request or connection exceeds this within an hour of a real load.
MEMORY_GROWTH_MIB_MAX = 12.0
# The number of connections to the store and the broker follows the requests in flight.
FILES_GROWTH_MAX = 8.0
# The number of segments varies with the times of retention and of the samples.
OBJECTS_GROWTH_SHARE_MAX = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """`value` at `at_s` seconds after the soak's start."""

    at_s: float
    value: float


Series = Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something was broken on purpose from `from_s` to `until_s`."""

    name: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class ProcessLife:
    """One process from its start to its end."""

    name: str
    resident_mib: list[Sample]
    open_files: list[Sample]

    @property
    def seconds(self) -> float:
        return _seconds(self.resident_mib)


@dataclass(frozen=True, slots=True)
class Soaked:
    """All observations. `faults`: sentences, each of which fails the soak.

    `counts`: by name and unit, the amount of work done, such as records read.
    """

    lives: Sequence[ProcessLife]
    lag_s: Series
    objects: Series
    disturbances: Sequence[Disturbance]
    verify_clean: bool
    faults: Sequence[str] = ()
    counts: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons`: why it failed. `unjudged`: figures for which the soak was too short."""

    rows: Sequence[Row]
    reasons: Sequence[str]
    unjudged: Sequence[str]

    @property
    def passed(self) -> bool:
        return not self.reasons


def judge(soaked: Soaked, *, lag_s_max: float, recovery_s_max: float) -> Verdict:
    """`lag_s_max`: allowed lag without faults. `recovery_s_max`: time to be below it again."""
    rows = [*_flat_rows(soaked), *lag_rows(soaked, lag_s_max, recovery_s_max)]
    rows.append(_all_or_nothing("verify clean at the end", soaked.verify_clean))
    rows.append(_counted("faults that readers, producers and processes saw", len(soaked.faults), 0))
    rows += [_plain(name, unit, value) for (name, unit), value in soaked.counts.items()]
    missed = [_reason(each) for each in rows if each.met is False]
    unjudged = [each.name for each in rows if each.met is None and each.goal is not None]
    return Verdict(rows, [*missed, *soaked.faults], unjudged)


def _flat_rows(soaked: Soaked) -> list[Row]:
    rows = []
    for life in soaked.lives:
        grown = MEMORY_GROWTH_MIB_MAX
        rows.append(flat(f"memory, {life.name}", "MiB", life.resident_mib, grown))
    for life in soaked.lives:
        rows.append(flat(f"open files, {life.name}", "", life.open_files, FILES_GROWTH_MAX))
    second = quarter(soaked.objects, 2)
    typical = statistics.median(second) if second else 0.0
    grown = OBJECTS_GROWTH_SHARE_MAX * typical
    rows.append(flat("objects in the store", "", soaked.objects, grown))
    return rows


def flat(name: str, unit: str, series: Series, growth_max: float) -> Row:
    """Compares the medians of the last and second quarters. `met` None: it was too short."""
    second, last = quarter(series, 2), quarter(series, 4)
    if not second or not last:
        return Row(f"{name}: nothing sampled", 0.0, unit, "samples", False, 0.0, 0.0)
    before, after = statistics.median(second), statistics.median(last)
    met = None if _seconds(series) < JUDGED_LIFE_S_MIN else after <= before + growth_max
    values = [round(each.value, 4) for each in series]
    goal = f"<= {before:.0f} + {growth_max:.0f}"
    return Row(name, round(after, 4), unit, goal, met, min(values), max(values))


def quarter(series: Series, number: int) -> list[float]:
    """The values of the 1st, 2nd, 3rd or 4th quarter of the time that `series` spans."""
    if not series:
        return []
    first, part = series[0].at_s, _seconds(series) / 4
    since, until = first + (number - 1) * part, first + number * part
    return [
        each.value for each in series if since <= each.at_s and (each.at_s < until or number == 4)
    ]


def lag_rows(soaked: Soaked, lag_s_max: float, recovery_s_max: float) -> list[Row]:
    """The worst lag without faults, and the time after each fault until the lag was in bounds."""
    calm = [
        each.value
        for each in soaked.lag_s
        if not any(
            broken.from_s <= each.at_s <= broken.until_s + recovery_s_max
            for broken in soaked.disturbances
        )
    ]
    worst = max(calm, default=None)
    rows = [_at_most("lag while nothing is broken, at most", "s", worst, lag_s_max)]
    for broken in soaked.disturbances:
        name = f"lag back in bounds after: {broken.name}"
        took_s = _recovered_s(soaked.lag_s, broken, lag_s_max)
        if took_s is None:
            rows.append(Row(f"{name}: never", 0.0, "s", f"<= {recovery_s_max:g}", False, 0.0, 0.0))
        else:
            rows.append(_at_most(name, "s", took_s, recovery_s_max))
    end = soaked.lag_s[-1].value if soaked.lag_s else None
    rows.append(_at_most("lag at the end", "s", end, lag_s_max))
    return rows


def _recovered_s(lag_s: Series, broken: Disturbance, lag_s_max: float) -> float | None:
    for each in lag_s:
        if each.at_s >= broken.until_s and each.value <= lag_s_max:
            return each.at_s - broken.until_s
    return None


def _seconds(series: Series) -> float:
    return series[-1].at_s - series[0].at_s if series else 0.0


def _at_most(name: str, unit: str, value: float | None, goal: float) -> Row:
    if value is None:  # there was no sample at such a time
        return Row(name, 0.0, unit, f"<= {goal:g}", None, 0.0, 0.0)
    rounded = round(value, 2)
    return Row(name, rounded, unit, f"<= {goal:g}", value <= goal, rounded, rounded)


def _counted(name: str, value: int, expected: int) -> Row:
    return Row(name, value, "", f"= {expected}", value == expected, value, value)


def _all_or_nothing(name: str, met: bool) -> Row:
    return Row(name, float(met), "", "= 1", met, float(met), float(met))


def _plain(name: str, unit: str, value: float) -> Row:
    rounded = round(value, 2)
    return Row(name, rounded, unit, None, None, rounded, rounded)


def _reason(missed: Row) -> str:
    return f"{missed.name}: {missed.value:g} {missed.unit}".rstrip() + f", goal {missed.goal}"
