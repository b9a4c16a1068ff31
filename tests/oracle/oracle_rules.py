"""When two answers are the same. Every rule that is weaker than equality has an id here.

For an offset that both brokers have in their local logs the answers must be equal, field by field
(in the normal form of `oracle_log`). Where only the remote tier has it, Kafka itself promises no
particular number of batches, so the two are judged by what a client can rely on. Each weaker rule
is a `Mismatch` with an id; those that docs/reference/compatibility/differences.toml explains are
counted, any other fails.
"""

from __future__ import annotations

import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle_log import Names, NormalBatch, filter_aborted, normal_form
from oracle_world import TwinTopic

DIFFERENCES = Path(__file__).parents[2] / "docs/reference/compatibility/differences.toml"
# Watermarks in the archive's answers are refreshed every 2 s; the rest is for a slow machine.
MARKS_AGE_MAX_S = 20.0
KAFKA, PROXY = "kafka", "fetchproxy"


@dataclass(frozen=True)
class Mismatch:
    """`id` names the kind where it is a known one, else what was compared."""

    id: str
    kafka: object
    proxy: object

    def __str__(self) -> str:
        return f"{self.id}: {KAFKA} {self.kafka!s:.300}, {PROXY} {self.proxy!s:.300}"


def explained() -> dict[str, str]:
    """id → why, of every difference that the compatibility page lists with an id."""
    if not DIFFERENCES.exists():
        return {}
    listed = tomllib.loads(DIFFERENCES.read_text()).get("difference", [])
    return {entry["id"]: entry["why"] for entry in listed if "id" in entry}


@dataclass
class Findings:
    """What comparisons found; `counted` are explained ones by id."""

    reasons: dict[str, str] = field(default_factory=explained)
    counted: Counter[str] = field(default_factory=Counter)
    unexplained: list[Mismatch] = field(default_factory=list)

    def add(self, id: str, kafka: object, proxy: object) -> None:
        if id in self.reasons:
            self.counted[id] += 1
        else:
            self.unexplained.append(Mismatch(id, kafka, proxy))

    def equal(self, id: str, kafka: object, proxy: object) -> None:
        if kafka != proxy:
            self.add(id, kafka, proxy)


@dataclass(frozen=True)
class Part:
    """One partition's Fetch response in normal form."""

    error: int
    marks: tuple[int, int, int]  # high watermark, LSO, log start
    aborted: list[tuple[str, int]] | None
    batches: list[NormalBatch]
    partial_bytes: int
    size_bytes: int
    others: tuple[object, ...]  # preferred replica and the tagged fields

    @property
    def empty(self) -> bool:
        return self.error == 0 and self.size_bytes == 0


def read_part(partition: Any, version: int, names: Names) -> Part:
    records = bytes(partition.records or b"")
    batches, rest = normal_form(records, names)
    aborted = partition.aborted_transactions
    if aborted is not None:
        aborted = [(names.producer(a.producer_id), a.first_offset) for a in aborted]
    start = partition.log_start_offset if version >= 5 else -1
    marks = (partition.high_watermark, partition.last_stable_offset, start)
    others: tuple[object, ...] = ()
    if version >= 11:
        others += (partition.preferred_read_replica,)
    if version >= 12:
        leader, fork = partition.current_leader, partition.diverging_epoch
        others += (leader and (leader.leader_id, names.epoch(leader.leader_epoch)),)
        others += (fork and (names.epoch(fork.epoch), fork.end_offset),)
    return Part(
        partition.error_code, marks, aborted, batches, len(rest), len(records), others
    )  # fmt: skip


@dataclass(frozen=True)
class PartitionAsk:
    """What one partition was asked; `bytes_max` is the smaller of both limits."""

    offset: int
    isolation: int
    bytes_max: int


def compare_parts(
    findings: Findings, topic: TwinTopic, request: PartitionAsk, kafka: Part, proxy: Part
) -> None:
    if kafka.error or proxy.error:
        findings.equal(f"fetch.error at {region(topic, request.offset)}", kafka.error, proxy.error)
        if kafka.error == proxy.error:
            findings.equal(f"fetch.marks of error {kafka.error}", kafka.marks, proxy.marks)
            findings.equal(f"fetch.fields of error {kafka.error}", kafka.others, proxy.others)
        return
    if is_archived(topic, request.offset):
        _compare_archived(findings, topic, request, kafka, proxy)
    else:
        _compare_local(findings, topic, kafka, proxy)


def region(topic: TwinTopic, offset: int) -> str:
    log = topic.log
    if offset < log.log_start:
        return "below the log start"
    if offset < log.local_start:
        return "archived"
    return "local" if offset <= log.end else "above the end"


def is_archived(topic: TwinTopic, offset: int) -> bool:
    return region(topic, offset) == "archived"


