"""How the store answers. Declared here, reached through `metrics`."""

from __future__ import annotations

from prometheus_client import Histogram

from fetchproxy.observability.registry import REGISTRY, counter, gauge

# Seconds; from a page-cache read of a local file to a store in trouble.
STORE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

STORE_UP = gauge(
    "fetchproxy_store_up",
    "1: the last request of its kind succeeded; 0: it failed. operation: list, read, write, delete",
    "operation",
)
STORE_FAILING_SECONDS = gauge(
    "fetchproxy_store_failing_seconds",
    "Seconds since requests of that kind began to fail; 0 while they succeed",
    "operation",
)
for _operation in ("list", "read", "write", "delete"):
    STORE_UP.labels(_operation).set(1)
    STORE_FAILING_SECONDS.labels(_operation).set(0)
STORE_REQUEST_SECONDS = Histogram(
    "fetchproxy_store_request_seconds",
    "Seconds per operation of the RemoteStorageManager, by its name",
    ("operation",),
    registry=REGISTRY,
    buckets=STORE_SECONDS,
)
STORE_REQUEST_ERRORS = counter(
    "fetchproxy_store_request_errors",
    "Operations on the store that failed, by name and error",
    "operation",
    "error",
)
