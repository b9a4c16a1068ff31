"""SIGTERM at an archive-only node: a fetch at the end is answered, and clients are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from archive_only_process import RECORDS, Archived, ArchiveOnlyProcess
from leaving import (
    REBOOTSTRAP_REQUIRED,
    ask_to_end,
    assert_ended,
    assert_lets_nobody_in,
    long_poll,
    metadata,
)
from proxy_process import wait_for
from raw_fetch import RawConnection

pytestmark = pytest.mark.kafka


def test_what_waits_is_answered_first(archived: Archived, tmp_path: Path) -> None:
    with (
        ArchiveOnlyProcess(archived.store, tmp_path) as node,
        RawConnection(node.bootstrap) as waits,
        RawConnection(node.bootstrap) as is_told,
    ):
        assert metadata(is_told, 13).error_code == 0
        with long_poll(waits, "ao-plain", RECORDS) as responses:
            wait_for("the connections", lambda: node.metric("fetchproxy_connections") >= 2)
            ask_to_end(node)
            assert_lets_nobody_in(node)
            metadata_response = metadata(is_told, 13)
            assert (
                metadata_response.error_code,
                metadata_response.brokers,
                metadata_response.topics,
            ) == (REBOOTSTRAP_REQUIRED, [], [])
            assert_ended(is_told)
        (answer,) = responses
        assert (answer.error, answer.records) == (0, b"")
        assert_ended(waits)
        wait_for("the end", lambda: not node.running)
        (end,) = node.logged("drained")
        assert end["connections_cut"] == 0
        assert end["lasted_s"] < 4, "it was not answered at once"