def _compare_local(findings: Findings, topic: TwinTopic, kafka: Part, proxy: Part) -> None:
    findings.equal(
        "fetch.local.records", list(map(str, kafka.batches)), list(map(str, proxy.batches))
    )
    findings.equal("fetch.local.bytes", kafka.batches == proxy.batches, True)
    findings.equal("fetch.local.partial batch", kafka.partial_bytes, proxy.partial_bytes)
    findings.equal("fetch.local.aborted", kafka.aborted, proxy.aborted)
    findings.equal("fetch.local.high watermark, LSO", kafka.marks[:2], proxy.marks[:2])
    compare_log_start(findings, topic, kafka.marks[2], proxy.marks[2])
    findings.equal("fetch.local.fields", kafka.others, proxy.others)


def compare_log_start(findings: Findings, topic: TwinTopic, kafka: int, proxy: int) -> None:
    """Of a response that the broker gave: -1 where the archive was not looked at yet, and its own
    start for a while after a first segment has been archived."""
    if kafka != proxy:
        late = proxy == -1 or proxy in recent_marks(topic, 2) | recent_marks(topic, 3)
        findings.add("fetch-tail-log-start-late" if late else "fetch.local.log start", kafka, proxy)


def _compare_archived(
    findings: Findings, topic: TwinTopic, request: PartitionAsk, kafka: Part, proxy: Part
) -> None:
    for name, part in ((KAFKA, kafka), (PROXY, proxy)):
        check_archived(findings, name, topic, request, part)
    if proxy.batches and kafka.batches and len(kafka.batches) != len(proxy.batches):
        findings.add("fetch-archived-length", len(kafka.batches), len(proxy.batches))
    if kafka.partial_bytes and not proxy.partial_bytes:
        findings.add("fetch-archived-partial-batch", kafka.partial_bytes, 0)
    findings.equal("fetch.archived.aborted null", kafka.aborted is None, proxy.aborted is None)
    findings.equal("fetch.archived.fields", kafka.others, proxy.others)
    _compare_marks(findings, topic, kafka.marks, proxy.marks)


def _compare_marks(
    findings: Findings, topic: TwinTopic, kafka: tuple[int, int, int], proxy: tuple[int, int, int]
) -> None:
    if kafka == proxy:
        return
    names = ("high watermark", "LSO", "log start")
    for i, name in enumerate(names):
        if kafka[i] == proxy[i]:
            continue
        known = proxy[i] in recent_marks(topic, i)
        if i < 2 and proxy[i] == topic.log.archived:
            # Newer than what the broker was last asked: what is archived is below the LSO.
            known = known or min(recent_marks(topic, i)) < proxy[i] < kafka[i]
        findings.add(
            "fetch-archived-stale-marks" if known else f"fetch.archived.{name}", kafka[i], proxy[i]
        )


def recent_marks(topic: TwinTopic, i: int) -> set[int]:
    """All values that were true within the last MARKS_AGE_MAX_S."""
    oldest = time.monotonic() - MARKS_AGE_MAX_S
    values, last = set(), topic.marks[0][1][i]
    for at, marks in topic.marks:
        if at >= oldest:
            values.add(last)
            values.add(marks[i])
        last = marks[i]
    return values | {last}


def check_archived(
    findings: Findings, name: str, topic: TwinTopic, request: PartitionAsk, part: Part
) -> None:
    """One side's data from the remote tier against the log as it was written."""
    expected = topic.log.from_offset(request.offset)[: len(part.batches)]
    if part.batches != expected:
        findings.add(
            f"fetch.archived.records of {name}", _texts(expected), _texts(part.batches)
        )  # fmt: skip
        return
    if not part.batches:
        if topic.log.holds(request.offset, request.isolation):
            findings.add(f"fetch.archived.nothing from {name}", request, part)
        return
    last = part.batches[-1].last_offset
    if last >= topic.log.visible_end(request.isolation):
        findings.add(f"fetch.archived.above LSO from {name}", topic.log.last_stable, last)
    whole = part.size_bytes - part.partial_bytes
    if len(part.batches) > 1 and whole > request.bytes_max:
        findings.add(f"fetch.archived.too large from {name}", request.bytes_max, whole)
    if name == PROXY and part.partial_bytes:
        findings.add("fetch.archived.partial batch from fetchproxy", 0, part.partial_bytes)
    if request.isolation:
        _check_aborted(findings, name, topic, request, part)


def _check_aborted(
    findings: Findings, name: str, topic: TwinTopic, request: PartitionAsk, part: Part
) -> None:
    aborted = part.aborted or []
    kept_ranges = filter_aborted(part.batches, aborted)
    expected = topic.log.committed_data(part.batches)
    if kept_ranges != expected:
        findings.add(f"fetch.archived.committed records of {name}", expected, kept_ranges)
    first = max(part.batches[0].base_offset, request.offset)
    exact = topic.log.aborted_between(first, part.batches[-1].last_offset)
    if set(aborted) == exact and len(aborted) == len(exact):
        return
    if name == KAFKA and set(aborted) >= exact:
        findings.add("fetch-archived-aborted-superset", aborted, sorted(exact))
    else:
        findings.add(f"fetch.archived.aborted list of {name}", sorted(exact), aborted)


def _texts(batches: list[NormalBatch]) -> list[str]:
    return [str(batch) for batch in batches]
