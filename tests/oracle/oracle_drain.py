"""Reading on and on, as a consumer does: by sessions or without, over both tiers, to the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from oracle_asks import Place
from oracle_fetch import TOPIC_IDS_FROM, fetch_entries, fetch_fields, fetched_parts
from oracle_log import NormalBatch, filter_aborted
from oracle_rules import Findings, Part, compare_log_start
from oracle_world import Key, TwinTopic, World

ROUNDS_MAX = 3_000  # every round that brings nothing has waited; only a hang gets there
SESSIONS_FROM = 7
SESSION_NOT_FOUND, INVALID_EPOCH, SESSION_TOPIC_ID = 70, 71, 106


@dataclass
class _Reader:
    """What one side has given for one topic, and where to go on."""

    position: int
    batches: list[NormalBatch] = field(default_factory=list)
    committed: list[tuple[int, int]] = field(default_factory=list)
    marks: tuple[int, int, int] = (-1, -1, -1)
    error: int = 0

    def take(self, part: Part, isolation: int) -> None:
        self.error = part.error
        self.marks = part.marks
        new = [batch for batch in part.batches if batch.last_offset >= self.position]
        if part.batches:
            kept_spans = filter_aborted(part.batches, part.aborted or []) if isolation else []
            self.committed += [span for span in kept_spans if span[1] >= self.position]
            self.position = part.batches[-1].last_offset + 1
        self.batches += new


@dataclass(frozen=True)
class DrainAsk:
    """All of `places`' partitions to their ends, through one session or sessionless.

    `hop`: now and then one of them is forgotten for a round, and asked for again.
    """

    version: int
    places: tuple[tuple[int, Place], ...]
    isolation: int = 0
    partition_bytes: int = 1 << 20
    max_bytes: int = 50 << 20
    session: bool = True
    hop: bool = False
    seed: int = 0
    min_bytes: int = 1
    wait_ms: int = 20

    def __str__(self) -> str:
        where = ", ".join(f"t{topic}@{place}" for topic, place in self.places)
        how = ("session" + (", hopping" if self.hop else "")) if self.session else "sessionless"
        text = f"drain v{self.version} {where} isolation={self.isolation} {how}"
        return f"{text} bytes={self.partition_bytes}/{self.max_bytes} seed={self.seed}"

    def run(self, world: World, topics: list[TwinTopic], findings: Findings) -> None:
        starts = {topics[n].key: place.offset(topics[n]) for n, place in self.places}
        drained_topics = [topics[n] for n, _ in self.places]
        chosen = {t.key: t for t in drained_topics if t.log.log_start <= starts[t.key] <= t.log.end}
        if not chosen:
            return
        sides = world.both(lambda side: self._drain(world, side, chosen, starts))
        for key, topic in chosen.items():
            self._compare(findings, topic, starts[key], sides[0][key], sides[1][key])

    def _compare(
        self, findings: Findings, topic: TwinTopic, start: int, kafka: _Reader, proxy: _Reader
    ) -> None:
        end = topic.log.visible_end(self.isolation)
        expected = [b for b in topic.log.from_offset(start) if b.last_offset < end]
        for name, reader in (("kafka", kafka), ("fetchproxy", proxy)):
            findings.equal(f"drain.error of {name}", 0, reader.error)
            if reader.batches != expected:
                findings.add(
                    f"drain.records of {name}", [*map(str, expected)], [*map(str, reader.batches)]
                )
            if self.isolation:
                committed = topic.log.committed_data(expected)
                findings.equal(f"drain.committed of {name}", committed, reader.committed)
        findings.equal("drain.high watermark, LSO", kafka.marks[:2], proxy.marks[:2])
        if kafka.marks[2] >= 0:  # as versions below 5 do not
            compare_log_start(findings, topic, kafka.marks[2], proxy.marks[2])

    def _drain(
        self, world: World, side: Any, topics: dict[Key, TwinTopic], starts: dict[Key, int]
    ) -> dict[Key, _Reader]:
        i = world.sides.index(side)
        readers = {key: _Reader(starts[key]) for key in topics}
        goals = {key: t.log.visible_end(self.isolation) for key, t in topics.items()}
        rng = random.Random(self.seed)
        session = _Session(self, world, i, topics)
        away: Key | None = None
        for _ in range(ROUNDS_MAX):
            keys_left = [k for k, r in readers.items() if r.position < goals[k] and not r.error]
            if not keys_left:
                break
            away = (
                rng.choice(keys_left)
                if self.hop and len(keys_left) > 1 and rng.random() < 0.3
                else None
            )
            positions = {key: r.position for key, r in readers.items() if key != away}
            for key, part in session.fetch(positions).items():
                readers[key].take(part, self.isolation)
        else:
            raise AssertionError(f"{side.name}: {ROUNDS_MAX} fetches and not at the end: {readers}")
        self._last_look(session, readers)
        return readers

    def _last_look(self, session: _Session, readers: dict[Key, _Reader]) -> None:
        """A full fetch at the end, which must name every partition and its watermarks."""
        session.restart()
        named = session.fetch({key: r.position for key, r in readers.items()})
        assert named.keys() == readers.keys(), f"a full fetch named {sorted(named)}"
        for key, part in named.items():
            readers[key].take(part, self.isolation)


class _Session:
    """A client's half of a fetch session (KIP-227), as Kafka's FetchSessionHandler keeps it."""

    def __init__(self, ask: DrainAsk, world: World, i: int, topics: dict[Key, TwinTopic]) -> None:
        self._ask, self._side, self._i, self._topics = ask, world.sides[i], i, topics
        self._offsets_in_session: dict[Key, int] = {}
        self.id, self.epoch = 0, 0

    @property
    def _by_session(self) -> bool:
        return self._ask.session and self._ask.version >= SESSIONS_FROM

    def restart(self) -> None:
        """Close the session, open a new one by the next fetch."""
        self.epoch = 0
        self._offsets_in_session = {}

    def fetch(self, fetch_offsets: dict[Key, int]) -> dict[Key, Part]:
        if not self._by_session:
            return self._read(self._send(fetch_offsets, [], (0, -1)), set(fetch_offsets))
        full = self.epoch == 0
        changed = {
            k: o for k, o in fetch_offsets.items() if full or self._offsets_in_session.get(k) != o
        }
        gone = [] if full else [key for key in self._offsets_in_session if key not in fetch_offsets]
        response = self._send(changed, gone, (self.id, self.epoch))
        assert response.error_code == 0, (self._side.name, response)
        self._offsets_in_session = dict(fetch_offsets)
        parts = self._read(response, set(fetch_offsets))
        if full:
            assert parts.keys() == fetch_offsets.keys(), f"a full fetch named {sorted(parts)}"
        self.id = response.session_id
        # A broker whose cache is full gives no session: then every fetch is a full one.
        self.epoch = self.epoch + 1 if self.id else 0
        return parts

    def _send(
        self, fetch_offsets: dict[Key, int], gone: list[Key], session: tuple[int, int]
    ) -> Any:
        ids, limit = self._side.topic_ids, self._ask.partition_bytes
        places = {
            key: {
                "current_leader_epoch": -1,
                "fetch_offset": offset,
                "partition_max_bytes": limit,
            }
            for key, offset in fetch_offsets.items()
        }
        fields = fetch_fields(self._ask, fetch_entries(places, ids), session)
        fields["forgotten_topics_data"] = [
            {"topic": name, "topic_id": ids[name], "partitions": [number]} for name, number in gone
        ]
        return self._side.wire.ask("Fetch", self._ask.version, fields)

    def _read(self, response: Any, keys: set[Key]) -> dict[Key, Part]:
        ids, version = self._side.topic_ids, self._ask.version
        only = {key: self._topics[key] for key in keys}
        return fetched_parts(response, version, self._i, ids, only)


@dataclass(frozen=True)
class SessionErrorAsk:
    """What goes wrong with a session: an id nobody gave, a wrong epoch, ids where names were."""

    kind: str  # "unknown", "epoch", "ids"
    version: int
    topic: int
    place: Place
    isolation: int = 0
    max_bytes: int = 1 << 20
    min_bytes: int = 1
    wait_ms: int = 10

    def __str__(self) -> str:
        return f"session error {self.kind} v{self.version} t{self.topic}@{self.place}"

    def run(self, world: World, topics: list[TwinTopic], findings: Findings) -> None:
        topic = topics[self.topic]
        responses = [self._provoke(world, i, topic) for i in (0, 1)]
        findings.equal(f"fetch.session error {self.kind}", responses[0], responses[1])

    def _provoke(self, world: World, i: int, topic: TwinTopic) -> tuple[int, int]:
        side = world.sides[i]
        part = {"current_leader_epoch": -1, "fetch_offset": self.place.offset(topic)}
        part |= {"partition_max_bytes": 1 << 20}
        entries = fetch_entries({topic.key: part}, side.topic_ids)
        if self.kind == "unknown":
            wrong = side.wire.ask("Fetch", self.version, fetch_fields(self, entries, (77, 3)))
            return wrong.error_code, wrong.session_id
        first = side.wire.ask("Fetch", self.version, fetch_fields(self, entries, (0, 0)))
        assert first.error_code == 0, (side.name, first)
        assert first.session_id, f"{side.name} gave no session"
        if self.kind == "epoch":
            fields = fetch_fields(self, [], (first.session_id, 7))
            return side.wire.ask("Fetch", self.version, fields).error_code, 0
        other = 12 if self.version >= TOPIC_IDS_FROM else TOPIC_IDS_FROM
        fields = fetch_fields(self, entries, (first.session_id, 1))
        return side.wire.ask("Fetch", other, fields).error_code, 0
