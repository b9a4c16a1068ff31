"""docs/start/tutorial.md, command by command, with only ports and folders changed.

Each line with `$` is run by bash; what it prints is what the page shows below it.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import pytest
from page_commands import Step, Terminal, is_as_shown, steps
from proxy_process import PROJECT

from lab.kafka import KafkaServer
from lab.process import ServerProcess, free_port

PAGE = (PROJECT / "docs" / "start" / "tutorial.md").read_text("utf-8")
ARCHIVED_MAX_S = 60.0


def terminal_of(bootstrap: str, folder: Path) -> Terminal:
    places = {
        "localhost:9092": bootstrap,
        "127.0.0.1:9192": f"127.0.0.1:{free_port()}",
        "127.0.0.1:8080": f"127.0.0.1:{free_port()}",
        "/tmp/trial": f"{folder}/trial",
        ".venv/bin/fetchproxy": f"{sys.executable} -m fetchproxy",
    }
    return Terminal(folder, places, {})


@pytest.mark.kafka
def test_the_tutorial_prints_what_it_shows(kafka_server: KafkaServer, tmp_path: Path) -> None:
    terminal = terminal_of(kafka_server.bootstrap, tmp_path)
    proxy: ServerProcess | None = None
    try:
        for step in steps(PAGE):
            if step.command.startswith("make "):
                continue  # these tests run in what it makes
            if " serve " in step.command:
                command = shlex.split(terminal.here(step.command))
                proxy = ServerProcess("fetchproxy", command, tmp_path / "log", cwd=PROJECT)
                proxy.start()
                continue
            if step.command.startswith("rm ") and proxy is not None:
                proxy.stop()
            ends = time.monotonic() + (ARCHIVED_MAX_S if " segments " in step.command else 0)
            while not is_as_shown(step.output, printed := printed_by(terminal, step)):
                assert time.monotonic() < ends, (step, printed)
                time.sleep(1)
    finally:
        if proxy is not None:
            proxy.stop()


def printed_by(terminal: Terminal, step: Step) -> str:
    """An archive that is not there yet is what the page lets its reader wait for."""
    if " segments " in step.command:
        return terminal.run(f"{step.command} || true")
    return terminal.run(step.command)


def test_the_page_has_the_steps_that_matter() -> None:
    commands = [step.command for step in steps(PAGE)]
    earliest = [step for step in steps(PAGE) if "--time earliest" in step.command]
    assert [step.output for step in earliest] == [("trial:0:8000",), ("trial:0:0",)]
    assert len(commands) > 12
