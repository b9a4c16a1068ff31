"""Where archived topics begin: the starts kept in memory, and the early look at all topics."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from metadata_contract import copied, segment
from structlog.testing import capture_logs
from test_look_ups import ARCHIVED, BROKER_START, EARLIEST, IDS, NEVER, every, gateway, tp_of

from fetchproxy.errors import ClusterUnavailable, StorageUnavailable
from fetchproxy.serving.gateway import offset_lookup as archive_lookup
from fetchproxy.serving.gateway import startup_lookup as first_looks
from fetchproxy.serving.gateway.startup_lookup import look_at_archived_topics


# --- the first archived offset of all partitions ---
async def test_what_has_not_changed_is_not_looked_at_again() -> None:
    async with gateway(archived=300) as gate:
        partitions, expected = {ARCHIVED: range(300)}, every(ARCHIVED, 300, 0, 0)
        for _ in range(2):  # first a look-up, then the kept result
            assert await gate.list_offsets(partitions, EARLIEST) == expected
        gate.store.calls.clear()
        view_before = gate.archive.rlmm.view(tp_of(7))
        with patch.object(gate.archive.views, "checked_view", side_effect=AssertionError):
            assert await gate.list_offsets(partitions, EARLIEST) == expected
        assert gate.archive.rlmm.view(tp_of(7)) is view_before
        assert gate.store.calls == []


async def test_a_log_start_that_was_raised_is_shown_at_once_by_who_knows_it() -> None:
    async with gateway(archived=3) as gate:
        partitions = {ARCHIVED: range(3)}
        assert await gate.list_offsets(partitions, EARLIEST) == every(ARCHIVED, 3, 0, 0)
        await gate.archive.rlmm.raise_log_start_offset(tp_of(1), 33)
        offsets = await gate.list_offsets(partitions, EARLIEST)
        assert offsets == {**every(ARCHIVED, 3, 0, 0), (ARCHIVED, 1): (0, 33)}


async def test_a_broker_that_begins_below_the_archive_is_right() -> None:
    async with gateway(archived=2) as gate:
        await gate.other.raise_log_start_offset(tp_of(0), 40)
        for broker, expected in ((30, 30), (50, 40)):
            offsets = await gate.list_offsets({ARCHIVED: [0]}, EARLIEST, broker=broker)
            assert offsets == {(ARCHIVED, 0): (0, expected)}


async def test_other_leaders_have_the_archive_held_against_them_again() -> None:
    async with gateway(archived=3) as gate:
        partitions, expected = {ARCHIVED: range(3)}, every(ARCHIVED, 3, 0, 0)
        for _ in range(2):
            assert await gate.list_offsets(partitions, EARLIEST) == expected
        checked_view = gate.archive.views.checked_view
        with patch.object(gate.archive.views, "checked_view", side_effect=checked_view) as checks:
            assert await gate.list_offsets(partitions, EARLIEST) == expected
            assert checks.call_count == 0
            gate.cluster.leaders = {0: (2, 4)}
            assert await gate.list_offsets(partitions, EARLIEST) == expected
            assert checks.call_count == 3


async def test_a_view_that_is_too_old_is_read_again() -> None:
    async with gateway(archived=2) as gate:
        partitions = {ARCHIVED: range(2)}
        assert await gate.list_offsets(partitions, EARLIEST) == every(ARCHIVED, 2, 0, 0)
        await gate.other.raise_log_start_offset(tp_of(1), 33)
        gate.later_s = archive_lookup.VIEW_AGE_MAX_S + 1
        offsets = await gate.list_offsets(partitions, EARLIEST)
        assert offsets == {(ARCHIVED, 0): (0, 0), (ARCHIVED, 1): (0, 33)}


async def test_what_an_archiver_gathers_first_is_shown() -> None:
    async with gateway(archived=1) as gate:
        positions = gate.archive.positions
        with (
            patch.object(positions, "accumulates", lambda topic_id: topic_id == IDS[NEVER]),
            patch.object(
                positions, "archiver_position", lambda tp: {1: 40, 2: -1}.get(tp.partition)
            ),
        ):
            offsets = await gate.list_offsets({NEVER: range(3)}, EARLIEST)
        assert offsets == {**every(NEVER, 3, 0, BROKER_START), (NEVER, 1): (0, 40)}


# --- before the first request ---
async def test_what_is_archived_is_looked_up_before_anybody_asks() -> None:
    async with gateway(archived=300) as gate:
        await look_at_archived_topics(gate.archive, asyncio.Event())
        assert gate.store.count("list") == 1
        gate.store.calls.clear()
        offsets = await gate.list_offsets({ARCHIVED: range(300)}, EARLIEST)
        assert offsets == every(ARCHIVED, 300, 0, 0)
        assert gate.store.calls == []


async def test_an_outage_puts_the_first_looks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_looks, "_RETRY_PAUSE_S", 0.01)
    async with gateway(archived=3) as gate:
        for away in (gate.store, gate.cluster):
            name = "error" if away is gate.store else "failure"
            failures = {"error": StorageUnavailable("away"), "failure": ClusterUnavailable("away")}
            setattr(away, name, failures[name])
            tried = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(look_at_archived_topics(gate.archive, tried))
                await tried.wait()
                await asyncio.sleep(0.05)
                assert not looking.done()
                assert gate.archive.rlmm.view(tp_of(0)) is None
                setattr(away, name, None)
            gate.archive.rlmm._views.entries.clear()  # type: ignore[attr-defined]
            gate.archive.rlmm._topic_views.entries.clear()  # type: ignore[attr-defined]


async def test_first_looks_end_where_memory_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_looks, "SEGMENTS_MAX", 3)
    async with gateway(archived=3) as gate:
        await copied(gate.other, segment(99, 0, BROKER_START - 1, tp=tp_of(0, NEVER)))
        gate.later_s = 60
        await gate.archive.rlmm.archived_topics(gate.archive.clock())  # the list of now
        with capture_logs() as logged:
            await look_at_archived_topics(gate.archive, asyncio.Event())
        assert [entry["event"] for entry in logged] == ["archive_looked_up_in_part"]
        looked_at = [gate.archive.rlmm.view(tp_of(0, topic)) for topic in (ARCHIVED, NEVER)]
        assert looked_at.count(None) == 1
