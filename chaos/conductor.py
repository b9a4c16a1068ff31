"""Plays a plan: starts parts, writers and readers, performs the acts, and runs the checks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

from chaos.acts import Stage
from chaos.calm import Calm
from chaos.ledger import RECORD_BYTES, Log
from chaos.parts import RETAINED_BYTES, Parts, single_topic
from chaos.plan import BROKERS, Act, Plan, Round, victim
from chaos.progress import Faults, Progress
from chaos.readers import Follower, PythonFollower
from chaos.writers import TransactionalWriter, Writer

_KEPT_RECORDS = RETAINED_BYTES // (2 * RECORD_BYTES)
_FIRST_RECORDS_S = 8.0  # so that there are records to lose when the acts begin


@dataclass
class Conductor:
    """`say` prints a line. No round begins after `seconds`. `faults`: all found so far."""

    plan: Plan
    folder: Path
    say: Callable[[str], None]
    seconds: float = inf
    faults: list[str] = field(default_factory=list)

    def play(self) -> None:
        """Raises PartFailed if a part, or something that is waited for, does not come back."""
        began = time.monotonic()
        with ExitStack() as stack:
            parts = stack.enter_context(Parts(self.folder, self.plan.metadata_manager))
            writers = self._writers(parts)
            followers, groups = self._followers(parts, writers)
            for writer in writers.values():
                stack.callback(writer.stop)
                writer.start()
            for follower in (*followers, *(each for group in groups.values() for each in group)):
                stack.callback(follower.stop)
                follower.start()
            together = [[follower] for follower in followers] + list(groups.values())
            progress = Progress(together)
            stage = Stage(parts, writers, self.folder)
            calm = Calm(stage, followers, groups)
            self.say(f"all parts are up after {time.monotonic() - began:.0f} s")
            time.sleep(_FIRST_RECORDS_S)
            for number, each in enumerate(self.plan.rounds, start=1):
                if time.monotonic() - began > self.seconds:
                    self.say(
                        f"the time is over after {number - 1} of {len(self.plan.rounds)} rounds"
                    )
                    return
                self.say(f"round {number} of {len(self.plan.rounds)}")
                with progress.watched():
                    self._acts(stage, each, progress.faults)
                self._check(calm, progress)
                if self.faults:
                    return  # the next rounds would only repeat the faults

    def _check(self, calm: Calm, progress: Progress) -> None:
        since = time.monotonic()
        self.faults += progress.reports
        self.faults += calm.check()
        for fault in self.faults:
            self.say(f"  VIOLATION {fault}")
        took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in calm.took_s.items())
        self.say(f"  calm, checked in {time.monotonic() - since:.0f} s ({took})")
        written = sum(len(log.written) for log in calm.logs)
        lost = sum(len(each) for log in calm.logs for each in log.lost)
        self.say(
            f"  {written} records, {lost} offsets lost on purpose, {len(self.faults)} violations"
        )

    def _acts(self, stage: Stage, plan: Round, faults: Faults) -> None:
        """Runs each act in a thread, because a restart takes time, but one at a time per victim."""
        self._say_act(plan.first, 0.0)
        with faults.during(plan.first):
            stage.begin(plan.first)
        began = time.monotonic()
        victims = {victim(act): threading.Lock() for act in (plan.first, *plan.acts)}

        def play(act: Act) -> None:
            time.sleep(act.at_s)
            with victims[victim(act)], faults.during(act):
                if act is not plan.first:
                    self._say_act(act, time.monotonic() - began)
                    stage.begin(act)
                if act.for_s:
                    time.sleep(act.for_s)
                    self._say_act(act, time.monotonic() - began, "end of: ")
                    stage.end(act)

        with ThreadPoolExecutor(max_workers=len(plan.acts) + 1) as pool:
            playing = [pool.submit(play, act) for act in (plan.first, *plan.acts)]
        for each in playing:
            each.result()

    def _say_act(self, act: Act, at_s: float, what: str = "") -> None:
        self.say(f"  {at_s:5.1f} s  {what}{act}")

    def _writers(self, parts: Parts) -> dict[str, Writer]:
        first, second = parts.proxies.values()
        brokers = parts.cluster.bootstrap
        writers: list[Writer] = [
            Writer(Log("chaos-plain", 0), first),
            Writer(Log("chaos-plain", 1), brokers, idempotent=True),
            TransactionalWriter(Log("chaos-txn", 0), second, Random(self.plan.seed)),
            Writer(Log("chaos-kept", 0, keeps=_KEPT_RECORDS), second),
        ]
        writers += [Writer(Log(single_topic(name), 0), brokers) for name in BROKERS]
        return {writer.log.name: writer for writer in writers}

    def _followers(
        self, parts: Parts, writers: dict[str, Writer]
    ) -> tuple[list[Follower], dict[str, list[Follower]]]:
        """Followers of the logs that never begin again."""
        logs = [writers[name].log for name in ("chaos-plain-0", "chaos-plain-1", "chaos-txn-0")]
        first, second = parts.proxies.values()

        names = {bootstrap: name for name, bootstrap in parts.proxies.items()}

        def follower(
            name: str,
            bootstrap: str,
            reset: str,
            committed_only: bool,
            group: str = "",
            kind: type[Follower] = Follower,
        ) -> Follower:
            return kind(
                name,
                logs,
                bootstrap,
                reset=reset,
                committed_only=committed_only,
                group=group,
                proxy=names[bootstrap],
            )

        alone = [
            follower("follower with earliest", first, "earliest", True),
            follower("follower with latest", second, "latest", False),
            follower("follower with none", first, "error", True),
            follower("kafka-python with none", first, "none", True, kind=PythonFollower),
            follower("kafka-python with latest", second, "latest", False, kind=PythonFollower),
        ]
        members = [
            follower("member 1", first, "earliest", True, "chaos-group"),
            follower("member 2", second, "earliest", True, "chaos-group"),
        ]
        return alone, {"chaos-group": members}
