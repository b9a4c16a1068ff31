"""A consumer that checks every response: order, bytes, offsets, errors, watermarks, time.

It starts somewhere in the log and reads to its final end. Like real clients it fetches again at
once after each response. It reopens a lost connection and continues reading at its position.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from client_connection import (
    FETCH_RESPONSE,
    ClientConnection,
    ClientFetchSession,
    FetchEntry,
    metadata_request,
)
from fetch_check import FetchCheck
from session_world import World

from fetchproxy.model import TopicIdPartition

BOOTSTRAP = ("127.0.0.1", 9192)
OFFSET_OUT_OF_RANGE = 1
# Each answer is checked against a tighter bound; this bound finds answers that never come.
UNANSWERED_S_MAX = 30.0


@dataclass(slots=True)
class Habits:
    """How this consumer fetches; by seed."""

    version: int
    sessions: bool
    isolation: int
    max_wait_ms: int
    max_bytes: int
    partition_bytes: int
    seeks: float
    pauses: float
    dawdles: float
    pipelines: float

    @classmethod
    def draw(cls, rng: Random) -> Habits:
        version = rng.choice([4, 7, 11, 12, 12, 13, 13, 13])
        return cls(
            version=version,
            sessions=version >= 7 and rng.random() < 0.6,
            isolation=rng.choice([0, 1]),
            max_wait_ms=rng.choice([0, 20, 100, 500, 500, 2_000, 5_000]),
            max_bytes=rng.choice([1, 2_000, 20_000, 1 << 20]),
            partition_bytes=rng.choice([1, 500, 5_000, 1 << 20]),
            seeks=rng.choice([0, 0, 0.005]),
            pauses=rng.choice([0, 0, 0.02]),
            dawdles=rng.choice([0, 0, 0.02]),
            pipelines=rng.choice([0, 0, 0.1]),
        )


@dataclass(slots=True)
class SimulatedConsumer:
    """`positions`: the next offset of each partition.
    `above`: partitions that start above the end of the log and have not yet had "out of range".
        Such a partition must get that error, and then starts at the beginning
        (auto.offset.reset=earliest).
    """

    world: World
    name: str
    rng: Random
    habits: Habits
    positions: dict[TopicIdPartition, int]
    early: int = 0
    turns: int = 0
    skipped_records: Counter[TopicIdPartition] = field(default_factory=Counter)
    starving_since: dict[TopicIdPartition, float] = field(default_factory=dict)
    above: set[TopicIdPartition] = field(default_factory=set)
    _paused: set[TopicIdPartition] = field(default_factory=set)

    def __post_init__(self) -> None:
        final_of = {tp: self.world.log_of(tp).final_offset for tp in self.positions}
        self.above = {tp for tp, at in self.positions.items() if at > final_of[tp]}

    async def run(self) -> None:
        leaders = self.world.cluster.leaders
        by_node: dict[int, list[TopicIdPartition]] = {}
        for tp in self.positions:
            by_node.setdefault(leaders[tp.topic, tp.partition], []).append(tp)
        async with asyncio.TaskGroup() as nodes:
            for node_id, tps in by_node.items():
                nodes.create_task(self._read(node_id, tps), name=f"{self.name} at {node_id}")
        self.world.note(self.name, "is done")

    async def _read(self, node_id: int, tps: list[TopicIdPartition]) -> None:
        """Read all of the node's partitions to their final ends."""
        session = ClientFetchSession(self.habits.sessions)
        while not self._done(tps):
            connection = None
            try:
                connection = await self._dial(node_id)
                while not self._done(tps):
                    await self._fetch(connection, session, tps)
                if not self.habits.sessions and self.rng.random() < 0.3:
                    await self._ask_above_the_end(connection, self.rng.choice(tps))
            except OSError as error:
                self.world.note(self.name, "lost", type(error).__name__)
                await asyncio.sleep(self.rng.uniform(0.02, 0.2))
            finally:
                session.disconnected()
                self.starving_since.clear()
                if connection is not None:
                    await connection.close()

    def _done(self, tps: list[TopicIdPartition]) -> bool:
        if not self.above.isdisjoint(tps):
            return False
        return all(self.positions[tp] >= self.world.log_of(tp).final_offset for tp in tps)

    async def _dial(self, node_id: int) -> ClientConnection:
        loop = asyncio.get_running_loop()
        make = lambda: ClientConnection(self.name)  # noqa: E731
        _, bootstrap = await loop.create_connection(make, *BOOTSTRAP)
        assert isinstance(bootstrap, ClientConnection)
        try:
            topics = sorted({tp.topic for tp in self.positions})
            response = (await bootstrap.ask(*metadata_request(topics))).message
        finally:
            await bootstrap.close()
        address = {b.node_id: (b.host, b.port) for b in response.brokers}[node_id]
        assert address[0] == BOOTSTRAP[0], f"a broker's own address reached the client: {address}"
        _, connection = await loop.create_connection(make, *address)
        assert isinstance(connection, ClientConnection)
        return connection

    # -- one fetch -------------------------------------------------------------------------------
    async def _fetch(
        self,
        connection: ClientConnection,
        session: ClientFetchSession,
        tps: list[TopicIdPartition],
    ) -> None:
        rng, habits = self.rng, self.habits
        self._change_mind(tps)
        order = [tp for tp in tps if tp not in self._paused]
        if not order:
            await asyncio.sleep(0.05)
            return
        if not habits.sessions:
            self.turns += 1  # as clients without a session do, to be fair to all partitions
            at = self.turns % len(order)
            order = order[at:] + order[:at]
        entries = {tp: FetchEntry(self.positions[tp], habits.partition_bytes) for tp in order}
        limits = {
            "max_wait_ms": habits.max_wait_ms,
            "min_bytes": 1,
            "max_bytes": habits.max_bytes,
            "isolation_level": habits.isolation,
        }
        request, incremental = session.request(entries, habits.version, limits)
        before = self._tail_at(entries)
        waiting = connection.ask(request, FETCH_RESPONSE, habits.version)
        behind = None
        if rng.random() < habits.pipelines:
            behind = connection.ask(*metadata_request(sorted({tp.topic for tp in tps})))
        if rng.random() < habits.dawdles:
            connection.dawdle(rng.uniform(0.01, 1.0))
        try:
            async with asyncio.timeout(habits.max_wait_ms / 1000 + UNANSWERED_S_MAX):
                responded = await waiting
        except TimeoutError:
            raise AssertionError(f"{self.name}: no answer for {entries}") from None
        check = FetchCheck(self, entries, before, responded, incremental)
        check.run(session)
        if behind is not None:
            await behind
        if not habits.max_wait_ms and check.empty:
            await asyncio.sleep(0.02)  # a client that does not wait in the fetch waits here

    async def _ask_above_the_end(self, connection: ClientConnection, tp: TopicIdPartition) -> None:
        """The answer is "out of range" once that is known for sure; until then there is no data."""
        offset = self.world.log_of(tp).final_offset + self.rng.choice([1, 1_000])
        limits = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1_000, "isolation_level": 0}
        session = ClientFetchSession(False)
        while True:
            request, _ = session.request(
                {tp: FetchEntry(offset, 1_000)}, self.habits.version, limits
            )
            responded = await connection.ask(request, FETCH_RESPONSE, self.habits.version)
            part = responded.message.responses[0].partitions[0]
            assert not part.records, f"{self.name}: records above the end of {tp}"
            self.world.note(self.name, "above the end", part.error_code)
            if part.error_code == OFFSET_OUT_OF_RANGE:
                return
            assert part.error_code == 0

    def _change_mind(self, tps: list[TopicIdPartition]) -> None:
        """Now and then a consumer seeks back, or pauses a partition for a while."""
        rng = self.rng
        if rng.random() < self.habits.seeks and not self.world.faults_over:
            tp = rng.choice(tps)
            log = self.world.log_of(tp)
            # Not above the high watermark: there the broker answers "out of range".
            self.positions[tp] = rng.randint(
                log.first_offset, min(self.positions[tp], log.high_watermark)
            )
            self.above.discard(tp)
            self.starving_since.pop(tp, None)
            self.world.note(self.name, "seeks", str(tp), self.positions[tp])
        if rng.random() < self.habits.pauses:
            tp = rng.choice(tps)
            self._paused ^= {tp}
            self.starving_since.pop(tp, None)
        if self.world.faults_over:
            self._paused.clear()

    def _tail_at(self, entries: dict[TopicIdPartition, FetchEntry]) -> set[TopicIdPartition]:
        """The partitions whose asked offset the broker has (or will write next)."""
        return {
            tp
            for tp, entry in entries.items()
            if tp not in self.above and self.world.log_of(tp).start_offset <= entry.offset
        }
