"""A broker comes back with an empty disk: the archive is the last copy, and an operator decides.

Each topic's log directory is deleted between the broker's stop and its start. Until the decision
nothing of the archive is hidden, deleted or trimmed, and readers get it. Then each choice of
`fetchproxy resolve` does what it promises.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from archive_process import archive_process, segments, verify
from archived_topics import SETTINGS, new_store
from fetchproxy_command import Ended, fetchproxy, output_of
from fetchproxy_protocol.record_batch import walk
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import TopicData, archived_ends, produce, trim

from lab import limited
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

END, DELETED = 400, 150
FINISHED = "COPY_SEGMENT_FINISHED"
# Settings that could delete: retention of both tiers and short graces.
DELETING: dict[str, object] = {
    "archive.retention_grace_ms": 1000,
    "limits.writing.retention_check_interval_ms": 100,
    "limits.writing.retention_clock_settle_ms": 0,
    "archive.local_retention_ms": 1_000,
}
NAMES = ("keep", "truncate", "new-history", "raised-keep", "raised-truncate", "raised-new-history")


@dataclass
class World:
    kafka: KafkaServer
    store: str
    proxy: ProxyProcess
    settings: dict[str, object]
    data: dict[str, TopicData]
    archived: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    archive_log: Path = Path()

    def resolve(self, topic: str, *arguments: str) -> Ended:
        where = ("--store", self.store, "--bootstrap", self.kafka.bootstrap)
        settings = limited.options(self.settings)
        return fetchproxy("resolve", f"{topic}-0", *arguments, *where, *settings)

    def resolved(self, topic: str, *arguments: str) -> str:
        """The output of the command, which must succeed."""
        outcome = self.resolve(topic, *arguments)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    def read(self, topic: str, offset: int) -> int:
        """The base offset of the batch that a fetch of `offset` through the proxy gives first."""
        with RawConnection(self.proxy.bootstrap) as raw:
            fetched = raw.fetch(12, topic, None, offset, wait_ms=20_000)
        assert fetched.error == 0
        return next(b.base_offset for b in walk(fetched.records) if b.last_offset >= offset)

    def logged(self, event: str, name: str) -> list[dict[str, Any]]:
        """The archiver's log entries of this event and topic."""
        entries = map(json.loads, self.archive_log.read_text().splitlines())
        return [e for e in entries if e["event"] == event and e.get("topic") == f"again-{name}"]

    def log_start(self, topic: str) -> int:
        """The log start of the broker's own log."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.kafka.bootstrap, "group.id": "w"}
        )
        try:
            place = confluent_kafka.TopicPartition(topic, 0)
            start: int = consumer.get_watermark_offsets(place, timeout=30)[0]
            return start
        finally:
            consumer.close()

    def finished(self, topic: str) -> list[dict[str, Any]]:
        return [row for row in segments(self.store, topic) if row["state"] == FINISHED]


def lose_disk(kafka: KafkaServer, topics: list[str]) -> None:
    kafka.stop()
    for topic in topics:
        shutil.rmtree(kafka.data_dir / f"{topic}-0")
    kafka.start()


def begun_again(
    kafka: KafkaServer, folder: Path, names: tuple[str, ...], settings: dict[str, object]
) -> Iterator[World]:
    store = new_store(folder)
    archiver = archive_process(
        kafka.bootstrap, store, "again-.*", folder, {**settings, "console.listen": "127.0.0.1:0"}
    )
    data = {name: TopicData(f"again-{name}") for name in names}
    with ExitStack() as stack:
        stack.callback(archiver.stop)
        for name in names:
            kafka.create_topic(f"again-{name}", config={"retention.ms": "-1"})
            produce(kafka.bootstrap, data[name], END)
        archiver.start()
        for name in names:
            topic = f"again-{name}"
            wait_for("archive", lambda topic=topic: archived_ends(store, topic) == {0: END})
        proxy_settings = {**SETTINGS, **{k: v for k, v in settings.items() if "metadata" in k}}
        proxy = stack.enter_context(
            ProxyProcess(kafka.bootstrap, store, folder, settings=proxy_settings)
        )
        for name in names:
            if name.startswith("raised"):
                trim(proxy.bootstrap, f"again-{name}", {0: DELETED})
        here = World(kafka, store, proxy, settings, data, archive_log=folder / "archive.log")

        def is_deleted(topic: str) -> bool:
            rows = here.finished(topic)
            return all(row["last_offset"] >= DELETED for row in rows)

        for name in names:
            if name.startswith("raised"):
                topic = f"again-{name}"
                wait_for("the deleted to go", lambda topic=topic: is_deleted(topic))
            here.archived[name] = here.finished(f"again-{name}")
        lose_disk(kafka, [f"again-{name}" for name in names])
        for name in names:
            data[name].written.clear()
            produce(kafka.bootstrap, data[name], 100)
            wait_for("the stop", lambda name=name: here.logged("partition_stopped", name))
        yield here


def goes_on(here: World, name: str, records: int, end: int) -> None:
    produce(here.kafka.bootstrap, here.data[name], records)
    topic = f"again-{name}"
    wait_for("to go on", lambda: archived_ends(here.store, topic) == {0: end})


def says_that_it_waits(here: World, topic: str) -> bool:
    output = output_of("segments", "--store", here.store, "--topic", topic)
    stopped_lines = [line for line in output.splitlines() if line.startswith("partition_stopped: ")]
    return len(stopped_lines) == 1 and stopped_lines[0].endswith(f"resolve {topic}-0")


def check_waiting(here: World, name: str) -> None:
    """Check the state before the decision."""
    topic = f"again-{name}"
    start = DELETED if name.startswith("raised") else 0
    for offset in (max(start, 100) + 1, 250, END - 1):
        assert here.read(topic, offset) <= offset, "served from the archive"
    assert here.read(topic, 50) <= 50, "what the broker has is the broker's"
    assert here.finished(topic) == here.archived[name], "nothing is hidden or deleted"
    assert len(here.logged("partition_stopped", name)) == 1, "it is said once"
    assert not here.logged("archive_truncated", name)
    assert here.log_start(topic) == 0, "nothing is trimmed"
    wait_for("the word in the store", lambda: says_that_it_waits(here, topic))
    assert "would be resolved" in here.resolved(topic, "--truncate", "--dry-run")
    assert here.finished(topic) == here.archived[name]


def check_keep(here: World, name: str) -> None:
    topic = f"again-{name}"
    assert f"archiving continues at offset {END}" in here.resolved(topic, "--keep")
    goes_on(here, name, 500, 600)
    assert here.log_start(topic) == 0, "the broker's records below the end were never archived"
    rows = here.finished(topic)
    assert rows[: len(here.archived[name])] == here.archived[name]
    assert rows[len(here.archived[name])]["base_offset"] == END
    trim(here.kafka.bootstrap, topic, {0: 600})
    assert here.read(topic, 300) <= 300
    assert here.read(topic, 500) <= 500


def check_truncate(here: World, name: str) -> None:
    topic = f"again-{name}"
    here.resolved(topic, "--truncate")
    goes_on(here, name, 500, 600)
    wait_for("the old ones to go", lambda: here.finished(topic) == segments(here.store, topic))
    assert here.finished(topic)[0]["base_offset"] == 0
    trim(here.kafka.bootstrap, topic, {0: 600})
    assert here.read(topic, 50) <= 50
    assert here.read(topic, 300) <= 300


def check_new_history(here: World, name: str) -> None:
    topic = f"again-{name}"
    here.resolved(topic, "--new-history")
    goes_on(here, name, 500, 600)
    rows = here.finished(topic)
    aside = [row for row in rows if row["put_aside"]]
    assert [r["base_offset"] for r in aside] == [r["base_offset"] for r in here.archived[name]]
    trim(here.kafka.bootstrap, topic, {0: 600})
    assert here.read(topic, 50) <= 50
    here.resolved(topic, "--keep")
    rows = here.finished(topic)
    assert all(row in rows for row in here.archived[name]), "shown again"
    assert all(row["last_offset"] < END for row in rows if row["put_aside"])
    assert here.read(topic, 300) <= 300
    assert here.read(topic, 500) <= 500


CHECKS: dict[str, Callable[[World, str], None]] = {
    "keep": check_keep,
    "truncate": check_truncate,
    "new-history": check_new_history,
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((NAMES, "store"), id="store", marks=pytest.mark.slow),
        pytest.param((NAMES, "topic"), id="topic", marks=pytest.mark.slow),
    ],
)
def world(
    request: pytest.FixtureRequest,
    serve_part: Callable[[str, KafkaServer], Iterator[KafkaServer]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    names, manager = request.param
    folder = tmp_path_factory.mktemp("again")
    settings: dict[str, object] = dict(DELETING)
    if manager == "topic":
        settings |= {"metadata.manager": "topic", "metadata.topic_replication_factor": 1}
    for kafka in serve_part("kafka", KafkaServer(data_dir=folder / "kafka")):
        yield from begun_again(kafka, folder, names, settings)


def test_nothing_goes_while_nobody_has_decided(world: World) -> None:
    for name in world.data:
        check_waiting(world, name)
    verify(world.store)


@pytest.mark.remedy("partition_stopped", "log_begins_again")
def test_each_answer_does_what_it_says(world: World) -> None:
    for name in world.data:
        CHECKS[name.removeprefix("raised-")](world, name)
    verify(world.store)
