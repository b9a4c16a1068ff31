"""Chooses the acts, their targets and their times: a pure function of the seed and the duration.

A plan is a list of rounds. Each round begins with one great act: lost records, a lost object, a
replaced disk or a wrong prefix. Others follow and overlap with it. Then all is repaired, and the
readers' view is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

ROUND_S = 45.0  # duration of the acts; the checks take about as long again
CHECKS_S = 45.0
_OVERLAPPING_ACTS = (5, 8)
_ACT_S = (3.0, 14.0)
_PAUSE_S_MAX = 8.0
_WRONG_CLOCK_S = 20.0  # to start, to lead partitions and to check retention

BROKERS = ("broker 1", "broker 2", "broker 3")
ARCHIVERS = ("archiver 1", "archiver 2")
PROXIES = ("proxy 1", "proxy 2")
STORE = "store"


class Kind(StrEnum):
    PAUSE = "pause"
    KILL = "kill"
    CUT = "cut from the store"
    SLOW = "slow store for"
    CORRUPT = "corrupt reads for"
    STALE_LISTINGS = "stale listings for"
    CLOCK_AHEAD = "a clock a month ahead for"
    WRONG_PREFIX = "a wrong prefix for"
    # These change the data. Each round begins with one of them or with WRONG_PREFIX.
    LOSE_RECORDS = "lose records of"
    LOSE_OBJECT = "lose an object of"
    REPLACE_DISK = "replace the disk of"


GREAT = (Kind.LOSE_RECORDS, Kind.REPLACE_DISK, Kind.LOSE_OBJECT, Kind.WRONG_PREFIX)
LOSABLE = ("chaos-plain-0", "chaos-plain-1", "chaos-txn-0")
RESPONSES = ("keep", "truncate", "new-history")
_TO_A_PROCESS = (Kind.PAUSE, Kind.KILL)
_BEFORE_THE_STORE = (Kind.CUT, Kind.SLOW, Kind.CORRUPT, Kind.STALE_LISTINGS)


@dataclass(frozen=True, slots=True)
class Act:
    """`at_s`: counts from the round's beginning. `response`: the option of `fetchproxy resolve`."""

    at_s: float
    kind: Kind
    target: str
    for_s: float = 0.0
    response: str = ""

    @property
    def until_s(self) -> float:
        return self.at_s + self.for_s

    def __str__(self) -> str:
        lasting = f", for {self.for_s:.0f} s" if self.for_s else ""
        response = f", then resolve --{self.response}" if self.response else ""
        return f"{self.kind.value} {self.target}{lasting}{response}"


@dataclass(frozen=True, slots=True)
class Round:
    first: Act
    acts: tuple[Act, ...]  # sorted by `at_s`


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    metadata_manager: str
    rounds: tuple[Round, ...]


def make_plan(seed: int, seconds: float) -> Plan:
    rng = Random(seed)
    manager = rng.choice(("store", "topic"))
    # One answer per broker, since `--keep` shows again what `--new-history` had put aside.
    responses = {broker: rng.choice(RESPONSES) for broker in BROKERS}
    great: list[Kind] = []
    rounds = []
    for _ in range(max(1, int(seconds // (ROUND_S + CHECKS_S)))):
        if not great:
            great = list(GREAT)
            rng.shuffle(great)
        first = _great_act(rng, great.pop(), responses)
        rounds.append(Round(first, _overlapping(rng, first)))
    return Plan(seed, manager, tuple(rounds))


def _great_act(rng: Random, kind: Kind, responses: Mapping[str, str]) -> Act:
    if kind is Kind.REPLACE_DISK:
        broker = rng.choice(BROKERS)
        return Act(0.0, kind, broker, response=responses[broker])
    if kind is Kind.WRONG_PREFIX:
        return Act(0.0, kind, rng.choice(ARCHIVERS), for_s=ROUND_S / 2)
    return Act(0.0, kind, rng.choice(LOSABLE))


def _overlapping(rng: Random, first: Act) -> tuple[Act, ...]:
    """Acts whose victims have recovered from earlier acts. Only one broker suffers at a time,
    because an acknowledged record is safe only with two of its three replicas."""
    chosen: list[Act] = []
    for _ in range(rng.randint(*_OVERLAPPING_ACTS)):
        act = _small_act(rng)
        if all(_may_both(act, other) for other in (first, *chosen)):
            chosen.append(act)
    return tuple(sorted(chosen, key=lambda act: act.at_s))


def _small_act(rng: Random) -> Act:
    kind = rng.choice(
        (*_TO_A_PROCESS, *_TO_A_PROCESS, *_BEFORE_THE_STORE, Kind.CLOCK_AHEAD, Kind.CLOCK_AHEAD)
    )
    if kind in _TO_A_PROCESS:
        target = rng.choice((*BROKERS, *ARCHIVERS, *PROXIES, STORE))
    elif kind is Kind.CLOCK_AHEAD:
        target = rng.choice(ARCHIVERS)
    else:
        target = rng.choice((*ARCHIVERS, *PROXIES))
    for_s = rng.uniform(*_ACT_S)
    if kind is Kind.PAUSE:
        for_s = min(for_s, _PAUSE_S_MAX)
    elif kind is Kind.CLOCK_AHEAD:
        for_s = _WRONG_CLOCK_S
    return Act(round(rng.uniform(1.0, ROUND_S - for_s), 1), kind, target, round(for_s, 1))


def _may_both(one: Act, other: Act) -> bool:
    recovery_s = 8.0 if one.target in BROKERS else 1.0
    apart = one.at_s > other.until_s + recovery_s or other.at_s > one.until_s + recovery_s
    return apart or victim(one) != victim(other)


def victim(act: Act) -> str:
    """Only one act at a time is done to a victim. All brokers together are one victim."""
    return "brokers" if act.target in BROKERS else act.target
