"""`fetchproxy archive`, `verify` and `segments` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archived_topics import SETTINGS

from lab import limited
from lab.process import ServerProcess

PROJECT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "fetchproxy"]


def archive_process(
    bootstrap: str,
    store: str,
    topics: str,
    folder: Path,
    settings: Mapping[str, object] | None = None,
) -> ServerProcess:
    """The process is not started yet; `start()`, `kill()` and `stop()` may follow each other."""
    whole = {**SETTINGS, **(settings or {})}
    command = [*limited.command(whole), "archive", "--bootstrap", bootstrap, "--store", store]
    command += ["--topics", topics, *limited.options(whole)]
    return ServerProcess("fetchproxy archive", command, folder / "archive.log", cwd=PROJECT)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False
    )


def verify(store: str) -> str:
    """The command's output; it must find nothing wrong."""
    done = _run("verify", "--store", store)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def segments(store: str, topic: str) -> list[dict[str, Any]]:
    done = _run("segments", "--store", store, "--topic", topic, "--json")
    assert done.returncode == (0 if done.stdout != "[]\n" else 2), done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
