"""`make test`: every folder's tests in a pytest of their own, several folders side by side.

Folders whose tests take seconds share one, as the start of a pytest takes two seconds of a core.

On a busy machine a test can fail for no fault of the code. So what failed runs once more, alone and
in order, when everything else has ended. If all of it passes then, and at most FLAKY_MAX tests
failed, the run is green. Those tests are printed last as `flaky`, and `tests/flaky.txt` lists them
until they are mended. Everything else is red: a test that fails alone, a pytest that was killed or
broke, a module that cannot be collected, a folder without a test that ran.

    python tests/make_test/run_folders.py [--setup COMMAND] [--check COMMAND] [ARGUMENT OF PYTEST…]

It runs in the project's folder. Both commands run beside the tests, and the run is red if one of
them fails. Tests of real parts begin when `--setup` has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FLAKY_MAX: Final = 5
SLOWEST: Final = 40  # as many are printed
FLAKY_FILE: Final = Path("tests/flaky.txt")
# Tests of real parts mostly wait, and the others mostly compute, so that one lane of the latter
# beside as many lanes of the former as there are cores keeps the cores busy. A lane without work of
# its own kind takes the other's.
REAL_LANES: Final = os.cpu_count() or 1
_REAL_PART: Final = re.compile(r"\bmark\.(kafka|s3|gcs|azure|hdfs|spark)\b")
# All tests of such a module are slow.
_SLOW: Final = re.compile(r"^pytestmark = [^\]]*?\bmark\.slow\b", re.MULTILINE)
# The folders that take longest, in this order, so that no lane ends long after the others; and in
# how many pieces each is run. Every piece starts a broker of its own if its tests need one.
LONG_FOLDERS: Final = {
    "tests/e2e": 4,
    "tests/e2e/cluster": 1,
    "tests/cluster_restore": 2,
    "tests/matrix": 1,
    "tests/remotelog": 1,
    "tests/strange": 1,
    "tests/jobs": 1,
    "tests/writing": 2,
    "tests/contracts": 1,
    "tests/simulation": 1,
    "tests/oracle": 1,
    "tests/storage": 1,
    "tests/serving": 2,
    "tests/security": 1,
    "tests/archive_only": 1,
}
# The folders whose tests take a few seconds. Those of the app are not among them: they exempt
# objects from collections of garbage, and Hypothesis looks for one of those.
SHORT_FOLDERS: Final = frozenset(
    [
        *("tests", "tests/auditing", "tests/brokers", "tests/chaos", "tests/config"),
        *("tests/console", "tests/demo", "tests/fuzz", "tests/lab", "tests/observability"),
        "tests/packaging",
    ]
)
_RECORDED_PYTEST = Path(__file__).with_name("recorded_pytest.py")
_LAUNCHER = Path(__file__).parents[2] / "lab/die_with_parent.py"
_SEVERITY = ("passed", "skipped", "failed")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one process runs: a command, or a pytest of a folder's modules or some of them."""

    name: str
    modules: tuple[str, ...] = ()
    command: str = ""


@dataclass(slots=True)
class Result:
    """What a pytest left. `outcomes`: by node id, in the order of the run, each test's worst."""

    name: str
    exit_code: int
    exit_status: int | None = None
    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)  # by test, its fixtures included
    cpu_seconds: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    uncollected: list[str] = field(default_factory=list)
    folders: frozenset[str] = frozenset()  # each must have a test that ran

    @property
    def failed(self) -> list[str]:
        return [test for test, outcome in self.outcomes.items() if outcome == "failed"]

    @property
    def broken(self) -> str | None:
        """Why this run proves nothing, so that running its failed tests again would not help."""
        if self.uncollected:
            return f"cannot collect {', '.join(self.uncollected)}"
        if self.exit_status is None:
            return f"ended with exit code {self.exit_code} before it was done"
        if self.exit_status == 5:
            return "no test ran"
        if self.exit_code != (1 if self.failed else 0):
            return f"ended with exit code {self.exit_code}, {len(self.failed)} tests failed"
        if idle := self.folders - {folder_of(test) for test in self.outcomes}:
            return f"no test ran in {', '.join(sorted(idle))}"
        return None


def pieces(tests: Path, *, slow: bool = True) -> tuple[list[Piece], list[Piece]]:
    """Those with real parts and those without, each the longest first.

    Together they are every module of tests below `tests`; without `slow`, every one that is not
    slow as a whole.
    """
    real: dict[str, list[str]] = {}
    alone: dict[str, list[str]] = {}
    for module in sorted(tests.rglob("test_*.py")):
        text = module.read_text(encoding="utf-8")
        if not slow and _SLOW.search(text):
            continue
        folders = real if _REAL_PART.search(text) else alone
        folders.setdefault(module.parent.as_posix(), []).append(module.as_posix())
    return list(_cut(real, ", real parts")), list(_cut(alone, ""))


