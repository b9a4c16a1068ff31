from __future__ import annotations

from pathlib import Path

import pytest

from fetchproxy.config.sections import StoreConfig
from fetchproxy.errors import ObjectNotFound
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.storage.memory import MemoryObjectStore
from fetchproxy.storage.open import open_store
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_operations_are_timed_and_failures_counted() -> None:
    count = "fetchproxy_store_request_seconds_count"
    errors = "fetchproxy_store_request_errors_total"
    seen = sample(count, operation="get_segment_metadata")
    failed = sample(errors, operation="get_segment_metadata", error="ObjectNotFound")
    async with RemoteStorageManager(MemoryObjectStore()) as rsm:
        with pytest.raises(ObjectNotFound):
            await rsm.get_segment_metadata("absent")
    assert sample(count, operation="get_segment_metadata") == seen + 1
    assert sample(errors, operation="get_segment_metadata", error="ObjectNotFound") == failed + 1


async def test_what_succeeds_is_no_error(tmp_path: Path) -> None:
    count = "fetchproxy_store_request_seconds_count"
    seen = sample(count, operation="list_partitions")
    async with open_store(tmp_path.as_uri(), StoreConfig()) as rsm:
        assert await rsm.list_partitions() == []
    assert sample(count, operation="list_partitions") == seen + 1
