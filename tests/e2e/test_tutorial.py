"""docs/start/tutorial.md, command by command, with only ports and folders changed.

Each line with `$` is run by bash; what it prints is what the page shows below it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from proxy_process import PROJECT

from lab.kafka import KafkaServer, tool_command
from lab.process import ServerProcess, free_port

PAGE = PROJECT / "docs" / "start" / "tutorial.md"
# The classes behind the scripts in Kafka's folder `bin`.
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-delete-records.sh": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
}
ARCHIVED_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    output: tuple[str, ...]


def steps() -> Iterator[Step]:
    blocks = re.findall(r"(?:^ {4}.*\n)+", PAGE.read_text("utf-8"), re.MULTILINE)
    for block in blocks:
        commands = block.replace("\n    ", "\n").strip("\n ").split("$ ")[1:]
        for text in commands:
            whole = re.sub(r"\\\n\s*", "", text.rstrip("\n"))
            command, *output = whole.split("\n")
            yield Step(command, tuple(output))


def is_as_shown(shown: tuple[str, ...], printed: str) -> bool:
    """`…` stands for any text; the width of a column follows what is in it."""
    lines = [re.sub(r"\s+", " ", line.strip()) for line in printed.strip().splitlines()]
    patterns = [re.escape(re.sub(r"\s+", " ", line.strip())).replace("…", ".*") for line in shown]
    return len(lines) == len(patterns) and all(
        re.fullmatch(pattern, line) for pattern, line in zip(patterns, lines, strict=True)
    )


class Terminal:
    """Bash with Kafka's scripts on its path; the page's addresses and folders lead elsewhere."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._folder = folder
        self._places = {
            "localhost:9092": bootstrap,
            "127.0.0.1:9192": f"127.0.0.1:{free_port()}",
            "127.0.0.1:8080": f"127.0.0.1:{free_port()}",
            "/tmp/trial": f"{folder}/trial",
            ".venv/bin/fetchproxy": f"{sys.executable} -m fetchproxy",
        }
        scripts = folder / "bin"
        scripts.mkdir()
        for name, tool in TOOLS.items():
            script = scripts / name
            words = shlex.join(tool_command(folder, tool))
            script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            script.chmod(0o755)
        self._environment = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"}

    def here(self, command: str) -> str:
        for written, place in self._places.items():
            command = command.replace(written, place)
        return command

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.here(command)],
            cwd=PROJECT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        # The console consumer counts on stderr.
        counted = re.findall(r"^Processed a total of .*$", done.stderr, re.MULTILINE)
        return "\n".join([done.stdout.rstrip("\n"), *counted])


@pytest.mark.kafka
def test_the_tutorial_prints_what_it_shows(kafka_server: KafkaServer, tmp_path: Path) -> None:
    terminal = Terminal(kafka_server.bootstrap, tmp_path)
    proxy: ServerProcess | None = None
    try:
        for step in steps():
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
    commands = [step.command for step in steps()]
    earliest = [step for step in steps() if "--time earliest" in step.command]
    assert [step.output for step in earliest] == [("trial:0:8000",), ("trial:0:0",)]
    assert len(commands) > 12