def _cut(folders: dict[str, list[str]], suffix: str) -> Iterator[Piece]:
    longest = [name for name in LONG_FOLDERS if name in folders]
    short = [name for name in folders if name in SHORT_FOLDERS]
    for name in dict.fromkeys([*longest, *folders]):
        if name in short:
            continue
        count = min(LONG_FOLDERS.get(name, 1), len(folders[name]))
        for part in range(count):
            number = f" {part + 1}/{count}" if count > 1 else ""
            yield Piece(name + number + suffix, tuple(folders[name][part::count]))
    if short:
        yield Piece(f"short folders{suffix}", tuple(m for name in short for m in folders[name]))


def folder_of(test: str) -> str:
    """Of a module or of a test's node id."""
    return Path(test.partition("::")[0]).parent.as_posix()


def launch(command: Sequence[str], output: Path | None, niceness: int = 0) -> int:
    """The command's exit code. `output`: the file for what it prints; None: our own output."""
    # The kernel ends it if this process is killed.
    by = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), "nice", "-n", str(niceness)]
    with open(output or os.devnull, "wb") as file:
        return subprocess.run(
            [*by, *command],
            stdin=subprocess.DEVNULL,
            stdout=file if output else None,
            stderr=subprocess.STDOUT if output else None,
            check=False,
        ).returncode


def run_pytest(
    name: str, arguments: Sequence[str], record: Path, output: Path | None, niceness: int = 0
) -> Result:
    """Returns when it has ended."""
    # -P: the tests see no folder of ours on their path.
    pytest = [sys.executable, "-P", str(_RECORDED_PYTEST), str(record), "-p", "no:cacheprovider"]
    exit_code = launch([*pytest, *arguments], output, niceness)
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return read_result(name, exit_code, lines)


def read_result(name: str, exit_code: int, lines: Iterable[str]) -> Result:
    result = Result(name, exit_code)
    for line in lines:
        fields = json.loads(line)
        if "seconds" in fields:
            result.seconds[fields["test"]] += fields["seconds"]
            result.cpu_seconds[fields["test"]] += fields["cpu_seconds"]
        elif "test" in fields:
            before = result.outcomes.get(fields["test"], "passed")
            worst = max(before, fields["outcome"], key=_SEVERITY.index)
            result.outcomes[fields["test"]] = worst
            result.reasons += [fields["reason"]] if fields["reason"] else []
        elif "uncollected" in fields:
            result.uncollected.append(fields["uncollected"])
        else:
            result.exit_status = fields["exit_status"]
    return result


class Lanes:
    """Runs pieces side by side, until all are done or a command has failed."""

    def __init__(
        self,
        real: Sequence[Piece],
        alone: Sequence[Piece],
        setup: str | None,
        arguments: Sequence[str],
        folder: Path,
    ) -> None:
        self._todo = {True: deque(real), False: deque(alone)}
        self._arguments, self._folder = arguments, folder
        self._setup = setup
        self._ready = setup is None  # for tests with real parts
        self._changed = threading.Condition()
        self.results: list[Result] = []

    def run(self) -> None:
        """Prints a line for each piece that has ended, and its output if it was not green."""
        lanes: list[Callable[[], None]] = [lambda: self._lane(real=False, niceness=10)]
        lanes += [lambda: self._lane(real=True, niceness=0)] * REAL_LANES
        if self._setup is not None:
            lanes.append(self._set_up)
        with ThreadPoolExecutor(len(lanes)) as pool:
            try:
                for ended in as_completed([pool.submit(lane) for lane in lanes]):
                    ended.result()
            except BaseException:
                self._give_up()
                raise

    def _set_up(self) -> None:
        assert self._setup is not None
        self._run(Piece("set up", command=self._setup), 0)
        with self._changed:
            self._ready = True
            self._changed.notify_all()

    def _lane(self, *, real: bool, niceness: int) -> None:
        while (piece := self._take(real)) is not None:
            self._run(piece, niceness)

    def _take(self, real: bool) -> Piece | None:
        with self._changed:
            while True:
                for kind in (real, not real):
                    if self._todo[kind] and (self._ready or not kind):
                        return self._todo[kind].popleft()
                if not self._todo[True]:
                    return None
                self._changed.wait()

    def _run(self, piece: Piece, niceness: int) -> None:
        started = time.monotonic()
        file = self._folder / re.sub(r"\W+", "-", piece.name)
        output, record = file.with_suffix(".log"), file.with_suffix(".json")
        if piece.command:
            result = Result(piece.name, launch(["bash", "-c", piece.command], output, niceness))
            result.exit_status = 0
        else:
            arguments = [*self._arguments, *piece.modules]
            result = run_pytest(piece.name, arguments, record, output, niceness)
            result.folders = frozenset(map(folder_of, piece.modules))
        line = f"{piece.name:32} {summary([result])} in {time.monotonic() - started:.0f} s"
        with self._changed:
            self.results.append(result)
            if result.failed or result.broken or piece.command:
                print(output.read_text(encoding="utf-8", errors="replace"))
            print(line, flush=True)
        if piece.command and result.broken:
            self._give_up()

    def _give_up(self) -> None:
        with self._changed:
            for todo in self._todo.values():
                todo.clear()
            self._changed.notify_all()


