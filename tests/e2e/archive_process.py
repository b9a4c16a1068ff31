"""`fetchproxy archive`, `verify` and `segments` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archived_topics import SETTINGS
from fetchproxy_command import PROJECT, fetchproxy, output_of
from proxy_process import wait_for
from topic_data import TopicData, archived_ends, produce, trim

from lab import limited
from lab.kafka import KafkaServer
from lab.process import ServerProcess


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


def archive_with_gap(
    kafka: KafkaServer, store: str, data: TopicData, folder: Path, batches: tuple[int, int, int]
) -> None:
    """Produces so many records: those in the middle are deleted while no archiver is there."""
    archived, lost, more = batches
    topic, end = data.topic, archived + lost + more
    produce(kafka.bootstrap, data, archived)
    archiver = archive_process(kafka.bootstrap, store, topic, folder)
    archiver.start()
    try:
        wait_for("the archive", lambda: archived_ends(store, topic) == {0: archived})
        archiver.kill()
        for count in (lost, more):  # no batch lies across the gap's end
            produce(kafka.bootstrap, data, count)
        trim(kafka.bootstrap, topic, {0: archived + lost})
        archiver.start()
        wait_for("the rest", lambda: archived_ends(store, topic) == {0: end})
    finally:
        archiver.stop()


def verify(store: str) -> str:
    """The command's output; it must find nothing wrong."""
    return output_of("verify", "--store", store)


def segments(store: str, topic: str) -> list[dict[str, Any]]:
    result = fetchproxy("segments", "--store", store, "--topic", topic, "--json")
    assert result.returncode == (0 if result.stdout != "[]\n" else 2), result.stderr
    segments: list[dict[str, Any]] = json.loads(result.stdout)
    return segments
