"""The lab's clients written in Go, which share no code: franz-go, kafka-go and sarama.

Their sources are in lab/clients. After an edit of a source, its client is rebuilt.
"""

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
    """The built executable. main.go lists its arguments. Raises PartMissing."""
    folder = sources.CLIENTS / "kafka_go_client"
    return go.build_sources(sources.entry_of("kafka-go-client", folder), folder)


def sarama_client_entry() -> str:
    return sources.entry_of("sarama-client", sources.CLIENTS / "sarama_client")


def sarama_client() -> Path:
    """The built executable. main.go lists its arguments. Raises PartMissing."""
    return go.build_sources(sarama_client_entry(), sources.CLIENTS / "sarama_client")


def module_version(program: str, module: str) -> str:
    """The version of `module` in the go.mod of lab/clients/`program`, without its v."""
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
    """Reads each partition of `ends` from 0 to its end offset (exclusive).

    Prints `partition offset crc32(key) crc32(value)` (8 hex digits, `-` for null) per record. Exits
    with status 1 on any error, including OFFSET_OUT_OF_RANGE and the timeout.
    """
    ends_text = ",".join(f"{partition}:{end}" for partition, end in ends.items())
    return [
        str(franz_reader()),
        *("-bootstrap", bootstrap, "-topic", topic, "-ends", ends_text),
        *("-isolation", isolation, "-timeout", f"{timeout_s}s"),
    ]