def run_again(results: Sequence[Result], arguments: Sequence[str], folder: Path) -> list[str]:
    """Runs what failed alone and in order. Returns a line for each reason why the run is red."""
    red = [f"ERROR {result.name}: {result.broken}" for result in results if result.broken]
    failed = [test for result in results for test in result.failed]
    if len(failed) > FLAKY_MAX:
        red.append(f"ERROR {len(failed)} tests failed; {FLAKY_MAX} may be flaky, so none ran again")
        return red + [f"FAILED {test}" for test in failed]
    if not failed:
        return red
    print("\nwhat failed, once more and alone:", flush=True)
    again = run_pytest("once more", [*arguments, *failed], folder / "again.json", None)
    red += [f"ERROR once more: {again.broken}"] if again.broken else []
    return red + [
        f"FAILED {test} - also alone" for test in failed if again.outcomes.get(test) != "passed"
    ]


def listed_as_flaky() -> set[str]:
    """The node ids in `tests/flaky.txt`, one a line; `#` begins a comment."""
    lines = FLAKY_FILE.read_text(encoding="utf-8").splitlines() if FLAKY_FILE.exists() else []
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def print_flaky(flaky: Sequence[str]) -> None:
    if not flaky:
        return
    print("\nflaky (failed beside other tests, passed alone; mend them next):")
    listed = listed_as_flaky()
    for test in flaky:
        print(f"  {test}")
    if unlisted := [test for test in flaky if test not in listed]:
        print(f"add to {FLAKY_FILE} until they are mended:", *unlisted, sep="\n")


def print_slowest(results: Iterable[Result]) -> None:
    """By the time of a core: on a busy machine, the time on the wall says little."""
    seconds, cpu_seconds = Counter[str](), Counter[str]()
    for result in results:
        seconds.update(result.seconds)
        cpu_seconds.update(result.cpu_seconds)
    print("\nthe most time of a core, and the time on the wall:")
    for test, cpu_s in cpu_seconds.most_common(SLOWEST):
        print(f"  {cpu_s:6.1f} s {seconds[test]:6.1f} s {test}")


def summary(results: Iterable[Result]) -> str:
    counts = Counter(outcome for result in results for outcome in result.outcomes.values())
    return ", ".join(f"{counts[o]} {o}" for o in reversed(_SEVERITY) if counts[o]) or "done"


def main(command_line: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setup", help="sets up the real parts", metavar="COMMAND")
    parser.add_argument("--check", help="must succeed, too", metavar="COMMAND")
    options, arguments = parser.parse_known_args(command_line)
    started = time.monotonic()
    real, alone = pieces(Path("tests"), slow="not slow" not in arguments)
    if options.check:
        alone.insert(0, Piece("check", command=options.check))
    with tempfile.TemporaryDirectory(prefix="make-test-") as folder:
        lanes = Lanes(real, alone, options.setup, arguments, Path(folder))
        lanes.run()
        results = lanes.results
        red = run_again(results, arguments, Path(folder))
    for reason, count in sorted(Counter(r for result in results for r in result.reasons).items()):
        print(f"{count} x {reason}")
    print_slowest(results)
    print(*(f"\n{line}" for line in red), sep="")
    counts = summary(results)
    if not red:
        print_flaky([test for result in results for test in result.failed])
        counts = counts.replace("failed", "flaky")
    print("\n" + f" {counts} in {time.monotonic() - started:.2f}s ".center(80, "="))
    return 1 if red or not any(result.outcomes for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
