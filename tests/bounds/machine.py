"""`make bounds`: generated attacks on real processes, each of which must stay within its bounds.

A case is a family of attacks with a seed, such as `relay.requests:17`. While it runs, an ordinary
client at the side must get answers. No turn of the victim's event loop may take more than
TURN_CPU_S_MAX of CPU, its memory stays within its plan, no part ends, no traceback is logged. A
case that breaks this runs once more alone, against a new process, before it fails: so a busy
machine fails none. A failing case prints the line that repeats it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import behind_attacks
import front_attacks
import wire_attacks
from attack_parts import Attack, Family
from bomb_archive import plant
from certificates import Authority
from hostile_broker import HostileBroker, serving
from victims import (
    BALANCER,
    BYSTANDER_S_MAX,
    MEMORY_BYTES_MAX,
    TURN_CPU_S_MAX,
    Bystander,
    Figures,
    Victim,
    users_file,
)

CASE_S_MAX = 60.0
# So many suspects are a finding of its own, and an hour is over once.
CONFIRMED_MAX = 100
# Of each victim; how often a family comes is how often it stands here.
FAMILIES: Mapping[str, tuple[Family, ...]] = {
    "relay": (
        *(wire_attacks.requests,) * 4,
        wire_attacks.lies,
        wire_attacks.tags,
        wire_attacks.sessions,
        wire_attacks.repeats,
        wire_attacks.connections,
        *(behind_attacks.broker,) * 4,
        behind_attacks.metadata,
        front_attacks.http,
        front_attacks.pages,
    ),
    "archive": (
        *(wire_attacks.requests,) * 5,
        wire_attacks.lies,
        wire_attacks.tags,
        wire_attacks.groups,
        wire_attacks.tables,
        wire_attacks.crowds,
        *(wire_attacks.bombs,) * 2,
        wire_attacks.transactions,
        wire_attacks.repeats,
        wire_attacks.connections,
        front_attacks.http,
        front_attacks.pages,
        behind_attacks.store,
    ),
    "login": (front_attacks.logins, front_attacks.logins, front_attacks.before_login),
    "tls": (
        *(front_attacks.tls,) * 2,
        wire_attacks.requests,
        wire_attacks.lies,
        front_attacks.balancer,
    ),
}


@dataclass(frozen=True)
class Case:
    victim: str
    family: str
    seed: int

    def __str__(self) -> str:
        return f"{self.victim}.{self.family}:{self.seed}"

    @classmethod
    def of(cls, text: str) -> Case:
        """Raises ValueError."""
        place, _, seed = text.partition(":")
        victim, _, family = place.partition(".")
        return cls(victim, family, int(seed))

    def attack(self, victim: Victim) -> Attack:
        families = {family.__name__: family for family in FAMILIES[self.victim]}
        return families[self.family](random.Random(str(self)), victim)


@dataclass(frozen=True)
class Trial:
    case: Case
    what: str
    complaints: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.case}  {self.what}", *(f"    {each}" for each in self.complaints)]
        return "\n".join([*lines, f"    again: make bounds CASE={self.case}"])


@dataclass
class Report:
    cases: int = 0
    suspects: list[Case] = field(default_factory=list)
    failures: list[Trial] = field(default_factory=list)
    cpu_s: float = 0.0


# Families with faults that were found and not yet mended: only `make bounds` tries them.
KNOWN: frozenset[str] = frozenset()


def cases(victim: str, seed: int, without: Collection[str] = ()) -> Iterator[Case]:
    """Endless. All families come in turn, except those in `without`."""
    names = [
        family.__name__
        for family in FAMILIES[victim]
        if f"{victim}.{family.__name__}" not in without
    ]
    number = seed * 1_000_000
    while True:
        for name in names:
            yield Case(victim, name, number)
            number += 1


def complaints(before: Figures, after: Figures) -> Iterator[str]:
    if long := after.long_turns(before):
        longest = f"the longest of the minute {after.longest_s:.3f} s"
        yield f"{long} turns above {TURN_CPU_S_MAX} s of CPU; {longest}"
    if after.peak_bytes > MEMORY_BYTES_MAX:
        yield f"{after.peak_bytes >> 20} MiB of memory; its plan is {MEMORY_BYTES_MAX >> 20} MiB"
    if after.healthy != 200:
        yield f"/healthz says {after.healthy}"
    for line in after.bad[len(before.bad) :][:3]:
        yield f"logged: {line[:600]}"


async def tried(case: Case, victim: Victim) -> Trial:
    """One case against the victim, with an ordinary client beside it. Never raises for the victim's
    faults: they are complaints."""
    attack = case.attack(victim)
    complaint_texts: list[str] = []
    try:
        victim.forget_peak()
        before = await victim.figures()
        bystander = Bystander(victim)
        beside = asyncio.create_task(bystander.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CASE_S_MAX):
                await attack.run(victim)
        if victim.broker is not None:
            victim.broker.peaceful()
        if not await still_asks(bystander):
            complaint_texts.append(f"an ordinary client gets no answers: {bystander.fault}")
        beside.cancel()
        victim.close_what_is_open()
        after = await victim.figures()
        if after.long_turns(before):
            await asyncio.sleep(1.2)  # the longest turn is published once a second
            after = await victim.figures()
        complaint_texts += complaints(before, after)
    except (OSError, TimeoutError, IndexError, ValueError) as error:
        complaint_texts.append(f"the console does not answer: {error!r}")
    if not victim.running:
        complaint_texts.append(f"the process has ended: {victim.log_text()[-1500:]}")
    return Trial(case, attack.what, tuple(complaint_texts))


async def still_asks(bystander: Bystander) -> bool:
    asked_before, until = bystander.requests, time.monotonic() + BYSTANDER_S_MAX
    while bystander.requests < asked_before + 3:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.02)
    return True


@asynccontextmanager
async def field_of_victims(folder: Path, names: set[str]) -> AsyncIterator[dict[str, Victim]]:
    """The processes of these names, each with a copy of its own of what it reads."""
    async with AsyncExitStack() as stack:
        victims: dict[str, Victim] = {}
        certificate = Authority(folder / "tls").issue("node")
        for name in sorted(names):
            victim_folder = folder / name
            archive = victim_folder / "store" / "archive"
            await plant(victim_folder / "store")
            options = ["--store", archive.as_uri()]
            broker = None
            if name in ("relay", "tls"):
                broker = HostileBroker()
                options += ["--bootstrap", await stack.enter_async_context(serving(broker))]
            else:
                options += ["--archive-only", "--set", "archive_only.refresh_interval_ms=500"]
                options += ["--set", f"archive_only.offsets_file={victim_folder / 'offsets.json'}"]
            if name == "login":
                options += ["--set", f"archive_only.users_file={users_file(victim_folder)}"]
            if name == "tls":
                options += ["--set", f"gateway.tls_certificate_file={certificate}"]
                options += ["--set", f"gateway.proxy_protocol_from={BALANCER}"]
            victim = Victim(
                name, options, victim_folder, broker, tls=name == "tls", login=name == "login"
            )
            victim.archive = archive
            stack.push_async_callback(victim.stop)
            await victim.start()
            victims[name] = victim
        yield victims


async def hunt(
    victims: Mapping[str, Victim],
    coming: Callable[[str], Iterator[Case]],
    *,
    until: float,
    each_max: int,
    report: Report,
) -> None:
    """All victims side by side, until loop time `until` or `each_max` cases of each."""

    async def attack(name: str, victim: Victim) -> None:
        for number, case in enumerate(coming(name)):
            if time.monotonic() >= until or number >= each_max:
                break
            trial = await tried(case, victim)
            report.cases += 1
            if trial.complaints:
                print(f"suspect {trial}", flush=True)
                report.suspects.append(case)
                if any("has ended" in each or "console" in each for each in trial.complaints):
                    await victim.restart()
        if not await victim.ready_again():
            raise AssertionError(f"{name} is not ready after {case} and those before it")

    async with asyncio.TaskGroup() as tasks:
        for name, victim in victims.items():
            tasks.create_task(attack(name, victim))


async def confirm(victims: Mapping[str, Victim], report: Report) -> None:
    """The suspects once more, alone and each against a new process."""
    for case in report.suspects[:CONFIRMED_MAX]:
        victim = victims[case.victim]
        await victim.restart()
        trial = await tried(case, victim)
        if trial.complaints:
            report.failures.append(trial)
            print(f"FAILED {trial}", flush=True)


async def run(
    seconds: float = float("inf"),
    seed: int = 0,
    *,
    each_max: int = 1 << 30,
    without: Collection[str] = (),
    only: Case | None = None,
) -> Report:
    report = Report()
    with tempfile.TemporaryDirectory(prefix="bounds-") as folder:
        families = {only.victim} if only else set(FAMILIES)
        async with field_of_victims(Path(folder), families) as victims:
            if only is None:
                until = time.monotonic() + seconds
                coming = partial(cases, seed=seed, without=without)
                await hunt(victims, coming, until=until, each_max=each_max, report=report)
            else:
                report.cases, report.suspects = 1, [only]
            await confirm(victims, report)
            report.cpu_s = sum(victim.cpu_s() for victim in victims.values()) + time.process_time()
    return report
