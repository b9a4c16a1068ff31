"""A page's commands, run by bash as they are written, with only places changed. Not a test.

In an indented block a line with `$` begins a command, which goes on after a backslash at its end.
What it prints is below it; `…` stands for any text.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from proxy_process import PROJECT

from lab.kafka import tool_command

# The classes behind the scripts in Kafka's folder `bin`.
TOOLS = {
    "kafka-broker-api-versions.sh": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-delete-records.sh": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-dump-log.sh": "kafka.tools.DumpLogSegments",
}


# How a line begins that is a command, and neither a setting nor a formula.
COMMAND = re.compile(
    r"[A-Z0-9_]+=\S+ |(?:\S*/)?(?:aws|cp|curl|docker|fetchproxy|haproxy|helm|kafka-[a-z-]+\.sh"
    r"|kcat|kubectl|make|nginx|openssl|pip|python3?|systemctl|useradd) "
)


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    output: tuple[str, ...]


def steps(text: str) -> Iterator[Step]:
    """The page's steps, in their order."""
    blocks = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)
    for block in blocks:
        commands = re.sub(r"^ +", "", block, flags=re.MULTILINE).strip("\n ").split("$ ")[1:]
        for lines in commands:
            whole = re.sub(r"\\\n\s*", "", lines.rstrip("\n"))
            command, *output = whole.split("\n")
            yield Step(command, tuple(output))


def plain_commands(text: str) -> Iterator[str]:
    """The commands without `$`, of indented blocks and of fenced ones without a language."""
    fenced = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)
    for block in [*fenced, *indented]:
        if not re.search(r"^ *\$ ", block, re.MULTILINE):
            lines = re.sub(r"\\\n\s*", " ", block).splitlines()
            yield from (line.strip() for line in lines if COMMAND.match(line.strip()))


def is_as_shown(lines_shown: tuple[str, ...], printed: str) -> bool:
    """`…` stands for any text; the width of a column follows what is in it."""
    lines = [re.sub(r"\s+", " ", line.strip()) for line in printed.strip().splitlines()]
    patterns = [
        re.escape(re.sub(r"\s+", " ", line.strip())).replace("…", ".*") for line in lines_shown
    ]
    return len(lines) == len(patterns) and all(
        re.fullmatch(pattern, line) for pattern, line in zip(patterns, lines, strict=True)
    )


class Terminal:
    """Bash with Kafka's scripts, and those of `programs`, on its path.

    `places`: what the page names, and where it is here. `programs`: a name and its command line.
    """

    def __init__(
        self,
        folder: Path,
        places: Mapping[str, str],
        programs: Mapping[str, list[str]],
        environment: Mapping[str, str] | None = None,
        cwd: Path = PROJECT,
    ) -> None:
        self._cwd = cwd
        self._places = dict(places)
        scripts = folder / "bin"
        scripts.mkdir()
        for name, words in self._commands(folder, programs).items():
            script = scripts / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            script.chmod(0o755)
        path = f"{scripts}:{os.environ['PATH']}"
        self.environment = os.environ | dict(environment or {}) | {"PATH": path}

    @staticmethod
    def _commands(folder: Path, programs: Mapping[str, list[str]]) -> dict[str, list[str]]:
        return {name: tool_command(folder, tool) for name, tool in TOOLS.items()} | dict(programs)

    def here(self, command: str) -> str:
        for written, place in self._places.items():
            command = command.replace(written, place)
        return command

    def run(self, command: str, *, typed: str = "") -> str:
        """What it prints. `typed`: its input."""
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.here(command)],
            cwd=self._cwd,
            env=self.environment,
            input=typed,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, (command, result.stdout, result.stderr)
        # The console consumer counts on stderr.
        counted = re.findall(r"^Processed a total of .*$", result.stderr, re.MULTILINE)
        return "\n".join([result.stdout.rstrip("\n"), *counted])
