"""One rehearsal: a cluster under load, its loss, the restore into an empty one, the checks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from lab.errors import PartFailed
from lab.kafka_cluster import KafkaCluster
from rehearsal import checks, inventory
from rehearsal.checks import Check, NamedGroups
from rehearsal.clients import (
    QUIET,
    Client,
    Committers,
    FirstRecords,
    IdempotentProducer,
    MemberConsumer,
    TransactionalProducer,
)
from rehearsal.inventory import PAYMENTS, SCHEMAS, Inventory
from rehearsal.ledger import Ledger, Place, number_of
from rehearsal.processes import Archiver, ShownPoint, Watch, archive_only, run

BROKERS = {1, 2, 3}
# Brokers that authorize; the lab's clients are super users.
_PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
}
_SETTLED_MAX_S = 300.0
_KILL_WITHIN_S = 20.0  # of the end of the load
_FIRST_RECORDS_MAX_S = 180.0
_READ_MAX_S = 600.0
_MEMBERS = {"drill-members": PAYMENTS}


@dataclass(frozen=True, slots=True)
class Drill:
    """What is rehearsed. `seconds`: of load, after which the kill comes at a moment of `seed`'s."""

    partitions: int = 100
    groups: int = 10
    version: str = ""
    seed: int = 0
    seconds: float = 20.0
    records_per_s: int = 1_000
    recovery_point_ms: int = 2_000
    state_interval_ms: int = 5_000
    heap: str = "384m"


