from __future__ import annotations

from structlog.testing import capture_logs

from fetchproxy.errors import StorageUnavailable
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.remote_fetch.store_health import StoreHealth, StoreHealthTracker

ERROR = StorageUnavailable("refused")


def test_up_until_something_fails() -> None:
    tracker = StoreHealthTracker()
    assert tracker.health(1e9) == StoreHealth(True, 0.0, None)


def test_an_outage_counts_from_the_beginning_of_the_first_failed_request() -> None:
    tracker = StoreHealthTracker()
    tracker.succeeded(10.0)
    tracker.failed(45.0, began_at=15.0, error=ERROR)  # it hung for 30 s
    tracker.failed(50.0, began_at=49.0, error=ERROR)
    assert tracker.health(60.0) == StoreHealth(False, 45.0, "StorageUnavailable: refused")
    assert tracker.last_failure_at == 50.0
    assert REGISTRY.get_sample_value("fetchproxy_store_up") == 0
    assert REGISTRY.get_sample_value("fetchproxy_store_failing_seconds") == 35.0


def test_but_not_from_before_the_last_success() -> None:
    tracker = StoreHealthTracker()
    tracker.succeeded(20.0)
    tracker.failed(45.0, began_at=15.0, error=ERROR)
    assert tracker.failing_for_s(45.0) == 25.0


def test_one_success_ends_it_and_the_last_error_stays_known() -> None:
    tracker = StoreHealthTracker()
    tracker.failed(1.0, began_at=0.5, error=ERROR)
    tracker.succeeded(2.0)
    assert tracker.health(3.0) == StoreHealth(True, 0.0, "StorageUnavailable: refused")
    assert tracker.failing_since is None
    assert REGISTRY.get_sample_value("fetchproxy_store_up") == 1
    assert REGISTRY.get_sample_value("fetchproxy_store_failing_seconds") == 0


def test_a_short_trouble_is_not_logged_a_long_one_once() -> None:
    tracker = StoreHealthTracker()
    with capture_logs() as logs:
        tracker.failed(10.0, began_at=9.5, error=ERROR)
        tracker.succeeded(10.2)
    assert not logs
    with capture_logs() as logs:
        for second in range(5):
            tracker.failed(20.0 + second, began_at=20.0, error=ERROR)
        tracker.succeeded(30.0)
    assert [entry["event"] for entry in logs] == ["store_failing", "store_recovered"]
    assert logs[1]["failed_for_s"] == 10.0
