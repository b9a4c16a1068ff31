"""What groups hold in memory has one limit, and names count as much as what they name."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from served_archive import Client, serve_archive
from test_archive_only_apis import plant
from test_archive_only_groups import commit, commit_error, join, sync

from fetchproxy.observability.metrics import LIMITS_REACHED
from fetchproxy.serving.archive_only.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    OffsetKey,
    OffsetsFull,
)
from fetchproxy.serving.archive_only.groups import PROTOCOLS_MAX, GroupMemory

MiB = 1 << 20
FULL = 81  # GROUP_MAX_SIZE_REACHED


def protocols(*names: str) -> list[Any]:
    return [JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=b"") for n in names]


async def error_of(client: Client, request: Any, version: int = 3) -> int:
    return int((await client.ask(request, JoinGroupResponse, version)).error_code)


async def test_forty_joins_of_names_alone_stay_within_the_limit() -> None:
    """Names of 32 KiB and no metadata, in requests just below request_bytes_max."""
    limit = 8 * MiB
    names = [f"{number:02}" + 32_000 * "n" for number in range(30)]
    settings = {"archive_only": {"groups_bytes_max": limit}}
    async with serve_archive(await plant(), settings) as served:
        clients = [await served.client() for _ in range(40)]
        await error_of(clients[0], join(group_id="warm"))
        tracemalloc.start()
        try:
            errors = [
                await error_of(client, join(group_id=f"g{n}", protocols=protocols(*names)))
                for n, client in enumerate(clients)
            ]
            traced_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 4 <= errors.count(0) <= 8
        assert errors.count(FULL) == 40 - errors.count(0)
        assert traced_bytes < limit + 2 * MiB  # and what the test's own clients hold


async def test_those_that_wait_hold_what_is_counted_and_no_more() -> None:
    """Nor their requests: a join waits for the others, a sync for the leader."""
    limit = 8 * MiB
    names = [f"{number:02}" + 32_000 * "n" for number in range(30)]
    settings = {"archive_only": {"groups_bytes_max": limit}}
    hour_ms = 3_600_000
    async with serve_archive(
        await plant(), settings, group_initial_rebalance_delay_ms=hour_ms
    ) as served:
        clients = [await served.client() for _ in range(20)]
        await error_of(await served.client(), join(group_id=""))  # what is made once is there
        before = LIMITS_REACHED.labels("groups_bytes_max")._value.get()
        tracemalloc.start()
        try:
            for number, client in enumerate(clients):
                client.send(join(group_id=f"g{number}", protocols=protocols(*names)), 3)
                await client.writer.drain()
            async with asyncio.timeout(60):
                while LIMITS_REACHED.labels("groups_bytes_max")._value.get() < before + 12:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            traced_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert traced_bytes < limit + 2 * MiB


async def test_many_tiny_names_count_as_what_they_cost() -> None:
    limit = 8 * MiB
    many = protocols(*(f"{number:x}" for number in range(PROTOCOLS_MAX)))
    settings = {"archive_only": {"groups_bytes_max": limit}}
    async with serve_archive(await plant(), settings) as served:
        client = await served.client()
        errors = [
            await error_of(client, join(group_id=f"g{n}", protocols=many)) for n in range(550)
        ]
        taken = errors.index(FULL)
        assert errors == [0] * taken + [FULL] * (550 - taken)
        assert 140 < limit / taken / PROTOCOLS_MAX < 200  # bytes of a name, with its share


@pytest.mark.parametrize("name", ["group_id", "group_instance_id", "protocol_type"])
async def test_each_name_counts(name: str) -> None:
    settings = {"archive_only": {"groups_bytes_max": 64 * 1024}}
    async with serve_archive(await plant(), settings) as served:
        client = await served.client()
        groups = iter("abcdefgh")

        def request() -> Any:
            values = {"group_id": next(groups), name: 30_000 * next(groups)}
            return join(**values)

        version = 5 if name == "group_instance_id" else 3
        errors = [await error_of(client, request(), version) for _ in range(4)]
        assert FULL in errors
        assert FULL not in errors[:1]


async def test_ids_that_nobody_joined_with_count_until_they_end() -> None:
    """A first join is answered with an id, which has the client's id in it."""
    settings = {"archive_only": {"groups_bytes_max": 64 * 1024}}
    async with serve_archive(await plant(), settings) as served:
        client = await served.client()

        async def first_join() -> int:
            return await error_of(client, join(group_id=30_000 * "g", session_timeout_ms=6_000), 9)

        assert await first_join() == 79  # MEMBER_ID_REQUIRED
        other = join(group_id=30_000 * "h", session_timeout_ms=6_000)
        assert await error_of(client, other, 9) == FULL
        async with asyncio.timeout(60):
            while (error := await error_of(client, other, 9)) == FULL:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert error == 79


async def test_a_member_may_join_again_at_the_limit() -> None:
    settings = {"archive_only": {"groups_bytes_max": 40_000}}
    async with serve_archive(await plant(), settings) as served:
        client = await served.client()
        brought = protocols("range", 20_000 * "n")
        request = join(protocols=brought)
        me = await client.ask(request, JoinGroupResponse, 3)
        assert me.error_code == 0
        again = await client.ask(join(me.member_id, protocols=brought), JoinGroupResponse, 3)
        assert again.error_code == 0
        leave = LeaveGroupRequest(group_id="g", member_id=me.member_id)
        assert (await client.ask(leave, LeaveGroupResponse, 1)).error_code == 0
        assert await error_of(client, join(group_id="h", protocols=brought)) == 0


async def test_groups_names_of_commits_count() -> None:
    settings = {"archive_only": {"groups_bytes_max": 64 * 1024}}
    async with serve_archive(await plant(), settings) as served:
        client = await served.client()
        errors = []
        for name in "abcd":
            request = commit(None, 5)
            request.group_id = 30_000 * name
            errors.append(await commit_error(client, request, 7))
        assert errors == [0, 0, 28, 28]  # INVALID_COMMIT_OFFSET_SIZE, as at offsets_max


async def test_a_commit_that_was_refused_or_deleted_leaves_its_room() -> None:
    memory = GroupMemory(5_000)
    offsets = CommittedOffsets(None, 100, memory)

    def at(number: int) -> CommittedOffset:
        return CommittedOffset(UUID(int=1), number, 3, 3_000 * "m")

    first, second = OffsetKey("g", "orders", 0), OffsetKey("g", "orders", 1)
    async with offsets:
        await offsets.commit({first: at(1)})
        with pytest.raises(OffsetsFull, match="groups_bytes_max"):
            await offsets.commit({second: at(1)})
        await offsets.commit({first: at(2)})  # what is there already still moves
        await offsets.commit({first: None})
        assert memory.kept_bytes == 0
        await offsets.commit({second: at(1)})


async def test_an_assignment_that_does_not_fit_is_refused() -> None:
    settings = {"archive_only": {"groups_bytes_max": 16 * 1024}}
    async with serve_archive(await plant(), settings) as served:
        client = await served.client()
        me = await client.ask(join(), JoinGroupResponse, 3)
        refused = await client.ask(sync(me, bytes(20_000)), SyncGroupResponse, 5)
        assert refused.error_code == 27  # REBALANCE_IN_PROGRESS
        assert (await client.ask(sync(me), SyncGroupResponse, 5)).error_code == 0
