"""`python recorded_pytest.py FILE ARGUMENT…` is `pytest ARGUMENT…` that also writes its results.

Each line of FILE is a JSON object, written when the thing happens, so a killed process leaves what
was until then: `{"test", "outcome", "reason"}` for a test (a failure in its setup, call or teardown
each), `{"test", "seconds", "cpu_seconds"}` for a whole test, `{"uncollected"}` for a module that
cannot be collected, and last of all `{"exit_status"}`. The time of a core is also that of the
processes that have ended in the test.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from typing import TextIO

import pytest


class Recorder:
    """A pytest plugin."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self._write(test=report.nodeid, outcome=report.outcome, reason=reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        started, cpu_before = time.monotonic(), _cpu_seconds()
        done = yield
        seconds, cpu_seconds = time.monotonic() - started, _cpu_seconds() - cpu_before
        self._write(test=item.nodeid, seconds=seconds, cpu_seconds=cpu_seconds)
        return done

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(uncollected=report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write(exit_status=int(exitstatus))

    def _write(self, **fields: str | float) -> None:
        print(json.dumps(fields), file=self._lines, flush=True)


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def main(file: str, *arguments: str) -> int:
    with open(file, "w", encoding="utf-8") as lines:
        return pytest.main([*arguments], plugins=[Recorder(lines)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
