"""Topics with a hole that nobody has any more, one broker, and the proxies that readers use.

The hole is made as it is in life: the broker drops records while no archiver runs.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from archive_only_process import ArchiveOnlyProcess
from archived_topics import SETTINGS
from fetchproxy_command import archive_once
from matrix_client import Line
from proxy_process import ProxyProcess
from topic_data import TopicData, archived_ends, produce, trim

from lab.kafka import KafkaServer

FIRST_LOST, FIRST_KEPT = 2000, 3000
ARCHIVED_BEHIND, LIVE = 500, 700

# The archive goes on behind the hole (MIDDLE), or it ends there and the broker's log begins (END).
MIDDLE, END = "gap-middle", "gap-end"
# As END, but read through a proxy that also archives.
ACCUMULATED = "gathered-end"
SERVE, ARCHIVING, ARCHIVE_ONLY = "serve", "archiving", "archive-only"
# The same for those who would rather stop than go on behind a loss.
SERVE_STOP, ARCHIVE_ONLY_STOP = "serve-stop", "archive-only-stop"
_STOP = {"gateway.gap_policy": "error"}


@dataclass(frozen=True)
class GapCase:
    """`count` records are there, of partition 0."""

    mode: str
    topic: str
    bootstrap: str
    broker: str
    expected: list[Line]


class GapStack:
    """A context manager. `case(mode, topic)` starts what serves it when first asked for."""

    def __init__(self, kafka: KafkaServer, folder: Path) -> None:
        self.kafka = kafka
        self._folder = folder
        (folder / "store").mkdir(parents=True)
        self._store = (folder / "store").as_uri()
        self._written: dict[str, TopicData] = {}
        self._archived: dict[str, int] = {}
        self.proxies: dict[str, ProxyProcess] = {}
        self._parts = ExitStack()

    def __enter__(self) -> GapStack:
        return self

    def __exit__(self, *error: object) -> None:
        self._parts.close()

    def case(self, mode: str, topic: str) -> GapCase:
        # Before any proxy starts: one that runs may know a new topic's archive some seconds later
        # (`LIST_INTERVAL_S`), and here the broker drops its records at once.
        for each in sorted({MIDDLE, END, topic} - self._written.keys()):
            self._written[each] = self._with_a_gap(each)
        if mode not in self.proxies:
            self.proxies[mode] = self._parts.enter_context(self._proxy(mode))
        alone = mode in (ARCHIVE_ONLY, ARCHIVE_ONLY_STOP)
        end = self._archived[topic] if alone else None
        lines = [
            (0, offset, key.decode(), value.decode())
            for offset, key, value in self._written[topic].written[0]
            if not FIRST_LOST <= offset < FIRST_KEPT and (end is None or offset < end)
        ]
        bootstrap = self.proxies[mode].bootstrap
        return GapCase(mode, topic, bootstrap, self.kafka.bootstrap, lines)

    def _proxy(self, mode: str) -> ProxyProcess:
        folder = self._folder / mode
        folder.mkdir()
        stop = _STOP if mode in (SERVE_STOP, ARCHIVE_ONLY_STOP) else {}
        if mode in (ARCHIVE_ONLY, ARCHIVE_ONLY_STOP):
            return ArchiveOnlyProcess(self._store, folder, stop)
        archive = ACCUMULATED if mode == ARCHIVING else None
        settings = {**SETTINGS, **stop}
        broker = self.kafka.bootstrap
        return ProxyProcess(broker, self._store, folder, archive=archive, settings=settings)

    def _with_a_gap(self, topic: str) -> TopicData:
        self.kafka.create_topic(topic, 1)
        data = TopicData(topic)
        self._append(data, FIRST_LOST)
        self._archive(data)
        self._append(data, FIRST_KEPT - FIRST_LOST)
        trim(self.kafka.bootstrap, topic, {0: FIRST_KEPT})
        if topic == MIDDLE:
            self._append(data, ARCHIVED_BEHIND)
            self._archive(data, code=2)
            trim(self.kafka.bootstrap, topic, {0: FIRST_KEPT + ARCHIVED_BEHIND})
        self._append(data, LIVE)
        return data

    def _append(self, data: TopicData, count: int) -> None:
        # kafkajs can read gzip and nothing else by itself.
        produce(self.kafka.bootstrap, data, count, compression="gzip")

    def _archive(self, data: TopicData, code: int = 0) -> None:
        """`code`: the exit code; 2 tells that the broker had deleted what was not archived."""
        ended = archive_once(self.kafka.bootstrap, self._store, data.topic, SETTINGS)
        assert ended.returncode == code, ended.stderr
        ends = archived_ends(self._store, data.topic)
        assert ends == data.ends(self.kafka.bootstrap)
        self._archived[data.topic] = ends[0]
