"""The clients of the lab that are written in Go and share no code with each other: franz-go,
kafka-go and sarama. Their sources are in lab/clients; an edit of one builds it anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab import go, sources


def franz_reader_entry() -> str:
    return sources.entry_of("franz-reader", sources.CLIENTS / "franz_reader")


def franz_reader() -> Path:
    """The built executable. Raises PartMissing."""
    return go.build_sources(franz_reader_entry(), sources.CLIENTS / "franz_reader")


def kafka_go_client() -> Path:
    """The same; main.go says what it takes."""
    folder = sources.CLIENTS / "kafka_go_client"
    return go.build_sources(sources.entry_of("kafka-go-client", folder), folder)


def sarama_client_entry() -> str:
    return sources.entry_of("sarama-client", sources.CLIENTS / "sarama_client")


def sarama_client() -> Path:
    """The same; main.go says what it takes."""
    return go.build_sources(sarama_client_entry(), sources.CLIENTS / "sarama_client")


def module_version(program: str, module: str) -> str:
    """The version of `module` that lab/clients/`program` is pinned to, without its v."""
    for line in (sources.CLIENTS / program / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if words[:1] == [module]:
            return words[1].removeprefix("v")
    raise LookupError(f"{module} is not in the go.mod of {program}")


def franz_reader_command(
    bootstrap: str,
    topic: str,
    ends: Mapping[int, int],
    isolation: str = "read_uncommitted",
    timeout_s: float = 60.0,
) -> list[str]:
    """Reads each partition of `ends` from 0 up to, not including, its end offset.

    Prints `partition offset crc32(key) crc32(value)` (8 hex digits, `-` for null) per record and
    exits with status 1 on any error, OFFSET_OUT_OF_RANGE and the time-out among them.
    """
    wanted = ",".join(f"{partition}:{end}" for partition, end in ends.items())
    return [
        str(franz_reader()),
        *("-bootstrap", bootstrap, "-topic", topic, "-ends", wanted),
        *("-isolation", isolation, "-timeout", f"{timeout_s}s"),
    ]
