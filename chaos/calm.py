"""The checks after all is repaired. They ask the readers, both tiers and `verify`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from chaos.acts import Stage, rest
from chaos.ledger import Log, ranges
from chaos.parts import Parts, Verified, wait_until
from chaos.readers import HANG_S_MAX, Course, Follower, replay
from lab.errors import PartFailed

ARCHIVED_S_MAX = 90.0  # time to archive all that was written, with all parts up
_POLICIES = ("earliest", "latest", "error")


@dataclass
class Calm:
    """Each of the `followers` must get every record, and so must each of the `groups` together."""

    stage: Stage
    followers: Sequence[Follower]
    groups: Mapping[str, Sequence[Follower]]
    checked_to: dict[str, int] = field(default_factory=dict)
    archived: dict[str, set[int]] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    took_s: dict[str, float] = field(default_factory=dict)  # by check, in the last round
    rounds: int = 0

    @property
    def parts(self) -> Parts:
        return self.stage.parts

    @property
    def logs(self) -> list[Log]:
        return [writer.log for writer in self.stage.writers.values()]

    def check(self) -> list[str]:
        """Returns what is wrong. Raises PartFailed if the checks cannot go on."""
        self.rounds += 1
        for topic in sorted({log.topic for log in self.logs}):
            self.parts.cluster.wait_for_in_sync(topic)
        faults = []
        if self.stage.lost_objects:
            faults += self.stage.put_back(self.parts.verify())
        resolved = {begun.log.name for begun in self.stage.begun_again}
        faults += self.stage.resolve()
        for name in resolved:
            self.archived.pop(name, None)
        for writer in self.stage.writers.values():
            rest(writer)
            if writer.failure:
                faults.append(writer.failure)
        ends = {log.name: self.parts.edges(log)[1] for log in self.logs}
        checks: dict[str, Callable[[], list[str]]] = {
            "followers": partial(self._followers, ends),
            "replays": partial(self._replays, ends),
            "tiers": partial(self._tiers, ends),
            "verify": lambda: self._verified(self.parts.verify()),
            "processes": self._servers,
        }
        for name, ask in checks.items():
            since = time.monotonic()
            faults += ask()
            self.took_s[name] = time.monotonic() - since
        for writer in self.stage.writers.values():
            writer.go_on()
        return faults

    def _servers(self) -> list[str]:
        """The faults that processes report or show, each of them once."""
        faults = []
        lost = {log.name: {o for each in log.lost for o in each} for log in self.logs}
        for server in self.parts.servers.values():
            faults += server.defects()
            for name, offsets in server.called_lost():
                if not lost[name].issuperset(offsets):
                    faults.append(f"{server.name} calls {offsets} of {name} lost, and they are not")
            if server.ended():
                faults.append(f"{server.name} has ended by itself")
        new = [fault for fault in faults if fault not in self.reported]
        self.reported |= set(new)
        return new

    # -- readers ----------------------------------------------------------------------------------
    def _followers(self, ends: Mapping[str, int]) -> list[str]:
        groups = [[follower] for follower in self.followers] + [
            list(g) for g in self.groups.values()
        ]
        faults = []
        for members in groups:
            for name in members[0].courses:
                courses = [member.courses[name] for member in members]
                faults += self._followed(courses, self.checked_to.get(name, 0), ends[name])
                for course in courses:
                    course.offsets_read.clear()
            for member in members:
                faults += member.faults
                member.faults.clear()
        followed = {name for members in groups for name in members[0].courses}
        self.checked_to |= {name: end for name, end in ends.items() if name in followed}
        return faults

    def _followed(self, courses: Sequence[Course], begin: int, end: int) -> list[str]:
        """Waits as long as records arrive."""
        first = courses[0]
        moved, before = time.monotonic(), -1
        while True:
            position = max(course.position for course in courses)
            missing = _missing(courses, begin, end)
            if position >= end:
                break
            if position > before:
                moved, before = time.monotonic(), position
            if time.monotonic() - moved > HANG_S_MAX:
                return [f"{first.reader}, {first.log.name}: stands at {position} of {end}"]
            time.sleep(0.2)
        if not missing:
            return []
        return [f"{first.reader}, {first.log.name}: never got offsets {ranges(missing)[:5]}"]

    def _replays(self, ends: Mapping[str, int]) -> list[str]:
        """Replays each log by each proxy. Isolation levels and reset policies change in turn."""
        replays = []
        for number, log in enumerate(self.logs):
            for place, (name, bootstrap) in enumerate(self.parts.proxies.items()):
                committed_only = (self.rounds + number + place) % 2 == 0 or log.topic == "chaos-txn"
                policy = _POLICIES[(self.rounds + number + place) % len(_POLICIES)]
                if log.keeps is not None:
                    policy = "earliest"  # offsets that retention has deleted are out of range
                level = "committed" if committed_only else "all"
                reader = f"round {self.rounds}, replay of {level} by {name} with {policy}"
                replays.append((reader, log, bootstrap, policy, committed_only))
        faults = []
        with ThreadPoolExecutor(max_workers=4) as pool:
            running = [
                pool.submit(
                    replay, reader, log, bootstrap, ends[log.name],
                    reset=policy, committed_only=committed_only,
                )
                for reader, log, bootstrap, policy, committed_only in replays
            ]  # fmt: skip
            for each in running:
                course, wrong = each.result()
                faults += wrong or self._replayed(course, ends[course.log.name])
        return faults

    def _replayed(self, course: Course, end: int) -> list[str]:
        faults = []
        missing = course.missing(course.log.begins(end), end)
        if missing:
            faults.append(f"{course.reader}, {course.log.name}: no offsets {ranges(missing)[:5]}")
        back = {offset for offset in course.offsets_read if course.log.is_lost(offset)}
        if back:
            faults.append(f"{course.reader}, {course.log.name}: lost {ranges(back)[:5]} came")
        if course.committed_only:
            course.log.decide(course.offsets_read, 0, end)
        return faults

    # -- both tiers -------------------------------------------------------------------------------
    def _tiers(self, ends: Mapping[str, int]) -> list[str]:
        """All is archived in the end. Archived records stay, and all others are at the brokers."""
        with suppress(PartFailed):  # it may be slightly behind the archive, which is read below
            wait_until("all archived", partial(self._all_archived, ends), ARCHIVED_S_MAX)
        faults = []
        archived = self.parts.archived()
        for log in self.logs:
            now = archived.get(log.name, set())
            if max(now, default=-1) + 1 < ends[log.name]:
                end = max(now, default=-1) + 1
                faults.append(f"{log.name} is archived to {end} of {ends[log.name]}")
            kept_from = log.begins(ends[log.name])
            gone = {o for o in self.archived.get(log.name, set()) - now if o >= kept_from}
            if gone:
                faults.append(f"{log.name}: the archive has lost {ranges(gone)[:5]}")
            self.archived[log.name] = now
            start = self.parts.edges(log)[0]
            below = {o for o in log.written if kept_from <= o < start and not log.is_lost(o)}
            if below - now:
                faults.append(f"{log.name}: in neither tier are {ranges(below - now)[:5]}")
        return faults

    def _all_archived(self, ends: Mapping[str, int]) -> bool:
        return all(self.parts.archived_end(log) >= ends[log.name] for log in self.logs)

    def _verified(self, verified: Verified) -> list[str]:
        faults = [] if verified.clean else [f"verify: {verified.output.strip()[-1500:]}"]
        for log in self.logs:
            gaps = verified.gaps.get(log.name, [])
            reported_gaps = ranges(
                {offset for first, last in gaps for offset in range(first, last + 1)}
            )
            lost = ranges({offset for each in log.lost for offset in each})
            if reported_gaps != lost:
                faults.append(f"{log.name}: verify shows {reported_gaps} as lost, which is {lost}")
        return faults


def _missing(courses: Sequence[Course], begin: int, end: int) -> set[int]:
    first = courses[0]
    expected = first.log.expected(begin, end, committed_only=first.committed_only)
    return expected.difference(*(course.offsets_read for course in courses))
