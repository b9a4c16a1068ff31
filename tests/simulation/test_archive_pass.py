"""One pass over partitions: a failure ends no other, and what is left out is named."""

from __future__ import annotations

import pytest
from archiving_world import BATCH_OFFSETS, World, run_world
from memory_object_store import MemoryObjectStore

from fetchproxy.errors import ClusterError, StorageDenied, StorageUnavailable, leaves
from fetchproxy.writing.archive_pass import PARTITION_TRIES_MAX, PARTITIONS_FAILED_IN_A_ROW_MAX

GONE = "the brokers deleted them before they could be copied"


class Refusing(MemoryObjectStore):
    """Refuses some puts of logs: by partition, how many times."""

    def __init__(self, refusals: dict[int, int], error: Exception) -> None:
        super().__init__()
        self.refusals = refusals
        self.error = error
        self.requests: list[int] = []

    async def put_file(self, key: str, *args: object, **more: object) -> None:
        partition = int(key.split("/")[-2])
        self.requests.append(partition)
        if self.refusals.get(partition, 0) > 0:
            self.refusals[partition] -= 1
            raise self.error
        await super().put_file(key, *args, **more)  # type: ignore[arg-type]


def test_a_failed_partition_ends_no_other_and_is_tried_again() -> None:
    store = Refusing(
        {1: PARTITION_TRIES_MAX - 1, 2: PARTITION_TRIES_MAX},
        StorageUnavailable("status 503 SlowDown"),
    )

    async def main(world: World) -> None:
        for partition in range(4):
            world.write(partition, 2)
        [failure] = await world.once(workers_max=1)
        assert [await world.archive_end(p) for p in range(4)] == [20, 20, None, 20]
        assert str(failure) == (
            "orders-2: offsets 0 to 19: status 503 SlowDown; repair the store or the network to "
            "it, then run this again"
        )
        assert (failure.failed, failure.may_succeed_again) == (True, True)
        assert store.requests.count(2) == PARTITION_TRIES_MAX
        assert await world.once() == []
        assert await world.archive_end(2) == 20
        store.refusals[2] = PARTITION_TRIES_MAX
        world.write(2, 1)
        [failure] = await world.once()
        assert failure.offsets == (20, 29)  # what is archived is not in the list

    run_world(main, partitions=4, store=store)


def test_what_no_second_try_mends_is_tried_once() -> None:
    store = Refusing({0: 100}, StorageDenied("status 403"))

    async def main(world: World) -> None:
        world.write(0, 1)
        world.write(1, 1)
        [failure] = await world.once()
        assert (failure.tp.partition, failure.may_succeed_again, store.requests.count(0)) == (
            0,
            False,
            1,
        )

    run_world(main, partitions=2, store=store)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(100, "recreated"), (3, "recreated"), (29, "these rights"), (6, "repair the cluster")],
)
def test_what_to_do_depends_on_what_the_brokers_say(code: int, remedy: str) -> None:
    """A topic that is deleted meanwhile is no fault of cluster or network."""
    store = Refusing({0: 100}, ClusterError("said", code))

    async def main(world: World) -> None:
        world.write(0, 1)
        [failure] = await world.once()
        assert remedy in failure.remedy

    run_world(main, partitions=1, store=store)


def test_a_store_that_is_away_is_not_asked_for_each_partition() -> None:
    count = PARTITIONS_FAILED_IN_A_ROW_MAX + 30
    store = Refusing(dict.fromkeys(range(count), 100), StorageUnavailable("away"))

    async def main(world: World) -> None:
        for partition in range(count):
            world.write(partition, 1)
        failures = await world.once(workers_max=1)
        assert [one.tp.partition for one in failures] == list(range(count))
        assert all(one.failed for one in failures)
        assert len(store.requests) == PARTITION_TRIES_MAX * PARTITIONS_FAILED_IN_A_ROW_MAX
        assert "not tried, because others failed before: away" in str(failures[-1])

    run_world(main, partitions=count, store=store)


def test_records_that_retention_took_first_are_named_once_and_stay_on_record() -> None:
    async def main(world: World) -> None:
        world.write(0, 4)
        assert await world.once() == []
        world.write(0, 6)
        world.trim(0, 60)
        [failure] = await world.once()
        assert (failure.offsets, failure.cause, failure.failed) == ((40, 59), GONE, True)
        assert await world.archive_end(0) == 100
        assert await world.once() == []
        assert [str(one) for one in await world.conditions_of(0)] == [
            "archive_gap: orders-0: offsets 40 to 59 were lost before they could be copied "
            "(recorded gap)"
        ]

    run_world(main)


def test_a_loss_at_the_end_of_the_log_is_on_record_too() -> None:
    async def main(world: World) -> None:
        world.write(0, 4)
        assert await world.once() == []
        world.write(0, 6)
        world.trim(0, 100)
        [failure] = await world.once()
        assert failure.offsets == (40, 99)
        assert [(one.first_offset, one.last_offset) for one in await world.conditions_of(0)] == [
            (40, 99)
        ]
        assert await world.once() == []
        world.write(0, 3)
        world.trim(0, 110)  # the gap grows
        [failure] = await world.once()
        assert failure.offsets == (100, 109)
        gaps = await world.conditions_of(0)
        assert [(one.first_offset, one.last_offset) for one in gaps] == [(40, 109)]
        assert await world.archive_end(0) == 130

    run_world(main)


def test_records_lost_before_anything_was_archived_are_named_too() -> None:
    async def main(world: World) -> None:
        world.write(0, 10)
        archive_pass = world.archive_pass()
        archive_pass.log_starts = {world.logs[0].tp: 0}  # as planned before the trim
        world.trim(0, 30)
        _, [failure] = await archive_pass.run()
        assert (failure.offsets, failure.cause) == ((0, 29), GONE)
        assert await world.conditions_of(0) == []  # the archive begins behind them
        assert await world.archive_end(0) == 100

    run_world(main)


def test_what_an_open_transaction_keeps_from_the_archive_is_said_and_is_no_failure() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        world.write(0, 10)
        log.open_since = 40
        [failure] = await world.once()
        assert await world.archive_end(0) == 40
        assert (failure.offsets, failure.failed) == ((40, 99), False)
        assert str(failure) == (
            "orders-0: offsets 40 to 99: a transaction of producer 4711, open since offset 40, "
            "keeps the last stable offset at 40; if its producer does not end it, this does: "
            "kafka-transactions.sh --bootstrap-server BROKER abort --topic orders --partition 0 "
            "--start-offset 40"
        )
        world.cluster.describes_producers = False
        [failure] = await world.once()
        assert failure.cause == "an open transaction keeps the last stable offset at 40"
        assert "describe-producers --topic orders --partition 0" in failure.remedy
        log.open_since = None  # aborted
        assert await world.once() == []
        assert await world.archive_end(0) == log.high_watermark == 10 * BATCH_OFFSETS

    run_world(main)


def test_a_defect_in_one_partition_is_raised_when_the_others_are_done() -> None:
    store = Refusing({0: 1}, RuntimeError("a bug"))

    async def main(world: World) -> None:
        for partition in range(3):
            world.write(partition, 1)
        with pytest.raises(ExceptionGroup) as raised:
            await world.once(workers_max=1)
        assert [repr(one) for one in leaves(raised.value)] == ["RuntimeError('a bug')"]
        assert [await world.archive_end(p) for p in range(3)] == [None, 10, 10]

    run_world(main, partitions=3, store=store)
