"""What lies around lost offsets: transactions that cross their borders, and offsets by time.

In both modes, from a log whose records are known one by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from archive_only_process import ArchiveOnlyProcess
from archived_topics import SETTINGS
from client_readers import PYTHON_CLIENTS
from confluent_kafka import Producer
from fetchproxy_command import archive_once
from folder_fixture import folder_fixture
from gap_stack import ARCHIVE_ONLY, SERVE
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import archived_ends, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

# Records are later than the markers of transactions, which have the broker's time and would be
# found too: by so much at the moment when they are written.
AHEAD_MS = 600_000
STEP_MS = 10
# What the broker of `kafka_server` knows; an archive alone knows all of them.
VERSIONS = {SERVE: range(1, 11), ARCHIVE_ONLY: range(1, 12)}
SPECIAL_FROM = {-1: 1, -2: 1, -3: 7}


@dataclass
class Log:
    """One partition, written record by record: an offset is known before it is written."""

    kafka: KafkaServer
    store: str
    topic: str
    end: int = 0
    archived_to: int = 0
    offsets: set[int] = field(default_factory=set)  # of records that some tier has
    committed: set[int] = field(default_factory=set)
    begin_ms: int = field(default_factory=lambda: int(time.time() * 1000) + AHEAD_MS)
    _open: dict[str, list[int]] = field(default_factory=dict)
    _producers: dict[str, Producer] = field(default_factory=dict)

    def write(self, count: int, transaction: str = "") -> None:
        """One batch. `transaction`: in that one, which is begun if need be."""
        producer = self._producer(transaction)
        if transaction and transaction not in self._open:
            producer.begin_transaction()
            self._open[transaction] = []
        written = range(self.end, self.end + count)
        for offset in written:
            at = self.begin_ms + STEP_MS * offset
            producer.produce(self.topic, b"v" * 100, b"%d" % offset, 0, timestamp=at)
        assert producer.flush(60) == 0
        self.end += count
        self.offsets.update(written)
        if transaction:
            self._open[transaction] += written
        else:
            self.committed.update(written)

    def finish(self, transaction: str, *, commit: bool) -> None:
        """Its marker takes an offset, too, and is there when this returns."""
        producer = self._producer(transaction)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
        written = self._open.pop(transaction)
        self.end += 1
        with RawConnection(self.kafka.bootstrap) as raw:
            wait_for("the marker", lambda: raw.list_offset(7, self.topic, -1)[2] == self.end)
        if commit:
            self.committed.update(written)

    def archive(self, code: int = 0) -> None:
        """As far as no transaction is open. Exit code 2 tells that there are lost records."""
        settings = {**SETTINGS, "archive.segment_bytes_max": 2_000}
        ended = archive_once(self.kafka.bootstrap, self.store, self.topic, settings)
        assert ended.returncode == code, ended.stderr
        first_open = min((written[0] for written in self._open.values()), default=self.end)
        self.archived_to = archived_ends(self.store, self.topic)[0]
        assert self.archived_to == first_open

    def trim(self) -> None:
        """The broker forgets all; what is not archived is lost."""
        trim(self.kafka.bootstrap, self.topic, {0: self.end})
        self.offsets -= set(range(self.archived_to, self.end))
        self.committed &= self.offsets

    def trim_archived(self) -> None:
        trim(self.kafka.bootstrap, self.topic, {0: self.archived_to})

    def expected(self, mode: str, isolation: str) -> list[int]:
        readable = self.committed & self.offsets if isolation == "read_committed" else self.offsets
        return sorted(offset for offset in readable if offset < self.end_in(mode))

    def end_in(self, mode: str) -> int:
        return self.archived_to if mode == ARCHIVE_ONLY else self.end

    def close(self) -> None:
        """Producers go before their broker does."""
        self._producers.clear()

    def _producer(self, transaction: str) -> Producer:
        if transaction not in self._producers:
            settings: dict[str, object] = {"bootstrap.servers": self.kafka.bootstrap}
            if transaction:
                settings["transactional.id"] = f"{self.topic}-{transaction}"
            self._producers[transaction] = Producer(settings)
            if transaction:
                self._producers[transaction].init_transactions(60)
        return self._producers[transaction]


def across_the_borders(log: Log) -> None:
    """Each border of the gap lies in an aborted transaction, and in one that is committed."""
    log.write(10, "aborted behind the archive's end")
    log.write(10, "aborted in the gap")
    log.write(10)
    log.finish("aborted in the gap", commit=False)
    log.write(5)
    log.write(5, "open at the archive's end")
    log.finish("aborted behind the archive's end", commit=False)
    log.archive()
    log.finish("open at the archive's end", commit=True)
    log.write(10, "begun in the gap, aborted")
    log.write(10, "begun in the gap, committed")
    log.write(10, "lost with its marker")
    log.finish("lost with its marker", commit=False)
    log.trim()
    log.write(10, "begun in the gap, aborted")
    log.write(10, "begun in the gap, committed")
    log.write(10)
    log.finish("begun in the gap, committed", commit=True)
    log.write(10, "begun in the gap, aborted")
    log.finish("begun in the gap, aborted", commit=False)
    log.write(10)
    log.write(5, "aborted in the live log")
    log.archive(code=2)
    log.trim_archived()
    log.write(5, "aborted in the live log")
    log.write(5, "committed in the live log")
    log.finish("aborted in the live log", commit=False)
    log.finish("committed in the live log", commit=True)


def at_the_archives_end(log: Log) -> None:
    """Behind what is archived comes the gap, and then the broker's log."""
    log.write(10, "aborted in the gap")
    log.write(10)
    log.finish("aborted in the gap", commit=False)
    log.write(10, "begun in the archive")
    log.archive()
    log.write(10, "begun in the gap")
    log.trim()
    log.write(10, "begun in the archive")
    log.write(10, "begun in the gap")
    log.finish("begun in the archive", commit=False)
    log.write(10)
    log.finish("begun in the gap", commit=True)


