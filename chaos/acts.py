"""Performs acts on real parts. Each act begins and ends; its end repairs what it broke."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.fault_relay import Fault
from chaos.ledger import Log, ranges
from chaos.parts import (
    FINISHED,
    WRONG_PREFIX,
    Parts,
    Verified,
    single_topic,
    wait_until,
)
from chaos.plan import ARCHIVERS, BROKERS, STORE, Act, Kind
from chaos.writers import RECORDS_PER_S, RECORDS_PER_S_CATCHING_UP, Writer
from lab.errors import PartFailed

_REST_S = 120.0
_LOST_RECORDS_MIN = 200
_SETTLES_S = 2.0  # a request of a killed archiver that has reached the store is done by then
_MONTH_S = 30 * 86_400
_FAULTS = {
    Kind.CUT: Fault(cut=True),
    Kind.SLOW: Fault(delay_ms=300, bytes_per_s=256 * 1024),
    # Only of objects with a checksum that shows it: other objects are the transport's task.
    Kind.CORRUPT: Fault(corrupt=True, corrupt_suffix=".log"),
    Kind.STALE_LISTINGS: Fault(stale_listings=True),
}


class Process(Protocol):
    """A broker, the store, an archiver or a proxy."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LostObject:
    log: Log
    base_offset: int
    path: Path
    aside: Path


@dataclass(frozen=True, slots=True)
class BegunAgain:
    """`old`: the lost log's records by offset. The archive has a part of them."""

    log: Log
    writer: Writer
    old: dict[int, bytes]
    response: str


