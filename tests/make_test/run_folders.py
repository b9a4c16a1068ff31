"""`make test`: every folder's tests in a pytest of their own, several folders side by side.

On a busy machine a test can fail for no fault of the code. So what failed runs once more, alone and
in order, when everything else has ended. If all of it passes then, and at most FLAKY_MAX tests
failed, the run is green. Those tests are printed last as `flaky`, and `tests/flaky.txt` lists them
until they are mended. Everything else is red: a test that fails alone, a pytest that was killed or
broke, a module that cannot be collected, a folder without a test that ran.

`python tests/make_test/run_folders.py [--lanes N] [ARGUMENT OF PYTEST…]`, in the project's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FLAKY_MAX: Final = 5
FLAKY_FILE: Final = Path("tests/flaky.txt")
# Tests mostly wait for real parts, so one lane more than there are cores keeps the cores busy.
LANES: Final = (os.cpu_count() or 1) + 1
# The folders that take longest, in this order, so that no lane ends long after the others; and in
# how many pieces each is run. Every piece starts a broker of its own if its tests need one.
LONG_FOLDERS: Final = {
    "tests/e2e": 3,
    "tests/matrix": 1,
    "tests/writing": 3,
    "tests/standalone": 1,
    "tests/remotelog": 1,
    "tests/strange": 1,
    "tests/contracts": 1,
    "tests/serving": 2,
    "tests/jobs": 1,
    "tests/simulation": 1,
}
_RECORDED_PYTEST = Path(__file__).with_name("recorded_pytest.py")
_LAUNCHER = Path(__file__).parents[2] / "lab/die_with_parent.py"
_SEVERITY = ("passed", "skipped", "failed")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one pytest runs: a folder's modules, or some of them."""

    name: str
    modules: tuple[str, ...]


@dataclass(slots=True)
class Result:
    """What a pytest left. `outcomes`: by node id, in the order of the run, each test's worst."""

    name: str
    exit_code: int
    exit_status: int | None = None
    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    uncollected: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        return [test for test, outcome in self.outcomes.items() if outcome == "failed"]

    @property
    def broken(self) -> str | None:
        """Why this run proves nothing, so that running its failed tests again would not help."""
        if self.uncollected:
            return f"cannot collect {', '.join(self.uncollected)}"
        if self.exit_code < 0 or self.exit_status is None:
            return f"pytest ended with exit code {self.exit_code} before it was done"
        if self.exit_status == 5:
            return "no test ran"
        if self.exit_code != (1 if self.failed else 0):
            return f"pytest ended with exit code {self.exit_code}, {len(self.failed)} tests failed"
        return None


def pieces(tests: Path) -> list[Piece]:
    """Every folder below `tests` that holds test modules, the longest first."""
    folders: dict[str, list[str]] = {}
    for module in sorted(tests.rglob("test_*.py")):
        folders.setdefault(module.parent.as_posix(), []).append(module.as_posix())
    longest = [name for name in LONG_FOLDERS if name in folders]
    return [
        Piece(f"{name} {part + 1}/{count}" if count > 1 else name, tuple(modules))
        for name in dict.fromkeys([*longest, *folders])
        for count in [LONG_FOLDERS.get(name, 1)]
        for part in range(count)
        if (modules := folders[name][part::count])
    ]


def run_pytest(name: str, arguments: Sequence[str], record: Path, output: Path | None) -> Result:
    """Returns when it has ended. `output`: the file for what it prints; None: our own output."""
    # The kernel ends it if this process is killed. -P: the tests see no folder of ours on the path.
    launch = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid())]
    pytest = [sys.executable, "-P", str(_RECORDED_PYTEST), str(record), "-p", "no:cacheprovider"]
    with open(output or os.devnull, "wb") as file:
        ended = subprocess.run(
            [*launch, *pytest, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file if output else None,
            stderr=subprocess.STDOUT if output else None,
            check=False,
        )
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return read_result(name, ended.returncode, lines)


def read_result(name: str, exit_code: int, lines: Iterable[str]) -> Result:
    result = Result(name, exit_code)
    for line in lines:
        fields = json.loads(line)
        if "test" in fields:
            before = result.outcomes.get(fields["test"], "passed")
            worst = max(before, fields["outcome"], key=_SEVERITY.index)
            result.outcomes[fields["test"]] = worst
            result.reasons += [fields["reason"]] if fields["reason"] else []
        elif "uncollected" in fields:
            result.uncollected.append(fields["uncollected"])
        else:
            result.exit_status = fields["exit_status"]
    return result


def run_side_by_side(
    todo: Sequence[Piece], arguments: Sequence[str], lanes: int, folder: Path
) -> list[Result]:
    """A line for each piece when it has ended, and all that it printed if it was not green."""

    def run(number: int, piece: Piece) -> tuple[Result, Path, float]:
        started = time.monotonic()
        record, output = folder / f"{number}.json", folder / f"{number}.log"
        result = run_pytest(piece.name, [*arguments, *piece.modules], record, output)
        return result, output, time.monotonic() - started

    results = []
    with ThreadPoolExecutor(lanes) as pool:
        running = [pool.submit(run, *numbered) for numbered in enumerate(todo)]
        try:
            for ended in as_completed(running):
                result, output, seconds = ended.result()
                results.append(result)
                if result.failed or result.broken:
                    print(output.read_text(encoding="utf-8", errors="replace"))
                print(f"{result.name:24} {summary([result])} in {seconds:.0f} s", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    return results


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


def summary(results: Iterable[Result]) -> str:
    counts = Counter(outcome for result in results for outcome in result.outcomes.values())
    return ", ".join(f"{counts[o]} {o}" for o in reversed(_SEVERITY) if counts[o]) or "0 passed"


def main(command_line: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=LANES)
    options, arguments = parser.parse_known_args(command_line)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="make-test-") as folder:
        results = run_side_by_side(pieces(Path("tests")), arguments, options.lanes, Path(folder))
        red = run_again(results, arguments, Path(folder))
    for reason, count in sorted(Counter(r for result in results for r in result.reasons).items()):
        print(f"{count} x {reason}")
    print(*(f"\n{line}" for line in red), sep="")
    counts = summary(results)
    if not red:
        print_flaky([test for result in results for test in result.failed])
        counts = counts.replace("failed", "flaky")
    print("\n" + f" {counts} in {time.monotonic() - started:.2f}s ".center(80, "="))
    return 1 if red or not results else 0


if __name__ == "__main__":
    sys.exit(main())
