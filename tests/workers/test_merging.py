"""The figures of several workers as those of one process."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fetchproxy.console.api import ENDPOINTS
from fetchproxy.observability.health import Condition, Kind
from fetchproxy.workers.console import MERGED
from fetchproxy.workers.merging import (
    merged_conditions,
    merged_groups,
    merged_lines,
    merged_metrics,
    merged_readers,
    merged_status,
)

# Clients choose their names: with all that ends a line somewhere.
LABEL = 'a{"} b\u2028c\u2028d\x85e\x1cf\x0cg\nh'


def worker_registry(factor: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("bytes", "Bytes", ["direction"], registry=registry).labels(LABEL).inc(10 * factor)
    Gauge("clients", "Clients now", registry=registry).set(factor)
    Histogram("waits", "Waits", registry=registry, buckets=(1, 2)).observe(1.5 * factor)
    return registry


def test_each_sample_gets_its_worker_and_nothing_else_changes() -> None:
    registries = {number: worker_registry(number + 1) for number in range(2)}
    texts = {number: generate_latest(each).decode() for number, each in registries.items()}
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(merged_metrics(texts, "own_metric 1.0\n"))
        for sample in family.samples
    }
    expected = {
        (sample.name, tuple(sorted({**sample.labels, "worker": str(number)}.items()))): sample.value
        for number, text in texts.items()
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values == expected | {("own_metric", ()): 1.0}


def test_a_metric_is_declared_once() -> None:
    text = generate_latest(worker_registry(1)).decode()
    merged = merged_metrics({0: text, 1: text}, "").splitlines()
    declared = [line for line in merged if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared)) == text.count("# TYPE")


def status(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "relay": {"connections": 1}, "remote_reads": {"catches": 2}, "cache": {"bytes": 3},
        "clients": [], "clients_total": 0, "events": [], "conditions": [], "condition_counts": {},
        "headlines": [], "missing": [], "archiver": None, "problems": [],
        "outlook": {"says": "", "lost_in_seconds": None},
    }  # fmt: skip
    return plain | changes


def test_figures_of_clients_are_sums_and_conditions_are_shown_once() -> None:
    away = {"kind": "brokers_away", "subject": ""}
    of_first = {"kind": "archive_gap", "subject": "orders-0"}
    first = status(
        archiver={"leads": 4},
        clients=[{"client_id": "slow", "bytes_per_s": 1}],
        clients_total=1,
        conditions=[away, of_first],
        condition_counts={"brokers_away": 1, "archive_gap": 1},
        headlines=["No broker answers"],
        missing=["brokers"],
        events=[{"at": "12:00"}],
    )
    second = status(
        clients=[{"client_id": "fast", "bytes_per_s": 9}],
        clients_total=1,
        conditions=[away],
        condition_counts={"brokers_away": 1},
        headlines=["No broker answers"],
        missing=["brokers"],
        events=[{"at": "12:01"}],
    )
    merged = merged_status([first, second])
    assert merged["relay"] == {"connections": 2}
    assert [client["client_id"] for client in merged["clients"]] == ["fast", "slow"]
    assert merged["clients_total"] == 2
    assert merged["archiver"] == {"leads": 4}
    assert merged["conditions"] == [away, of_first]
    assert merged["condition_counts"] == {"brokers_away": 1, "archive_gap": 1}
    assert (merged["headlines"], merged["missing"]) == (["No broker answers"], ["brokers"])
    assert [event["at"] for event in merged["events"]] == ["12:01", "12:00"]


def test_a_problem_of_several_workers_is_told_once_and_the_soonest_loss_counts() -> None:
    away = {"kind": "brokers_away", "level": "error"}
    first = status(
        problems=[{"kind": "archive_gap", "level": "on record"}],
        outlook={"says": "not known", "lost_in_seconds": None},
    )
    second = status(problems=[away], outlook={"says": "soon", "lost_in_seconds": 60})
    third = status(problems=[away], outlook={"says": "later", "lost_in_seconds": 90})
    merged = merged_status([first, second, third])
    assert [one["kind"] for one in merged["problems"]] == ["brokers_away", "archive_gap"]
    assert merged["outlook"]["says"] == "soon"
    assert merged_status([first, status()])["outlook"]["says"] == "not known"
    assert merged_status([status(), status()])["outlook"]["says"] == ""


def test_readers_and_groups_of_several_workers_are_sums() -> None:
    def row(address: str, store_bytes: int, usd: float | None = None) -> dict[str, Any]:
        names = {"address": address, "client_id": "c", "user": "", "group": "g"}
        return {**names, "store_bytes": store_bytes, "served_bytes": 1, "usd": usd}

    readers = merged_readers([[row("a", 5), row("b", 6)], [row("a", 7, 0.5)]])
    assert readers == [{**row("a", 12, 0.5), "served_bytes": 2}, row("b", 6)]
    groups = merged_groups(
        [
            [{"group": "z", "clients": 1}],
            [{"group": "b", "clients": 2}, {"group": "z", "clients": 3}],
        ]
    )
    assert groups == [{"group": "b", "clients": 2}, {"group": "z", "clients": 4}]


def condition(kind: Kind, subject: str = "") -> dict[str, Any]:
    return Condition(kind, "words", subject).as_json_at(0.0)


def test_conditions_are_there_once_and_the_worst_first() -> None:
    lists = [
        [condition(Kind.BROKER_AWAY, "1"), condition(Kind.BROKER_AWAY, "2")],
        [condition(Kind.BROKERS_AWAY), condition(Kind.BROKER_AWAY, "2")],
    ]
    kinds_and_subjects = [(row["kind"], row["subject"]) for row in merged_conditions(lists)]
    assert kinds_and_subjects == [("brokers_away", ""), ("broker_away", "1"), ("broker_away", "2")]


def test_lines_of_the_log_are_sorted_by_time() -> None:
    lists = [[{"at": "3"}, {"at": "1"}], [{"at": "2"}]]
    assert [row["at"] for row in merged_lines(lists)] == ["3", "2", "1"]


def test_pages_that_are_merged_are_pages_of_the_api() -> None:
    assert MERGED.keys() < {endpoint.path for endpoint in ENDPOINTS}
