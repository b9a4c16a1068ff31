"""What is counted plainly on the relay's path, and read through the library's counters."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from fetchproxy.observability.metrics import TalliedCounter


def test_a_tally_is_taken_over_once_whoever_reads_and_beside_what_else_is_counted() -> None:
    registry = CollectorRegistry()
    counter = TalliedCounter("moved", "Bytes", ("way",), registry=registry)
    there, back = counter.tally(way="there"), counter.tally(way="back")

    def moved(way: str) -> float | None:
        return registry.get_sample_value("moved_total", {"way": way})

    there.total += 5
    assert (moved("there"), moved("back")) == (5, 0)
    there.total += 2
    back.total += 1
    counter.labels(way="back").inc(10)
    assert (moved("there"), moved("back")) == (7, 11)
    assert (moved("there"), moved("back")) == (7, 11)


def test_a_counter_without_labels_has_one_too() -> None:
    registry = CollectorRegistry()
    tally = TalliedCounter("seen", "Things", registry=registry).tally()
    tally.total += 3
    assert registry.get_sample_value("seen_total") == 3
