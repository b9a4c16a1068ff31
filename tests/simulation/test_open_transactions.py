"""A transaction that nobody ends: the alarm comes before the loss, and all clears by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from archiving_world import START_MS, TOPIC, World, run_world, wall_clock_ms

from fetchproxy.observability.health import Condition, Kind
from fetchproxy.writing.partition_watch import OPEN_TRANSACTION_MAX_MS, PINNED_MIN_MS
from fetchproxy.writing.remote_log_manager import RemoteLogManager

MINUTE_MS = 60_000
# Turns and other looks are rare, as virtual hours pass.
SELDOM: dict[str, Any] = {
    "rlm_process_interval_ms": 20_000,
    "discovery_interval_ms": 60_000,
    "remote_refresh_interval_ms": 300_000,
    "retention_check_interval_ms": 3_600_000,
}


def reported(manager: RemoteLogManager, kind: Kind) -> Condition | None:
    reported_conditions = [
        manager.published_conditions.health.reported(kind, one.tp) for one in manager.status()
    ]
    return reported_conditions[0] if reported_conditions else None


async def when(there: Callable[[], bool]) -> int:
    """The wall clock (ms since the start) when it is so."""
    while not there():  # noqa: ASYNC110 - what is waited for knows no events
        await asyncio.sleep(1)
    return wall_clock_ms() - START_MS


def now_written(batch: int) -> int:
    return START_MS


@pytest.mark.parametrize("retention_min", [20, 60])
@pytest.mark.remedy("open_transaction", "archive_margin_small", "unarchived_records_deleted")
def test_the_alarm_comes_before_the_loss_names_the_cause_and_clears(retention_min: int) -> None:
    retention_ms = retention_min * MINUTE_MS

    async def main(world: World) -> None:
        log = world.logs[0]
        world.cluster.topic_configs[TOPIC] = {"retention.ms": str(retention_ms)}
        world.write(0, 10)
        log.open_since = 40
        async with world.archiving(**SELDOM) as manager:
            opened = await when(lambda: reported(manager, Kind.OPEN_TRANSACTION) is not None)
            small = await when(lambda: reported(manager, Kind.ARCHIVE_MARGIN_SMALL) is not None)
            # By age, or as soon as half of the brokers' retention is used up.
            due_ms = min(OPEN_TRANSACTION_MAX_MS, retention_ms // 2)
            assert due_ms <= opened <= due_ms + MINUTE_MS
            assert retention_ms // 2 <= small <= retention_ms // 2 + MINUTE_MS
            await asyncio.sleep(PINNED_MIN_MS / 1000)  # until the brokers have told its producer
            [status] = manager.status()
            assert (status.archive_end, status.lag_offsets, status.margin_offsets) == (40, 60, 40)
            left_ms = retention_ms - (wall_clock_ms() - START_MS)
            assert status.deleted_in_ms == pytest.approx(left_ms, abs=10_000)
            for kind in (Kind.OPEN_TRANSACTION, Kind.ARCHIVE_MARGIN_SMALL):
                condition = reported(manager, kind)
                assert condition is not None
                assert "a transaction of producer 4711, open since offset 40," in condition.what
                assert condition.what.endswith(
                    "abort --topic orders --partition 0 --start-offset 40"
                )
            world.trim(0, 70)  # the brokers delete by time, whatever is open
            await when(lambda: reported(manager, Kind.UNARCHIVED_RECORDS_DELETED) is not None)
            gone = reported(manager, Kind.UNARCHIVED_RECORDS_DELETED)
            assert gone is not None
            assert (gone.first_offset, gone.last_offset) == (40, 69)
            assert "--start-offset 40" in gone.what
            log.open_since = None  # the command of the message
            await when(lambda: manager.status()[0].archive_end == 100)
            await when(lambda: not list(manager.published_conditions.health.all(0.0)))
            [status] = manager.status()
            assert (status.lag_offsets, status.deleted_in_ms) == (0, None)
        gaps = [(one.first_offset, one.last_offset) for one in await world.conditions_of(0)]
        assert gaps == [(40, 69)]

    run_world(main, timestamp_ms=now_written)


def test_bytes_count_before_anything_is_archived() -> None:
    async def main(world: World) -> None:
        world.cluster.topic_configs[TOPIC] = {"retention.bytes": "4000"}
        world.write(0, 12)  # of 200 bytes each
        world.logs[0].open_since = 0
        async with world.archiving(**SELDOM) as manager:
            small = await when(lambda: reported(manager, Kind.ARCHIVE_MARGIN_SMALL) is not None)
            assert small < MINUTE_MS
            [status] = manager.status()
            assert status.archive_end is None
            assert status.retention_used == pytest.approx(0.6, abs=0.01)
            world.trim(0, 20)
            await when(lambda: reported(manager, Kind.UNARCHIVED_RECORDS_DELETED) is not None)
            gone = reported(manager, Kind.UNARCHIVED_RECORDS_DELETED)
            assert gone is not None
            assert (gone.first_offset, gone.last_offset) == (0, 19)
            world.logs[0].open_since = None
            await when(lambda: not list(manager.published_conditions.health.all(0.0)))

    run_world(main)


def test_a_restarted_archiver_knows_how_old_the_waiting_records_are() -> None:
    async def main(world: World) -> None:
        world.cluster.topic_configs[TOPIC] = {"retention.ms": str(60 * MINUTE_MS)}
        world.write(0, 10)
        world.logs[0].open_since = 40
        assert [one.failed for one in await world.once()] == [False]
        await asyncio.sleep(50 * 60)
        async with world.archiving(**SELDOM) as manager:
            began = wall_clock_ms() - START_MS
            small = await when(lambda: reported(manager, Kind.ARCHIVE_MARGIN_SMALL) is not None)
            assert small - began < MINUTE_MS
            left_ms = 60 * MINUTE_MS - (wall_clock_ms() - START_MS)
            assert manager.status()[0].deleted_in_ms == pytest.approx(left_ms, abs=10_000)

    run_world(main, timestamp_ms=now_written)


def test_transactions_that_end_are_no_alarm() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        async with world.archiving(**SELDOM) as manager:
            for batch in range(15):
                world.write(0, 1)
                log.open_since = 10 * batch  # the next one begins as the last one ends
                await asyncio.sleep(100)
                assert not list(manager.published_conditions.health.all(0.0))

    run_world(main, timestamp_ms=lambda batch: START_MS - 86_400_000)  # of a day ago: no matter


def test_without_the_right_to_ask_the_words_say_how_to_find_it() -> None:
    async def main(world: World) -> None:
        world.cluster.describes_producers = False
        world.write(0, 10)
        world.logs[0].open_since = 40
        async with world.archiving(**SELDOM) as manager:
            await when(lambda: reported(manager, Kind.OPEN_TRANSACTION) is not None)
            condition = reported(manager, Kind.OPEN_TRANSACTION)
            assert condition is not None
            assert (
                "an open transaction keeps the last stable offset at 40, for at least 15 min"
                in (condition.what)
            )
            assert "describe-producers --topic orders --partition 0" in condition.what

    run_world(main)