@dataclass
class Rehearsal:
    """`say` prints a line. `times`: how long the steps took, in s, by name."""

    drill: Drill
    folder: Path
    say: Callable[[str], None]
    ledger: Ledger = field(default_factory=Ledger)
    times: dict[str, float] = field(default_factory=dict)

    def play(self) -> list[Check]:
        """Raises PartFailed, PartMissing, KafkaException."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            loss = self._lose(stack)
            return [*self._restore(stack, loss)]

    @property
    def _store(self) -> Path:
        return self.folder / "archive"

    def _cluster(self) -> KafkaCluster:
        return KafkaCluster(3, _PROPERTIES, heap=self.drill.heap, version=self.drill.version)

    # --- the old cluster ---
    def _lose(self, stack: ExitStack) -> Loss:
        drill, random = self.drill, Random(self.drill.seed)
        planned = inventory.planned_inventory(drill.partitions)
        cluster = stack.enter_context(self._cluster())
        self.say(f"three brokers of Kafka {cluster.version} are up")
        inventory.create(cluster.bootstrap, planned)
        self.say(
            f"{len(planned.topics)} topics, {drill.partitions} partitions, {len(planned.acls)} "
            f"ACLs, {len(planned.quotas)} quotas"
        )
        settings = {
            "archive.recovery_point_ms": drill.recovery_point_ms,
            "archive.cluster_state_interval_ms": drill.state_interval_ms,
        }
        archiver = Archiver(cluster.bootstrap, self._store, self.folder, settings)
        stack.callback(archiver.stop)
        archiver.start()
        clients = self._clients(cluster.bootstrap, planned, random)
        for client in clients:
            stack.callback(client.stop)
            client.start()
        watch = Watch(archiver)
        stack.callback(watch.stop)
        watch.start()
        self._until_settled(watch, clients)
        self.say(f"load: {drill.records_per_s} records/s, {drill.groups} groups")
        time.sleep(drill.seconds + random.uniform(0, _KILL_WITHIN_S))
        return self._kill(cluster, archiver, clients, watch, planned)

    def _kill(
        self,
        cluster: KafkaCluster,
        archiver: Archiver,
        clients: Sequence[Client],
        watch: Watch,
        planned: Inventory,
    ) -> Loss:
        for client in clients:
            client.stop()  # what they hear from now on is no fault of theirs
        killed_at = cluster.lose()
        archiver.kill()
        watch.stop()
        self.say(f"SIGKILL of brokers and archiver; the disks are removed (seed {self.drill.seed})")
        for client in clients:
            client.join()
        faults = [client.fault for client in clients if client.fault]
        if faults:
            raise PartFailed("; ".join(faults))
        point = watch.last_before(killed_at)
        if point is not None:
            self.say(
                f"shown before: if the cluster died now: {killed_at - point.at:.1f} s and "
                f"{point.records:,} records would be lost"
            )
        return Loss(planned, killed_at, point, dict(self.ledger.commits))

    def _clients(self, bootstrap: str, planned: Inventory, random: Random) -> list[Client]:
        groups = self._groups(planned)
        return [
            IdempotentProducer(bootstrap, self.ledger, planned.plain, self.drill.records_per_s),
            TransactionalProducer(bootstrap, self.ledger, planned.payments, random),
            Committers(bootstrap, self.ledger, groups, random),
            *(MemberConsumer(bootstrap, self.ledger, *one) for one in _MEMBERS.items()),
        ]

    def _groups(self, planned: Inventory) -> dict[str, list[Place]]:
        topics = sorted({topic for topic, _ in planned.plain})
        places = {name: [p for p in planned.plain if p[0] == name] for name in topics}
        return {
            f"drill-group-{n:02}": places[topics[n % len(topics)]] for n in range(self.drill.groups)
        }

    def _until_settled(self, watch: Watch, clients: Sequence[Client]) -> None:
        """Until the archiver shows a recovery point, and has kept a state in which each group has
        committed.
        """
        deadline = time.monotonic() + _SETTLED_MAX_S
        expected = self.drill.groups + len(_MEMBERS)
        while True:
            groups = {group for group, _ in _commits_of_state(self._store)}
            if watch.points and len(groups) == expected:
                return
            faults = [client.fault for client in clients if client.fault]
            if faults or time.monotonic() > deadline:
                raise PartFailed(
                    f"the load does not run: {'; '.join(faults)} {len(groups)} of {expected} "
                    f"groups, {len(watch.points)} looks at the recovery point"
                )
            time.sleep(0.2)

    # --- the new one ---
    def _restore(self, stack: ExitStack, loss: Loss) -> Iterator[Check]:
        store = ["--store", self._store.as_uri()]
        journal = run(["cluster", "recover-journal", *store, "--json"], self.folder)
        self.times["recover-journal"] = journal.seconds
        yield Check("recover-journal", f"exit code {journal.exit_code}", ok=journal.exit_code == 0)
        self.say(f"recover-journal: {journal.seconds:.1f} s, exit code {journal.exit_code}")
        cluster = stack.enter_context(self._cluster())
        answered_at = time.monotonic()
        self.say("three empty brokers answer")
        report = self._restored(cluster.bootstrap, store, answered_at)
        yield Check("restore", "; ".join(report["faults"]) or "no fault", ok=not report["faults"])
        yield Check("topics refused", f"{len(report['refused'])}", ok=not report["refused"])
        places = [*loss.planned.plain, *loss.planned.payments]
        starts = inventory.starts_and_ends(cluster.bootstrap, [*places, (SCHEMAS, 0)])
        restored = inventory.committed(cluster.bootstrap, {group for group, _ in loss.commits})
        new = self._go_on(stack, cluster.bootstrap, loss.planned, answered_at)
        yield from new.checks
        yield from checks.written_checks(starts, new.offsets)
        archived = self._archived(places)
        yield from checks.start_checks(starts, archived, places)
        yield from checks.record_checks(self.ledger, archived, loss.point, loss.killed_at)
        if loss.point is not None:
            lost = checks.lost_times(self.ledger, archived)
            shown_s, true_s = checks.ages(lost, loss.point, loss.killed_at)
            self.times |= {"shown age": shown_s, "true age": true_s}
        of_state = _commits_of_state(self._store)
        yield from checks.group_checks(of_state, loss.commits, starts, restored, _named(report))
        restored_inventory = inventory.found_inventory(cluster.bootstrap, loss.planned)
        yield from checks.inventory_checks(loss.planned, restored_inventory)
        fenced = not cluster.version.startswith("3.")
        phantoms = inventory.phantoms_left(cluster.bootstrap, BROKERS, tells_fenced=fenced)
        yield checks.phantom_check(phantoms)

    def _restored(self, bootstrap: str, store: list[str], answered_at: float) -> dict[str, Any]:
        """The report of the restore. A topic is created while the phantoms lead."""
        meanwhile: list[threading.Thread] = []

        def on_line(line: str) -> None:
            self.say(f"  restore: {line} ({time.monotonic() - answered_at:.1f} s)")
            if line == "step: place" and not meanwhile:
                create = inventory.create_topic_meanwhile
                meanwhile.append(threading.Thread(target=create, args=[bootstrap]))
                meanwhile[0].start()

        command = run(
            ["cluster", "restore", *store, "--bootstrap", bootstrap, "--json"], self.folder, on_line
        )
        for thread in meanwhile:
            thread.join()
        self.times["restore"] = command.seconds
        report: dict[str, Any] = command.document()
        return report

    def _go_on(
        self, stack: ExitStack, bootstrap: str, planned: Inventory, answered_at: float
    ) -> NewRecords:
        """Producers and all groups at the new cluster, until each group has a record."""
        ledger = Ledger()
        writers: list[Client] = [
            IdempotentProducer(bootstrap, ledger, planned.plain, self.drill.records_per_s),
            TransactionalProducer(bootstrap, ledger, planned.payments, Random(self.drill.seed)),
        ]
        topics = {group: places[0][0] for group, places in self._groups(planned).items()}
        readers = [FirstRecords(bootstrap, *one) for one in (topics | _MEMBERS).items()]
        for client in (*writers, *readers):
            stack.callback(client.stop)
            client.start()
        deadline = time.monotonic() + _FIRST_RECORDS_MAX_S
        while any(one.at is None and one.fault is None for one in readers):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        expected = len(planned.plain)
        while len(ledger.records) < expected and time.monotonic() < deadline:
            time.sleep(0.05)
        for client in (*writers, *readers):
            client.stop()
        for client in (*writers, *readers):
            client.join()
        firsts = {one.group: one.at for one in readers}
        times = [at - answered_at for at in firsts.values() if at is not None]
        self.times["first record"] = min(times, default=float("inf"))
        faults = [one.fault for one in (*writers, *readers) if one.fault]
        return NewRecords(
            ledger.records,
            [
                *checks.first_record_checks(answered_at, firsts, checks.FIRST_RECORD_MAX_S),
                Check("clients that failed", "; ".join(faults) or "0", ok=not faults),
            ],
        )

    def _archived(self, places: Sequence[Place]) -> dict[Place, dict[int, int]]:
        """All records of the archive, from a node without brokers."""
        with archive_only(self._store, self.folder) as bootstrap:
            ends = inventory.starts_and_ends(bootstrap, places)
            return read_all(bootstrap, {place: end for place, (_, end) in ends.items() if end > 0})


@dataclass(frozen=True, slots=True)
class Loss:
    """`commits`: the last that groups were told before it."""

    planned: Inventory
    killed_at: float
    point: ShownPoint | None
    commits: Mapping[tuple[str, Place], int]


@dataclass(frozen=True, slots=True)
class NewRecords:
    offsets: Mapping[Place, Mapping[int, object]]
    checks: Sequence[Check]


def read_all(bootstrap: str, ends: Mapping[Place, int]) -> dict[Place, dict[int, int]]:
    """The numbers of all committed records, by place and offset. Raises PartFailed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "drill-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    numbers: dict[Place, dict[int, int]] = {place: {} for place in ends}
    unread, deadline = set(ends), time.monotonic() + _READ_MAX_S
    try:
        consumer.assign([TopicPartition(*place, 0) for place in ends])
        while unread:
            for message in consumer.consume(2_000, 1.0):
                place, error = (message.topic(), message.partition()), message.error()
                if error is None:
                    numbers[place][message.offset()] = number_of(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(place)
            if time.monotonic() > deadline:
                raise PartFailed(f"{len(unread)} partitions were not read in {_READ_MAX_S:.0f} s")
    finally:
        consumer.close()
    return numbers


def _commits_of_state(store: Path) -> dict[tuple[str, Place], int]:
    """Of the newest state in the archive, whose file is JSON. Nothing if there is none yet."""
    newest = max((store / "cluster-states").glob("[0-9]*"), default=None)
    if newest is None:
        return {}
    return {
        (group["group_id"], (topic, row[0])): row[1]
        for group in loads(newest.read_text())["groups"]
        for topic, rows in group["offsets"].items()
        for row in rows
    }


def _named(report: Mapping[str, Any]) -> NamedGroups:
    rows = {(one["group"], (one["topic"], one["partition"])): one for one in report["differences"]}
    return NamedGroups(
        {key: (one["new_offset"], one["set_back"]) for key, one in rows.items() if one["set_back"]},
        {key: one["repeated_max"] for key, one in rows.items()},
        {(one["group"], (one["topic"], one["partition"])) for one in report["uncertain_starts"]},
    )
