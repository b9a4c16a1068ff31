"""Rows of figures with their goals: a table for people, JSON for machines, and a chart for both.

Pure, except for writing files and reading facts about the machine.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.table import Table

from benchmarks.chart import drawing
from benchmarks.goals import Goal

_PLACES = {
    "x": 3,
    "cores": 2,
    "ms": 3,
    "s/GB": 2,
    "s": 2,
    "µs": 2,
    "bytes/segment": 1,
    "GiB": 3,
    "KiB": 1,
}


@dataclass(frozen=True, slots=True)
class Row:
    """`value`: the median of the rounds. `goal` and `met` are None if there is no goal."""

    name: str
    value: float
    unit: str
    goal: str | None
    met: bool | None
    min: float
    max: float


def row(
    name: str,
    unit: str,
    rounds: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Row:
    value = statistics.median(rounds)
    goal, met = None, None
    if at_least is not None:
        goal, met = f"≥ {at_least:g}", value >= at_least
    elif at_most is not None:
        goal, met = f"≤ {at_most:g}", value <= at_most
    numbers = (round(number, 4) for number in (value, min(rounds), max(rounds)))
    median, least, most = numbers
    return Row(name, median, unit, goal, met, least, most)


def goal_rows(goal: Goal, rounds: Sequence[float], *also: Sequence[float]) -> list[Row]:
    """The line of the table of goals, then a row for each of its other figures.

    `also`: the rounds of `goal.also`, in its order. The line is met if all its figures are met.
    """
    others = [
        _goal_row(f"{goal.words}: {each.words}", each, values)
        for each, values in zip(goal.also, also, strict=True)
    ]
    line = _goal_row(goal.words, goal, rounds)
    return [replace(line, met=line.met is True and all(each.met for each in others)), *others]


def _goal_row(name: str, goal: Goal, rounds: Sequence[float]) -> Row:
    bare = row(name, goal.unit, rounds)
    return replace(bare, goal=goal.text, met=goal.met_by(statistics.median(rounds)))


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Ratios within each round, so that other load on the machine affects both sides alike."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def percentile(samples: Sequence[float], percent: int) -> float:
    """The smallest sample that is not exceeded by `percent` percent of all samples."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def machine() -> dict[str, str | int | float]:
    """The facts that the figures depend on, without the machine's name."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(title: str, rows: Sequence[Row]) -> Table:
    drawn = Table(title=title, title_justify="left")
    drawn.add_column("figure")
    for heading in ("median", "min", "max"):
        drawn.add_column(heading, justify="right")
    for heading in ("unit", "goal", ""):
        drawn.add_column(heading)
    for each in rows:
        verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[each.met]
        places = _PLACES.get(each.unit, 0)
        numbers = (f"{number:.{places}f}" for number in (each.value, each.min, each.max))
        drawn.add_row(each.name, *numbers, each.unit, each.goal or "", verdict)
    return drawn


def write(path: Path, facts: dict[str, object], rows: Sequence[Row]) -> None:
    """`path`: the JSON file. The chart is written beside it, as .svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**facts, "rows": [asdict(each) for each in rows]}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".svg").write_text(drawing(str(facts["benchmark"]), rows), encoding="utf-8")
