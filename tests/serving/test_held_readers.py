"""Readers between the tiers: judged together once a second, led on at the limit, forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from fetchproxy_protocol.fetch import PartitionKey
from virtual_loop import run_virtual

from fetchproxy.metadata.archiver_positions import SILENT_MAX_S
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import HELD_PARTITIONS, LIMITS_REACHED
from fetchproxy.serving.gateway.held_readers import ABSENT_MAX_S, HeldReaders
from fetchproxy.serving.gateway.route_decision import ENDS, Route, RouteDecision, Wait

TP = TopicIdPartition(UUID(int=1), "t", 0)
KEY: PartitionKey = (b"t", 0)
WAIT = RouteDecision(Route.WAIT, TP, waits_for=Wait.ACCUMULATED)
NOT_KNOWN = RouteDecision(Route.WAIT, TP, waits_for=Wait.RESPONSE)
LOST = RouteDecision(Route.LOST, TP, forward_to=500)
HELD_MAX_MS = 10_000


class Reader:
    def __init__(self) -> None:
        self.checked_view: list[tuple[PartitionKey, int, Route]] = []

    def settle(self, key: PartitionKey, offset: int, decision: RouteDecision) -> None:
        self.checked_view.append((key, offset, decision.outcome))


class Judge:
    """Returns `says`, and LOST for partitions that may wait no longer."""

    def __init__(self, says: RouteDecision = WAIT) -> None:
        self.says = says
        self.looks: list[dict[PartitionKey, int]] = []

    async def __call__(
        self,
        by_id: bool,
        offsets: Mapping[PartitionKey, int],
        now: float,
        impatient: Collection[PartitionKey],
    ) -> Mapping[PartitionKey, RouteDecision]:
        self.looks.append(dict(offsets))
        return {key: LOST if key in impatient else self.says for key in offsets}


@asynccontextmanager
async def running(
    decide_routes: Judge, held_max_ms: int = HELD_MAX_MS
) -> AsyncIterator[HeldReaders]:
    held_readers = HeldReaders(asyncio.get_running_loop().time, held_max_ms)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(held_readers.run(decide_routes))
        yield held_readers
        task.cancel()


def in_metric() -> int:
    return int(next(iter(HELD_PARTITIONS.collect())).samples[0].value)


def test_all_held_partitions_are_one_look_a_second_and_none_where_nobody_is_held() -> None:
    async def main() -> None:
        decide_routes, reader = Judge(), Reader()
        async with running(decide_routes) as held_readers:
            await asyncio.sleep(60)
            assert not decide_routes.looks
            keys = [(b"t", n) for n in range(1_000)]
            for key in keys:
                tp = TP._replace(partition=key[1])
                held_readers.hold(
                    reader, False, key, 7, RouteDecision(Route.WAIT, tp, waits_for=Wait.ACCUMULATED)
                )
            assert in_metric() == 1_000
            await asyncio.sleep(5.5)
            assert len(decide_routes.looks) == 5
            assert decide_routes.looks[0] == dict.fromkeys(keys, 7)
            decide_routes.says = RouteDecision(Route.REMOTE, TP)
            await asyncio.sleep(1)
            assert {key for key, _, _ in reader.checked_view} == set(keys)
            assert in_metric() == 0
            looks = len(decide_routes.looks)
            await asyncio.sleep(60)
            assert len(decide_routes.looks) == looks

    run_virtual(main)


def test_at_the_limit_a_reader_is_led_on_and_not_before() -> None:
    async def main() -> None:
        before = LIMITS_REACHED.labels("held_max_ms")._value.get()
        reader = Reader()
        async with running(Judge()) as held_readers:
            held_readers.hold(reader, False, KEY, 7, WAIT)
            await asyncio.sleep(HELD_MAX_MS / 1000 - 0.5)
            assert not reader.checked_view
            await asyncio.sleep(1)
            assert reader.checked_view == [(KEY, 7, Route.LOST)]
        assert LIMITS_REACHED.labels("held_max_ms")._value.get() == before + 1

    run_virtual(main)


def test_a_copy_that_nobody_owns_to_is_given_up_as_a_silent_archiver_is() -> None:
    """A crash leaves an unfinished copy for ever; a change of archiver is silent for a moment."""

    async def main() -> None:
        waiting_for_copy = RouteDecision(Route.WAIT, TP, waits_for=Wait.COPY)
        decide_routes, reader = Judge(waiting_for_copy), Reader()
        async with running(decide_routes, held_max_ms=1_800_000) as held_readers:
            held_readers.hold(reader, False, KEY, 7, waiting_for_copy)
            for says in (WAIT, waiting_for_copy, NOT_KNOWN, waiting_for_copy):
                await asyncio.sleep(SILENT_MAX_S - 4)
                assert held_readers.note_fetch(reader, False, KEY, 7)
                decide_routes.says = says
                await asyncio.sleep(2)
            await asyncio.sleep(SILENT_MAX_S + 2)
            assert reader.checked_view == [(KEY, 7, Route.LOST)]

    run_virtual(main)


@pytest.mark.parametrize("wait", Wait)
def test_every_wait_has_its_limit_and_is_shown(wait: Wait) -> None:
    """A reader waits for nothing that is not in the table, and for no longer than it says."""
    limit_s = {"held_max_ms": 100.0, "SILENT_MAX_S": SILENT_MAX_S, None: None}[ENDS[wait][1]]

    async def main() -> None:
        outcome = Route.END if wait is Wait.RECORDS else Route.WAIT
        waits = RouteDecision(outcome, TP, waits_for=wait)
        reader = Reader()
        async with running(Judge(waits), held_max_ms=100_000) as held_readers:
            held_readers.hold(reader, False, KEY, 7, waits)
            conditions_shown = [(one.subject, one.what) for one in held_readers.conditions()]
            if wait is Wait.RECORDS:
                assert conditions_shown == [], "at the log's end, as every reader"
            else:
                assert [subject for subject, _ in conditions_shown] == [wait.name.lower()]
                assert wait.value in conditions_shown[0][1]
                assert f"such as {TP} at offset 7" in conditions_shown[0][1]
            for _ in range(round(limit_s or 300) - 1):
                assert held_readers.note_fetch(reader, False, KEY, 7)
                await asyncio.sleep(1)
            await asyncio.sleep(2.5)
            ended = [] if limit_s is None else [(KEY, 7, Route.LOST)]
            assert reader.checked_view == ended

    run_virtual(main)


def test_while_nothing_is_known_no_time_is_counted() -> None:
    """In an outage the archiver cannot go on either, so its data are not given up."""

    async def main() -> None:
        decide_routes, reader = Judge(), Reader()
        async with running(decide_routes) as held_readers:
            held_readers.hold(reader, False, KEY, 7, WAIT)
            await asyncio.sleep(8.5)
            decide_routes.says = NOT_KNOWN
            for _ in range(10):
                await asyncio.sleep(HELD_MAX_MS / 1000)
                assert held_readers.note_fetch(reader, False, KEY, 7)
            decide_routes.says = WAIT
            await asyncio.sleep(HELD_MAX_MS / 1000 - 0.5)
            assert not reader.checked_view
            await asyncio.sleep(3)
            assert reader.checked_view == [(KEY, 7, Route.LOST)]

    run_virtual(main)


def test_one_at_the_logs_end_waits_for_records_and_not_for_the_archiver() -> None:
    async def main() -> None:
        decide_routes, reader = (
            Judge(RouteDecision(Route.END, TP, waits_for=Wait.RECORDS)),
            Reader(),
        )
        async with running(decide_routes) as held_readers:
            held_readers.hold(reader, False, KEY, 7, WAIT)
            assert in_metric() == 1
            await asyncio.sleep(1.5)
            assert reader.checked_view == [(KEY, 7, Route.END)], "its ends are shown otherwise"
            assert in_metric() == 0
            for _ in range(5):
                await asyncio.sleep(HELD_MAX_MS / 1000)
                assert held_readers.note_fetch(reader, False, KEY, 7)
            assert len(reader.checked_view) == 1

    run_virtual(main)


def test_several_readers_at_several_offsets_are_each_told() -> None:
    async def main() -> None:
        decide_routes, readers = Judge(), [Reader(), Reader(), Reader()]
        async with running(decide_routes) as held_readers:
            held_readers.hold(readers[0], False, KEY, 7, WAIT)
            held_readers.hold(readers[1], False, KEY, 7, WAIT)
            held_readers.hold(readers[2], False, KEY, 9, WAIT)
            assert in_metric() == 1
            decide_routes.says = LOST
            await asyncio.sleep(1.5)
            assert decide_routes.looks == [{KEY: 7}, {KEY: 9}]
            offsets = [[offset for _, offset, _ in reader.checked_view] for reader in readers]
            assert offsets == [[7], [7], [9]]

    run_virtual(main)


def test_a_partition_is_counted_once_however_its_readers_name_the_topic() -> None:
    async def main() -> None:
        async with running(Judge()) as held_readers:
            held_readers.hold(Reader(), False, KEY, 7, WAIT)
            held_readers.hold(Reader(), True, (TP.topic_id.bytes, 0), 7, WAIT)
            assert in_metric() == 1
            held_readers.hold(
                Reader(), False, (b"u", 0), 7, RouteDecision(Route.WAIT, waits_for=Wait.RESPONSE)
            )
            held_readers.hold(
                Reader(), False, (b"u", 1), 7, RouteDecision(Route.WAIT, waits_for=Wait.RESPONSE)
            )
            assert in_metric() == 3

    run_virtual(main)


def test_who_has_left_or_stays_away_is_not_judged_for() -> None:
    async def main() -> None:
        decide_routes, gone, away = Judge(NOT_KNOWN), Reader(), Reader()
        async with running(decide_routes) as held_readers:
            held_readers.hold(gone, False, KEY, 7, NOT_KNOWN)
            held_readers.hold(away, False, (b"u", 0), 7, NOT_KNOWN)
            held_readers.leave(gone)
            held_readers.leave(gone)
            await asyncio.sleep(ABSENT_MAX_S - 1)
            assert decide_routes.looks[-1] == {(b"u", 0): 7}
            await asyncio.sleep(5)
            looks = len(decide_routes.looks)
            await asyncio.sleep(60)
            assert len(decide_routes.looks) == looks
            assert not held_readers.note_fetch(away, False, (b"u", 0), 7)
            assert not gone.checked_view
            assert not away.checked_view

    run_virtual(main)
