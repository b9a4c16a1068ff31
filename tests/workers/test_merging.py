"""The figures of several workers as those of one process."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fetchproxy.workers.merging import merged_metrics, merged_status


def worker_registry(factor: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("bytes", "Bytes", ["direction"], registry=registry).labels('a{"} b').inc(10 * factor)
    Gauge("clients", "Clients now", registry=registry).set(factor)
    Histogram("waits", "Waits", registry=registry, buckets=(1, 2)).observe(1.5 * factor)
    return registry


def test_each_sample_gets_its_worker_and_nothing_else_changes() -> None:
    registries = {number: worker_registry(number + 1) for number in range(2)}
    texts = {number: generate_latest(each).decode() for number, each in registries.items()}
    found = {
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
    assert found == expected | {("own_metric", ()): 1.0}


def test_a_metric_is_declared_once() -> None:
    text = generate_latest(worker_registry(1)).decode()
    merged = merged_metrics({0: text, 1: text}, "").splitlines()
    declared = [line for line in merged if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared)) == text.count("# TYPE")


def status(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "relay": {"connections": 1}, "remote_reads": {"catches": 2}, "cache": {"bytes": 3},
        "clients": [], "clients_total": 0, "events": [], "conditions": [], "condition_counts": {},
        "headlines": [], "missing": [], "archiver": None,
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
