from __future__ import annotations

import asyncio

import pytest
from memory_object_store import MemoryObjectStore
from structlog.testing import capture_logs
from virtual_loop import run_virtual

from fetchproxy.errors import ObjectNotFound, StorageDenied, StorageUnavailable
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.storage.store_health import (
    SILENT_AFTER_S,
    OperationHealth,
    OperationStatus,
    StoreOperation,
)
from fetchproxy.storage.watched_store import WatchedObjectStore

ERROR = StorageUnavailable("refused")
READ_LABELS = {"operation": "read"}


def test_before_the_first_answer_nothing_is_known() -> None:
    tracker = OperationHealth(StoreOperation.READ)
    assert tracker.status(1e9) == OperationStatus(None, 0.0, None)


def test_an_outage_counts_from_the_beginning_of_the_first_failed_request() -> None:
    tracker = OperationHealth(StoreOperation.READ)
    tracker.succeeded(10.0)
    tracker.failed(45.0, began_at=15.0, error=ERROR)  # it hung for 30 s
    tracker.failed(50.0, began_at=49.0, error=ERROR)
    assert tracker.status(60.0) == OperationStatus(False, 45.0, "StorageUnavailable: refused")
    assert tracker.last_failure_at == 50.0
    assert REGISTRY.get_sample_value("fetchproxy_store_up", READ_LABELS) == 0
    assert REGISTRY.get_sample_value("fetchproxy_store_failing_seconds", READ_LABELS) == 35.0


def test_but_not_from_before_the_last_success() -> None:
    tracker = OperationHealth(StoreOperation.READ)
    tracker.succeeded(20.0)
    tracker.failed(45.0, began_at=15.0, error=ERROR)
    assert tracker.failing_for_s(45.0) == 25.0


def test_one_success_ends_it_and_the_last_error_stays_known() -> None:
    tracker = OperationHealth(StoreOperation.READ)
    tracker.failed(1.0, began_at=0.5, error=ERROR)
    tracker.succeeded(2.0)
    assert tracker.status(3.0) == OperationStatus(True, 0.0, "StorageUnavailable: refused")
    assert tracker.failing_since is None
    assert REGISTRY.get_sample_value("fetchproxy_store_up", READ_LABELS) == 1
    assert REGISTRY.get_sample_value("fetchproxy_store_failing_seconds", READ_LABELS) == 0


def test_a_short_trouble_is_not_logged_a_long_one_once() -> None:
    tracker = OperationHealth(StoreOperation.READ)
    with capture_logs() as logs:
        tracker.failed(10.0, began_at=9.5, error=ERROR)
        tracker.succeeded(10.2)
    assert not logs
    with capture_logs() as logs:
        for second in range(5):
            tracker.failed(20.0 + second, began_at=20.0, error=ERROR)
        tracker.succeeded(30.0)
    assert [entry["event"] for entry in logs] == ["store_failing", "store_failing_no_more"]
    assert logs[1]["lasted_s"] == 10.0


def test_a_request_without_an_answer_fails_when_it_has_been_silent_for_long() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        tracker = OperationHealth(StoreOperation.WRITE)
        with capture_logs() as logs:
            async with tracker.watch_request() as responded:
                began_at = loop.time()
                await asyncio.sleep(SILENT_AFTER_S - 1)
                tracker.look(loop.time())
                assert tracker.status(loop.time()).up is None
                await asyncio.sleep(1)
                tracker.look(loop.time())
                assert tracker.status(loop.time()) == OperationStatus(
                    False, SILENT_AFTER_S, "no response for 8 s"
                )
                assert tracker.failing_since == began_at
                responded()
                assert tracker.status(loop.time()).up
        assert [entry["event"] for entry in logs] == ["store_failing", "store_failing_no_more"]
        async with tracker.watch_request(may_take_long=True):
            await asyncio.sleep(100 * SILENT_AFTER_S)
            tracker.look(loop.time())
            assert tracker.status(loop.time()).up

    run_virtual(main)


def test_a_silent_request_beside_others_that_are_answered_is_no_outage() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        tracker = OperationHealth(StoreOperation.READ)
        async with tracker.watch_request():
            await asyncio.sleep(SILENT_AFTER_S)
            tracker.succeeded(loop.time())
            await asyncio.sleep(SILENT_AFTER_S)
            tracker.look(loop.time())
        assert tracker.status(loop.time()).up

    run_virtual(main)


class ReadOnlyStore(MemoryObjectStore):
    """A full store: reads work, writes do not."""

    async def put(self, key: str, content: bytes) -> None:
        raise StorageDenied(f"{key}: the bucket is full")


async def test_a_store_that_takes_no_writes_is_shown_as_such() -> None:
    store = WatchedObjectStore(ReadOnlyStore())
    with pytest.raises(StorageDenied):
        await store.put("a", b"")
    with pytest.raises(ObjectNotFound):
        await store.get("a")
    assert [stored_object async for stored_object in store.list("")] == []
    await store.delete("a")
    now = asyncio.get_running_loop().time()
    assert {name: status.up for name, status in store.health.status(now).items()} == {
        "list": True, "read": True, "write": False, "delete": True
    }  # fmt: skip
    assert store.health[StoreOperation.WRITE].status(now).last_error == (
        "StorageDenied: a: the bucket is full"
    )
