"""SIGTERM as one client sees it: the process answers what waits, and ends the stream behind it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from leaving import (
    REBOOTSTRAP_REQUIRED,
    ask_to_end,
    assert_ended,
    assert_lets_nobody_in,
    long_poll,
    metadata,
)
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka


def proxy_before(kafka: KafkaServer, folder: Path, drain_max_ms: int) -> ProxyProcess:
    (folder / "store").mkdir()
    return ProxyProcess(
        kafka.bootstrap,
        (folder / "store").as_uri(),
        folder,
        settings={"gateway.drain_max_ms": drain_max_ms},
    )


def test_what_waits_is_answered_first(kafka_server: KafkaServer, tmp_path: Path) -> None:
    kafka_server.create_topic("leaving", 1)
    with (
        proxy_before(kafka_server, tmp_path, 4_000) as proxy,
        RawConnection(proxy.bootstrap) as waits,
        RawConnection(proxy.bootstrap) as is_told,
    ):
        assert metadata(is_told, 13).error_code == 0
        with long_poll(waits, "leaving", 0) as responses:
            wait_for("the connections", lambda: proxy.metric("fetchproxy_connections") >= 2)
            ask_to_end(proxy)
            assert_lets_nobody_in(proxy)
            assert metadata(is_told, 13).error_code == REBOOTSTRAP_REQUIRED
            assert_ended(is_told)
        (answer,) = responses
        assert (answer.error, answer.records) == (0, b"")
        assert_ended(waits)
        wait_for("the end", lambda: not proxy.running)
        (end,) = proxy.logged("drained")
        assert end["connections_cut"] == 0
        assert not proxy.logged("session_crashed") + proxy.logged("part_failed")


def test_a_second_signal_ends_it_at_once(kafka_server: KafkaServer, tmp_path: Path) -> None:
    kafka_server.create_topic("leaving-twice", 1)
    with (
        proxy_before(kafka_server, tmp_path, 3_600_000) as proxy,
        RawConnection(proxy.bootstrap) as client,
    ):
        metadata(client, 13)  # so it is waited for
        ask_to_end(proxy)
        os.kill(proxy.pid, signal.SIGTERM)
        wait_for("the end", lambda: not proxy.running)
        assert not proxy.logged("drained")
        assert "Traceback" not in proxy.log_text()
