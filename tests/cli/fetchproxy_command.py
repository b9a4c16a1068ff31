"""`fetchproxy …` as a user types it: a process that runs to its end. Not a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from lab import limited

PROJECT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "fetchproxy"]
ENDS_S = 600.0  # only a hang takes longer
Ended = subprocess.CompletedProcess[str]


def fetchproxy(
    *arguments: str, stdin: str | None = None, environment: Mapping[str, str] | None = None
) -> Ended:
    """With whatever exit code it ends. `environment`: added to this process's own."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=PROJECT,
        env={**os.environ, **environment} if environment else None,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDS_S,
    )


def output_of(*arguments: str, stdin: str | None = None) -> str:
    """What it prints; it must end well."""
    result = fetchproxy(*arguments, stdin=stdin)
    outcome = f"{arguments[0]}: {result.returncode}\n{result.stdout}{result.stderr}"
    assert result.returncode == 0, outcome
    return result.stdout


def archive_once(
    bootstrap: str, store: str, topics: str, settings: Mapping[str, object] | None = None
) -> Ended:
    where = ("--bootstrap", bootstrap, "--store", store, "--topics", topics)
    return fetchproxy("archive", "--once", *where, *limited.options(settings or {}))
