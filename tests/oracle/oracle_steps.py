"""Steps that change something, the seeded generator of sequences, and the search for a short one.

A step is a frozen value; a sequence is a list of them, and any part of it is a sequence too: what
has become impossible (ending a transaction that was never begun) does nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oracle_asks import (
    DescribeAsk,
    EpochAsk,
    ListOffsetsAsk,
    MetadataAsk,
    Place,
)
from oracle_drain import DrainAsk, SessionErrorAsk
from oracle_fetch import FetchAsk
from oracle_rules import Findings
from oracle_world import Producer, TwinTopic, World

from lab.kafka_versions import KAFKA_NEWEST

PRODUCERS = 3
Shape = tuple[int, ...]
TWO_TOPICS: Shape = (1, 1)

# A question has `run(world, topics, found)`, a change `apply(scene)`; both are frozen values.
Step = Any


@dataclass
class Scene:
    """The partitions (`topics`) and producers of one sequence; they come and go with it."""

    world: World
    findings: Findings
    topics: list[TwinTopic] = field(default_factory=list)
    producers: dict[int, Producer] = field(default_factory=dict)
    ran: Counter[str] = field(default_factory=Counter)

    def run(self, step: Step) -> None:
        self.ran[type(step).__name__] += 1
        if hasattr(step, "apply"):
            step.apply(self)
        else:
            step.run(self.world, self.topics, self.findings)

    def clear(self) -> None:
        for producer in self.producers.values():
            if producer.in_txn:
                self.world.end_txn(producer, commit=False)
        self.world.drop_topics(self.topics)


@dataclass(frozen=True)
class Produce:
    topic: int
    sizes: tuple[int, ...]
    codec: int = 0
    producer: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        who = "" if self.producer is None else f" in the transaction of p{self.producer}"
        return f"produce t{self.topic} {len(self.sizes)} records codec={self.codec}{who}"

    def apply(self, scene: Scene) -> None:
        producer = None
        if self.producer is not None:
            if self.producer not in scene.producers:
                scene.producers[self.producer] = scene.world.new_producer()
            producer = scene.producers[self.producer]
        scene.world.produce(
            scene.topics[self.topic],
            list(self.sizes),
            codec=self.codec,
            producer=producer,
            seed=self.seed,
        )


@dataclass(frozen=True)
class EndTxn:
    producer: int
    commit: bool

    def __str__(self) -> str:
        return f"{'commit' if self.commit else 'abort'} p{self.producer}"

    def apply(self, scene: Scene) -> None:
        producer = scene.producers.get(self.producer)
        if producer is not None and producer.in_txn:
            scene.world.end_txn(producer, commit=self.commit)


@dataclass(frozen=True)
class Roll:
    topic: int

    def __str__(self) -> str:
        return f"roll t{self.topic}"

    def apply(self, scene: Scene) -> None:
        scene.world.roll(scene.topics[self.topic])


@dataclass(frozen=True)
class Archive:
    topic: int

    def __str__(self) -> str:
        return f"archive t{self.topic}"

    def apply(self, scene: Scene) -> None:
        scene.world.archive(scene.topics[self.topic])


@dataclass(frozen=True)
class Trim:
    topic: int

    def __str__(self) -> str:
        return f"archive and trim t{self.topic}"

    def apply(self, scene: Scene) -> None:
        scene.world.trim(scene.topics[self.topic])


@dataclass(frozen=True)
class DeleteRecords:
    """By a client; a change and a question at once."""

    version: int
    topic: int
    place: Place

    def __str__(self) -> str:
        return f"delete records v{self.version} t{self.topic} below {self.place}"

    def apply(self, scene: Scene) -> None:
        scene.world.delete_records(
            scene.topics[self.topic],
            self.place.offset(scene.topics[self.topic]),
            self.version,
            scene.findings,
        )


@dataclass(frozen=True)
class Reconnect:
    def __str__(self) -> str:
        return "reconnect"

    def apply(self, scene: Scene) -> None:
        for side in scene.world.sides:
            side.reconnect()


@dataclass(frozen=True)
class Restart:
    def __str__(self) -> str:
        return "restart both brokers"

    def apply(self, scene: Scene) -> None:
        scene.world.restart_brokers()


class Generator:
    """`Generator(seed).steps(60)`: what a sequence does, drawn from the seed alone.

    `shape` is the number of partitions of each topic; all of them are counted through.
    """

    def __init__(
        self, seed: int, shape: Shape = TWO_TOPICS, restarts: bool = False, newest: bool = False
    ) -> None:
        self._rng = random.Random(seed)
        self._topics = sum(shape)
        self._restarts = restarts
        self._list_offsets_max = 11 if newest else 10

    def steps(self, count: int) -> list[Step]:
        """It begins with some segments that are archived and trimmed, or little would be asked."""
        steps = self._prologue()
        while len(steps) < count:
            steps.append(self._step())
        if self._restarts:
            for share in (0.25, 0.6):
                at = int(count * share)
                steps[at : at + 1] = [Restart(), self._produce(0), Roll(0)]
        return steps[:count]

    def _prologue(self) -> list[Step]:
        steps: list[Step] = []
        for topic in range(self._topics):
            for _ in range(self._rng.randrange(1, 4)):
                steps += [self._produce(topic), self._produce(topic), Roll(topic)]
            steps.append(self._produce(topic))
        # An open transaction holds up all archiving behind it.
        for producer in range(PRODUCERS):
            if self._rng.random() < 0.8:
                steps.append(EndTxn(producer, self._rng.random() < 0.5))
        return steps + [Trim(topic) for topic in range(self._topics) if self._rng.random() < 0.9]

    def _step(self) -> Step:
        rng = self._rng
        makers: list[tuple[int, Callable[[], Step]]] = [
            (40, self._fetch),
            (14, self._list_offsets),
            (6, self._epoch),
            (3, self._drain),
            (2, self._session_error),
            (2, lambda: MetadataAsk(rng.randrange(1, 14), self._topic())),
            (1, lambda: DescribeAsk(self._topic())),
            (13, lambda: self._produce(self._topic())),
            (8, lambda: EndTxn(rng.randrange(PRODUCERS), rng.random() < 0.5)),
            (5, lambda: Roll(self._topic())),
            (1, lambda: Archive(self._topic())),
            (3, lambda: Trim(self._topic())),
            (1, self._delete),
            (1, Reconnect),
        ]
        weights = [weight for weight, _ in makers]
        made: Step = rng.choices([make for _, make in makers], weights)[0]()
        return made

    def _topic(self) -> int:
        return self._rng.randrange(self._topics)

    def _place(self) -> Place:
        rng = self._rng
        if rng.random() < 0.45:
            return Place("share", share=round(rng.random(), 2))
        anchor = rng.choice(["start", "local", "archived", "stable", "end", "zero"])
        return Place(anchor, rng.choice([-7, -3, -1, 0, 0, 0, 1, 2, 5]))

    def _isolation(self) -> int:
        return self._rng.randrange(2)

    def _epoch_relative(self) -> int | None:
        return self._rng.choice([None, None, None, None, 0, 0, -1, 1])

    def _bytes(self) -> int:
        return self._rng.choice([1, 61, 200, 700, 3_000, 20_000, 1 << 20])

    def _produce(self, topic: int) -> Produce:
        rng = self._rng
        count = rng.choice([1, 1, 2, 3, 5, 12])
        sizes = tuple(rng.choice([0, 10, 80, 300, 2_500]) for _ in range(count))
        producer = rng.randrange(PRODUCERS) if rng.random() < 0.4 else None
        return Produce(topic, sizes, rng.randrange(5), producer, rng.randrange(1 << 30))

    def _fetch(self) -> FetchAsk:
        rng = self._rng
        many = self._topics > 1 and rng.random() < 0.15
        numbers = [self._topic()]
        if many:
            numbers = rng.sample(range(self._topics), rng.randrange(2, self._topics + 1))
        return FetchAsk(
            version=rng.randrange(4, 19),
            places=tuple((number, self._place()) for number in numbers),
            isolation=self._isolation(),
            partition_bytes=self._bytes(),
            max_bytes=rng.choice([50 << 20, 50 << 20, 50 << 20, self._bytes()]),
            min_bytes=rng.choice([0, 1, 1, 1, 4_000]),
            wait_ms=rng.choice([0, 1, 15]),
            epoch=self._epoch_relative(),
        )

    def _list_offsets(self) -> ListOffsetsAsk:
        rng = self._rng
        near = (round(rng.random(), 2), rng.choice([-1, 0, 0, 1, 500, 4_000_000]))
        time: int | tuple[float, int] = near
        if rng.random() < 0.65:
            time = rng.choice([-1, -2, -3, -4, -5, -2, -5, -6, -7, 0])
        version = rng.randrange(1, self._list_offsets_max + 1)
        return ListOffsetsAsk(
            version, self._topic(), time, self._isolation(), self._epoch_relative()
        )

    def _epoch(self) -> EpochAsk:
        rng = self._rng
        return EpochAsk(rng.randrange(2, 5), self._topic(), rng.randrange(-1, 5),
                        self._epoch_relative())  # fmt: skip

    def _drain(self) -> DrainAsk:
        rng = self._rng
        numbers = rng.sample(range(self._topics), rng.randrange(1, self._topics + 1))
        return DrainAsk(
            version=rng.randrange(4, 19),
            places=tuple((n, rng.choice([Place("start"), self._place()])) for n in numbers),
            isolation=self._isolation(),
            partition_bytes=rng.choice([500, 3_000, 20_000, 1 << 20]),
            max_bytes=rng.choice([2_000, 50 << 20]),
            session=rng.random() < 0.7,
            hop=rng.random() < 0.4,
            seed=rng.randrange(1 << 30),
        )

    def _session_error(self) -> SessionErrorAsk:
        rng = self._rng
        kind = rng.choice(["unknown", "epoch", "ids"])
        version = rng.choice([7, 11, 12, 13, 16, 18] if kind != "ids" else [12, 13, 17])
        return SessionErrorAsk(kind, version, self._topic(), self._place())

    def _delete(self) -> DeleteRecords:
        return DeleteRecords(self._rng.randrange(3), self._topic(), self._place())


@dataclass
class Failure:
    """`steps` is the sequence up to the step that failed, as short as it could be made."""

    seed: int
    steps: list[Step]
    reasons: list[str]
    runs: int

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, shortened in {self.runs} runs:"]
        lines += [f"  {number:3d}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join(lines + [f"  → {reason}" for reason in self.reasons])


def run_sequence(
    world: World, steps: Sequence[Step], findings: Findings, shape: Shape = TWO_TOPICS
) -> tuple[int, list[str]]:
    """(index of the step that failed or -1, why). Topics are new ones, and gone afterwards."""
    scene = Scene(world, findings, world.new_topics(*shape))
    findings.unexplained.clear()
    try:
        for index, step in enumerate(steps):
            try:
                scene.run(step)
            except (AssertionError, ConnectionError, TimeoutError) as error:
                for side in world.sides:
                    side.connect()  # a response may be left unread on the old connections
                return index, [f"{type(error).__name__}: {error!s:.1500}"]
            if findings.unexplained:
                return index, [str(mismatch) for mismatch in findings.unexplained]
        return -1, []
    finally:
        scene.clear()


def shorten(
    world: World, seed: int, steps: list[Step], reasons: list[str], *, shape: Shape, runs_max: int
) -> Failure:
    """Leave out ever smaller pieces as long as a step fails in the same way (ddmin)."""
    kind = reasons[0].split(":")[0]
    world.settle_s = 3.0  # a failure that is a hang hangs in every run
    runs, size = 0, max(len(steps) // 2, 1)
    while runs < runs_max:
        at, shorter = 0, False
        while at < len(steps) - 1 and runs < runs_max:
            tried = steps[:at] + steps[min(at + size, len(steps) - 1) :]
            runs += 1
            index, why = run_sequence(world, tried, Findings(), shape)
            if why and why[0].split(":")[0] == kind:
                steps, reasons, shorter = tried[: index + 1], why, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(size // 2, 1)
    return Failure(seed, steps, reasons, runs)


def check(
    world: World, seed: int, count: int, *, restarts: bool = False, shape: Shape = TWO_TOPICS
) -> Findings:
    """Run a generated sequence. Raises AssertionError with a seed and a short transcript."""
    findings = Findings()
    steps = Generator(seed, shape, restarts, newest=world.version == KAFKA_NEWEST).steps(count)
    index, reasons = run_sequence(world, steps, findings, shape)
    if reasons:
        failure = shorten(
            world, seed, steps[: index + 1], reasons, shape=shape, runs_max=10 if restarts else 60
        )
        raise AssertionError(str(failure))
    return findings
