"""The frame of every benchmark part: its options, the order of turns, and the use of figures.

A part measures and returns rows. The frame prints tables, writes files and sets the exit status.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from benchmarks import report
from benchmarks.report import Row
from lab.errors import PartMissing

RESULTS = Path(__file__).parent / "results"
_PROJECT = Path(__file__).parents[1]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """An option for the amount of work: `full`, or `quick` with --quick."""

    name: str
    full: int
    quick: int
    help: str

    @property
    def attribute(self) -> str:
        """The attribute's name in the parsed options."""
        return self.name.replace("-", "_")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`facts` go into the JSON.

    `lacking`: one line for each comparison that should have been made but was not. If there are
    any, the part fails after it has written its results.
    """

    rows: Sequence[Row]
    facts: Mapping[str, object] = field(default_factory=dict)
    lacking: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """`python -m benchmarks.NAME`. `measure` raises PartMissing if this machine cannot run it.

    Every part has --quick, --results and an option for each of its `sizes`. `add_options` adds its
    other options.
    """

    name: str
    title: str  # over the table
    description: str
    sizes: Sequence[Size]
    measure: Callable[[argparse.Namespace, Console], Outcome]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Returns 0 if the figures could be taken, even if goals are missed: a busy machine must
        not fail a build. Returns 1 if they could not be taken."""
        options = self.parse(arguments)
        console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
        machine = report.machine()  # before the benchmark's own load
        try:
            outcome = self.measure(options, console)
        except PartMissing as missing:
            console.print(f"{self.name} cannot be measured here: {missing}", markup=False)
            return 1
        console.print(report.table(self.title, outcome.rows))
        for line in outcome.lacking:
            console.print(f"{self.name} is not complete: {line}", markup=False)
        if options.results is not None:
            facts: dict[str, object] = {
                "benchmark": self.name,
                "date": datetime.now(UTC).date().isoformat(),
                "machine": machine,
                **{size.attribute: getattr(options, size.attribute) for size in self.sizes},
                **outcome.facts,
                "not_compared": list(outcome.lacking),
            }
            report.write(options.results, facts, outcome.rows)
            console.print(f"written to {options.results}", markup=False)
        return 1 if outcome.lacking else 0

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}", description=self.description
        )
        parser.add_argument(
            "--quick", action="store_true", help="a smoke run: the figures mean little"
        )
        for size in self.sizes:
            text = f"{size.help}; {size.full}, with --quick {size.quick}"
            parser.add_argument(f"--{size.name}", type=int, default=None, help=text)
        self.add_options(parser)
        file = f"{self.name}.json"
        parser.add_argument(
            "--results", type=Path, default=None, help=f"JSON; {file}, with --quick none"
        )
        options = parser.parse_args(arguments)
        for size in self.sizes:
            if getattr(options, size.attribute) is None:
                setattr(options, size.attribute, size.quick if options.quick else size.full)
        if options.results is None and not options.quick:
            options.results = RESULTS / file
        return options


def in_turn(contestants: Sequence[T], number: int) -> list[T]:
    """Their order in round `number`. Each round begins with the next contestant, since the first of
    a round is often slower."""
    turn = number % len(contestants)
    return [*contestants[turn:], *contestants[:turn]]


def child(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> Any:
    """Runs a module of this project and returns the JSON that it prints.

    The module runs in a process of its own, so its CPU time is only its own and it inherits no
    memory or threads from an earlier run. `environment`: added to this process's environment.
    Raises CalledProcessError.
    """
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        input=stdin,
        text=True,
        check=True,
        cwd=_PROJECT,
        env={**os.environ, **(environment or {})},
    )
    return json.loads(result.stdout)
