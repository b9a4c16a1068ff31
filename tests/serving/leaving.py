"""What one client sees of a process that ends, over its own connection."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection

LONG_POLL_MS = 25_000
REBOOTSTRAP_REQUIRED = 129


@contextmanager
def long_poll(client: RawConnection, topic: str, offset: int) -> Iterator[list[Any]]:
    """A fetch that waits meanwhile. Its response is in the list afterwards."""
    responses: list[Any] = []
    topic_id = client.topic_id(topic)

    def fetch() -> None:
        responses.append(client.fetch(13, topic, topic_id, offset, wait_ms=LONG_POLL_MS))

    thread = threading.Thread(target=fetch, name="long poll")
    thread.start()
    try:
        yield responses
    finally:
        thread.join()


def metadata(client: RawConnection, version: int) -> Any:
    return client.ask(MetadataRequest[version](topics=[]), MetadataResponse, version)


def ask_to_end(proxy: ProxyProcess) -> None:
    os.kill(proxy.pid, signal.SIGTERM)
    wait_for("the drain", lambda: proxy.logged("draining"))


def assert_lets_nobody_in(proxy: ProxyProcess) -> None:
    with pytest.raises(HTTPError, match="503") as refused:
        proxy.get("/readyz")
    refused.value.close()
    with pytest.raises(ConnectionRefusedError):
        RawConnection(proxy.bootstrap)


def assert_ended(client: RawConnection) -> None:
    """The stream has ended as it should, also that of TLS."""
    assert client._socket.recv(1) == b""
