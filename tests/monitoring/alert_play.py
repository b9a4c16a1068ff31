"""Plays the scrapes of real processes to the alerts as hours, by Prometheus' own promtool.

The first scrape stands for the half hour before, and the last two tell how things go on: counters
rise at the rate that they had between these two, and ages grow by the second. All else stays.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.monitoring import RULES
from lab.prometheus import find_promtool

BEFORE_MIN = 30
# These grow by a second each second while their cause lasts.
_CLOCKS = ("_age_seconds", "_failing_seconds")
# A test machine that is busy with other work makes these true, and that is no fault of the rules.
OF_THE_MACHINE = frozenset(
    {"FetchproxyCpuHigh", "FetchproxyEventLoopBusy", "FetchproxyEventLoopLate"}
)
_FIRED = 'count by (alertname) (max_over_time(ALERTS{alertstate="firing"}[1d])) > bool 0'


@dataclass(frozen=True)
class Scrape:
    """`values` by series; None: nobody answered. `rising`: those of counters and histograms."""

    at: float
    values: dict[str, float] | None
    rising: frozenset[str] = frozenset()
    instance: str = ""


@dataclass
class Timeline:
    """A sample a minute of each series; None: the series was not there."""

    minutes: int = 0
    series: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            samples = self.series.setdefault(name, [])
            samples += [None] * (self.minutes - len(samples))
            samples.append(value)
        self.minutes += 1


def scrape(console_port: int) -> Scrape:
    at, instance = time.monotonic(), f"127.0.0.1:{console_port}"
    try:
        with urllib.request.urlopen(f"http://{instance}/metrics") as response:
            text = response.read().decode()
    except OSError:
        return Scrape(at, None, instance=instance)
    values, rising = {}, set()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            name = _series(one.name, {**one.labels, "job": "any", "instance": instance})
            values[name] = one.value
            if family.type in ("counter", "histogram"):
                rising.add(name)
    return Scrape(at, values, frozenset(rising), instance)


def _series(name: str, labels: dict[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


def timeline(scrapes: Sequence[Scrape], after_min: int) -> Timeline:
    """At least two scrapes, of one process. A second that is not `up` is a process that is away."""
    joined = Timeline()
    for one in [*[scrapes[0]] * BEFORE_MIN, *scrapes[1:]]:
        joined.add(_with_up(one, one.values))
    *_, before, last = scrapes
    for minute in range(1, after_min + 1):
        joined.add(_with_up(last, _later(before, last, minute)))
    return joined


def _with_up(one: Scrape, values: dict[str, float] | None) -> dict[str, float]:
    up = _series("up", {"job": "any", "instance": one.instance})
    return {up: 0.0} if values is None else {**values, up: 1.0}


def _later(before: Scrape, last: Scrape, minute: int) -> dict[str, float] | None:
    if last.values is None:
        return None
    per_s = 1 / (last.at - before.at)
    later = dict(last.values)
    for name, value in last.values.items():
        earlier = (before.values or {}).get(name, value)
        if name in last.rising:
            later[name] += (value - earlier) * per_s * 60 * minute
        elif name.partition("{")[0].endswith(_CLOCKS) and value > earlier:
            later[name] += 60 * minute
    return later


def assert_fires(
    scrapes: Sequence[Scrape],
    *alerts: str,
    after_min: int = 30,
    besides: Collection[str] = OF_THE_MACHINE,
) -> None:
    """Exactly these alerts fire at some time. `besides`: others that do not matter."""
    played = timeline(scrapes, after_min)
    names = "|".join(set(besides) - {*alerts})
    check: dict[str, object] = {
        "expr": f'{_FIRED} unless on (alertname) max_over_time(ALERTS{{alertname=~"{names}"}}[1d])',
        "eval_time": f"{played.minutes - 1}m",
        "exp_samples": [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in alerts],
    }
    run_promtool(played, [check])


def run_promtool(played: Timeline, checks: list[dict[str, object]]) -> None:
    test = {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": " ".join(map(_sample, samples))}
            for name, samples in played.series.items()
        ],
        "promql_expr_test": checks,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test.yaml"  # JSON is YAML
        whole = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
        path.write_text(json.dumps(whole), encoding="utf-8")
        result = subprocess.run(
            [str(find_promtool()), "test", "rules", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 0, result.stdout + result.stderr


def _sample(value: float | None) -> str:
    return "_" if value is None else repr(float(value))


@dataclass
class Watched:
    """Scrapes of one process, in their order."""

    console_port: int
    scrapes: list[Scrape] = field(default_factory=list)

    def look(self) -> None:
        self.scrapes.append(scrape(self.console_port))

    def look_twice(self, pause_s: float = 2.0) -> None:
        """For the rates of what goes on."""
        self.look()
        time.sleep(pause_s)
        self.look()

    def value(self, name: str, labels: str = "") -> float:
        series = scrape(self.console_port).values or {}
        return sum(v for key, v in series.items() if key.startswith(name + "{") and labels in key)

    def above(self, name: str, limit: float, labels: str = "") -> Callable[[], bool]:
        return lambda: self.value(name, labels) > limit


@pytest.fixture
def promtool(find_part: Callable[[str, Callable[[], Path]], Path]) -> Path:
    return find_part("prometheus", find_promtool)