@pytest.fixture(scope="module")
def logs(kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Log]:
    store = tmp_path_factory.mktemp("borders-store").as_uri()
    made = {}
    for write in (across_the_borders, at_the_archives_end):
        name = write.__name__.replace("_", "-")
        kafka_server.create_topic(name, 1)
        log = made[name] = Log(kafka_server, store, name)
        write(log)
        log.close()
    return made


@folder_fixture
def served(
    kafka_server: KafkaServer, logs: dict[str, Log], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, ProxyProcess]]:
    [store] = {log.store for log in logs.values()}
    folders = {mode: tmp_path_factory.mktemp(f"borders-{mode}") for mode in VERSIONS}
    with ExitStack() as parts:
        yield {
            SERVE: parts.enter_context(
                ProxyProcess(kafka_server.bootstrap, store, folders[SERVE], settings=SETTINGS)
            ),
            ARCHIVE_ONLY: parts.enter_context(ArchiveOnlyProcess(store, folders[ARCHIVE_ONLY])),
        }


LOGS = ("across-the-borders", "at-the-archives-end")


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("mode", VERSIONS)
@pytest.mark.parametrize("client", PYTHON_CLIENTS)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_each_record_that_counts_comes_once(
    logs: dict[str, Log],
    served: dict[str, ProxyProcess],
    isolation: str,
    client: str,
    mode: str,
    name: str,
) -> None:
    log, setting = logs[name], "isolation_level"
    if client == "confluent-kafka":
        setting = "isolation.level"
    more = {setting: isolation}
    records = PYTHON_CLIENTS[client](served[mode].bootstrap, name, {0: log.end_in(mode)}, **more)
    assert [offset for offset, _, _ in records[0]] == log.expected(mode, isolation)
    assert [int(key) for _, key, _ in records[0]] == log.expected(mode, isolation)


@pytest.mark.parametrize("name", [LOGS[0], pytest.param(LOGS[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", VERSIONS)
def test_a_time_is_found_at_the_first_record_behind_it_that_some_tier_has(
    logs: dict[str, Log], served: dict[str, ProxyProcess], mode: str, name: str
) -> None:
    log = logs[name]
    offsets = log.expected(mode, "read_uncommitted")
    for version in VERSIONS[mode]:
        with RawConnection(served[mode].bootstrap) as raw:
            for at in range(log.end + 2):
                for around_ms in (-1, 0, 1):
                    time_ms = log.begin_ms + STEP_MS * at + around_ms
                    first = at if around_ms <= 0 else at + 1
                    first_behind = next((o for o in offsets if o >= first), None)
                    expected = (
                        (0, -1, -1)
                        if first_behind is None
                        else (0, log.begin_ms + STEP_MS * first_behind, first_behind)
                    )
                    assert raw.list_offset(version, name, time_ms) == expected
            wanted_at = {-1: log.end_in(mode), -2: offsets[0], -3: offsets[-1]}
            for special, from_version in SPECIAL_FROM.items():
                if version >= from_version:
                    found_at = raw.list_offset(version, name, special)
                    assert found_at[::2] == (0, wanted_at[special]), (version, special)