@dataclass
class Stage:
    """The parts, the writers by log, and what acts leave for the calm to repair or check."""

    parts: Parts
    writers: Mapping[str, Writer]
    folder: Path
    lost_objects: list[LostObject] = field(default_factory=list)
    begun_again: list[BegunAgain] = field(default_factory=list)

    def begin(self, act: Act) -> None:
        beginnings: dict[Kind, Callable[[Act], None]] = {
            Kind.PAUSE: lambda act: self._process(act.target).pause(),
            Kind.KILL: lambda act: self._process(act.target).kill(),
            Kind.CLOCK_AHEAD: lambda act: self._restart(act.target, clock_ahead_s=_MONTH_S),
            Kind.WRONG_PREFIX: self._swap_prefix,
            Kind.LOSE_RECORDS: self._lose_records,
            Kind.LOSE_OBJECT: self._lose_object,
            Kind.REPLACE_DISK: self._replace_disk,
        }
        if act.kind in _FAULTS:
            self.parts.set_fault(act.target, _FAULTS[act.kind])
        else:
            beginnings[act.kind](act)

    def end(self, act: Act) -> None:
        if act.kind in _FAULTS:
            self.parts.set_fault(act.target)
        elif act.kind is Kind.PAUSE:
            self._process(act.target).resume()
        elif act.kind is Kind.KILL:
            self._process(act.target).start()
        elif act.kind in (Kind.CLOCK_AHEAD, Kind.WRONG_PREFIX):
            self._restart(act.target)

    def _process(self, name: str) -> Process:
        if name in BROKERS:
            return self.parts.broker(name)
        return self.parts.s3 if name == STORE else self.parts.servers[name]

    def _restart(self, name: str, clock_ahead_s: int = 0) -> None:
        server = self.parts.servers[name]
        server.stop()
        server.start(clock_ahead_s=clock_ahead_s)

    # -- acts that change data -------------------------------------------------------------------
    def _lose_records(self, act: Act) -> None:
        """Makes the brokers delete records that are not archived yet, while no archiver runs."""
        log, writer = self.writers[act.target].log, self.writers[act.target]
        # Records lost before the first archived one are out of range and no gap.
        self._wait_for_archive(log)
        for name in ARCHIVERS:
            self.parts.servers[name].kill()
        time.sleep(_SETTLES_S)
        first = max(self.parts.archived(log.topic).get(log.name, set()), default=-1) + 1
        wait_until(
            f"{_LOST_RECORDS_MIN} records to lose",
            lambda: self.parts.edges(log)[1] >= first + _LOST_RECORDS_MIN,
            60.0,
        )
        # The writer rests, so that the cut is between two batches.
        rest(writer)
        end = self.parts.edges(log)[1]
        log.lost.append(range(first, end))
        self.parts.delete_records(log, end)
        writer.go_on()
        for name in ARCHIVERS:
            self.parts.servers[name].start()

    def _wait_for_archive(self, log: Log) -> None:
        wait_until(
            f"some of {log.name} archived", lambda: self.parts.archived_end(log) > 0, _REST_S
        )

    def _swap_prefix(self, act: Act) -> None:
        """Waits for local retention first: before it, no archive is expected (ADR 0037)."""
        for writer in self.writers.values():
            wait_until(f"{writer.log.name} trimmed", partial(self._is_trimmed, writer.log), _REST_S)
        server = self.parts.servers[act.target]
        server.stop()
        server.start_in_vain(WRONG_PREFIX)

    def _is_trimmed(self, log: Log) -> bool:
        return self.parts.edges(log)[0] > 0

    def _lose_object(self, act: Act) -> None:
        """Removes the log of the newest archived segment. The brokers still have its records."""
        log = self.writers[act.target].log
        self._wait_for_archive(log)
        rows = [r for r in self.parts.rows(log.topic)[0] if r["partition"] == log.partition]
        row = max((r for r in rows if r["state"] == FINISHED), key=lambda r: r["base_offset"])
        folder = self.parts.objects_folder() / f"{log.topic}-{row['topic_id']}" / f"{log.partition}"
        (path,) = folder.glob(f"{row['base_offset']:020d}-*.log")
        aside = self.folder / path.name
        path.rename(aside)
        self.lost_objects.append(LostObject(log, row["base_offset"], path, aside))

    def _replace_disk(self, act: Act) -> None:
        """Deletes all partitions of one broker. Replicated ones are copied from other replicas; the
        log of its single topic begins again."""
        for topic in ("chaos-plain", "chaos-txn", "chaos-kept"):
            self.parts.cluster.wait_for_in_sync(topic)
        log = self.writers[f"{single_topic(act.target)}-0"].log
        writer = self.writers[log.name]
        rest(writer)
        broker = self.parts.broker(act.target)
        broker.kill()
        # The controller's own log stays: a voter that forgets its votes is a different fault.
        for path in broker.data_dir.glob("*-*"):
            if path.name.endswith("-checkpoint"):
                # With the old log start offset, the next start would empty the new log.
                path.unlink()
            elif path.is_dir() and not path.name.startswith("__cluster_metadata"):
                shutil.rmtree(path)
        broker.start()
        old, log.written = log.written, {}
        log.history += 1
        log.count_sent = 0
        self.begun_again.append(BegunAgain(log, writer, old, act.response))
        writer.go_on()

    # -- repairs in the calm ----------------------------------------------------------------------
    def put_back(self, verified: Verified) -> list[str]:
        """Puts lost objects back. Returns what `verify`, which ran before, should have said."""
        faults = []
        for lost in self.lost_objects:
            if not any(lost.path.name in fault for fault in verified.faults):
                faults.append(f"verify does not name {lost.path.name}, which is gone")
            start = self.parts.edges(lost.log)[0]
            if start > lost.base_offset:
                faults.append(
                    f"{lost.log.name} was trimmed to {start}, and the archive has lost "
                    f"{lost.path.name}"
                )
            lost.aside.rename(lost.path)
        self.lost_objects.clear()
        return faults

    def resolve(self) -> list[str]:
        """Resolves the logs that have begun again. Returns what was wrong before that."""
        faults = []
        for begun in self.begun_again:
            faults += self._resolve(begun)
        self.begun_again.clear()
        return faults

    def _resolve(self, begun: BegunAgain) -> list[str]:
        log = begun.log
        wait_until(
            f"{log.name} waits for resolve",
            lambda: any(log.name in each for each in self.parts.rows(log.topic)[1]),
            60.0,
        )
        archived = self.parts.archived(log.topic).get(log.name, set())
        end = max(archived, default=-1) + 1
        old_values = {offset: value for offset, value in begun.old.items() if offset < end}
        faults = []
        if not set(old_values) <= archived:
            faults.append(
                f"{log.name}: {len(set(old_values) - archived)} archived offsets have gone"
            )
        self.parts.resolve(log, begun.response)
        if begun.response == "new-history":
            aside = [row for row in self.parts.rows(log.topic)[0] if row["put_aside"]]
            there = {o for row in aside for o in range(row["base_offset"], row["last_offset"] + 1)}
            if not there >= archived:
                faults.append(f"{log.name}: put aside are {ranges(there)}, not {ranges(archived)}")
        if begun.response == "keep":
            # The new log has to grow past the archive's end, and its beginning has to be deleted.
            begun.writer.records_per_s = RECORDS_PER_S_CATCHING_UP
            wait_until(
                f"{log.name} behind {end}", lambda: self.parts.edges(log)[1] > end + 50, 120.0
            )
            begun.writer.records_per_s = RECORDS_PER_S
            self.parts.delete_records(log, end)
            log.written = old_values | {o: v for o, v in log.written.items() if o >= end}
        return faults


def rest(writer: Writer) -> None:
    """Raises PartFailed if sent records have no response although all brokers are up."""
    if not writer.rest(_REST_S):
        raise PartFailed(f"the writer of {writer.log.name} has no answer in {_REST_S:.0f} s")
