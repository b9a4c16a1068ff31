"""A request of as many elements as are allowed is read, looked up and answered in steps, and one
that names more than real clients do is refused by its counts."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections import Counter
from sys import getsizeof
from typing import Any

import pytest
from blown_messages import Shape, request
from fetchproxy_protocol.apis import ApiKey, MalformedMessage
from fetchproxy_protocol.messages import ELEMENTS_MAX, ELEMENTS_PER_STEP, read_request
from loop_turns import loop_turns
from served_archive import Client, ServedArchive, serve_archive
from test_archive_only_apis import plant

from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only import groups, handling
from fetchproxy.serving.archive_only.apis import log_offsets
from fetchproxy.serving.archive_only.groups import ClassicGroup, JoinRequest
from fetchproxy.serving.archive_only.handling import ELEMENTS_MAX_OF
from fetchproxy.serving.archive_only.schemas import request_of
from fetchproxy.serving.limits import ArchiveOnlyLimits

# A request with so many elements in the array; those of OffsetCommit have one each within them.
LONG = [
    (ApiKey.METADATA, 8, "Topics", ELEMENTS_MAX),
    (ApiKey.OFFSET_COMMIT, 7, "Topics", ELEMENTS_MAX // 2),
    (ApiKey.LIST_OFFSETS, 4, "Topics", ELEMENTS_MAX),
    (ApiKey.FIND_COORDINATOR, 4, "CoordinatorKeys", ELEMENTS_MAX),
    (ApiKey.DELETE_GROUPS, 2, "GroupsNames", ELEMENTS_MAX),
]


async def turns_of(client: Client, frame: bytes) -> int:
    """Turns of the loop between the request and the whole response."""
    turns, over = 0, asyncio.Event()

    async def count() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    client.writer.write(frame)
    assert (await client.receive())[:4] == struct.pack(">i", 7)
    over.set()
    await counting
    return turns


@pytest.mark.parametrize(("key", "version", "array", "count"), LONG)
async def test_a_long_request_takes_many_turns(
    key: ApiKey, version: int, array: str, count: int
) -> None:
    shape = Shape(long=(array,), elements_max=count)
    frame = request(key, version, shape)
    async with serve_archive(await plant()) as served:
        turns = await turns_of(await served.client(), frame)
    assert turns >= 2 * ELEMENTS_MAX / ELEMENTS_PER_STEP  # to read it, and to write the response


@pytest.mark.parametrize(
    ("key", "version", "array"),
    [
        (ApiKey.JOIN_GROUP, 5, "Protocols"),
        (ApiKey.SYNC_GROUP, 3, "Assignments"),
        (ApiKey.LEAVE_GROUP, 3, "Members"),
    ],
)
def test_a_group_request_names_no_more_than_a_group_has(
    key: ApiKey, version: int, array: str
) -> None:
    def read(count: int) -> int:
        frame = request(key, version, Shape(long=(array,), elements_max=count))
        at = 4 + 10 + len(b"hostile")
        steps = read_request(request_of(key), frame, at, key, version, ELEMENTS_MAX_OF[key])
        return len(at_once(steps)[array.lower()])

    most = ELEMENTS_MAX_OF[key]
    assert read(most) == most
    with pytest.raises(MalformedMessage, match="elements"):
        read(most + 1)


async def test_a_look_up_names_no_more_partitions_than_another_request() -> None:
    shape = Shape(long=("Topics", "Partitions"), elements_max=ELEMENTS_MAX + 1)
    async with serve_archive(await plant()) as served:
        client = await served.client()
        client.writer.write(request(ApiKey.LIST_OFFSETS, 4, shape))
        assert await client.closed()


def test_a_groups_size_is_counted_by_its_members_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each join counted the names of all members' protocols: 6 ms with 300 members of 100 each."""
    sized: list[int] = []
    monkeypatch.setattr(groups, "getsizeof", lambda value: sized.append(1) or getsizeof(value))
    protocols = tuple((f"p{n}", b"") for n in range(100))
    join_request = JoinRequest("", None, "c", "h", 30.0, 30.0, "consumer", protocols, False, False)
    group = ClassicGroup("g", ArchiveOnlyLimits(), lambda prefix: f"{prefix}-{len(sized)}")
    for _ in range(20):
        group.join(0.0, join_request, lambda reply: None)
        groups.group_bytes(group)
    assert len(sized) < 20 * 300


async def send_by_each(served: ServedArchive, count: int, frame: bytes) -> None:
    """So many clients send the same request in the same moment, and get their responses."""
    clients = [await served.client() for _ in range(count)]
    for client in clients:
        client.writer.write(frame)
    for client in clients:
        await client.receive()


async def test_the_members_of_a_large_group_get_their_replies_in_turns_of_their_own() -> None:
    """All of them at once held the loop for 19 ms with 300 members; a group may have 1,000."""
    limits = ArchiveOnlyLimits(group_initial_rebalance_delay_ms=50)
    coordinator = groups.GroupCoordinator(
        limits, groups.GroupMemory(1 << 24), lambda prefix: f"{prefix}-{next(numbers)}"
    )
    numbers, members = itertools.count(), 300
    join_request = JoinRequest(
        "", None, "c", "h", 30.0, 30.0, "consumer", (("p", b""),), False, False
    )
    joined_in, synced_in = Counter[int](), Counter[int]()

    async def member() -> None:
        joined = await coordinator.join("g", join_request)
        joined_in[turns.count] += 1
        me = groups.Membership(joined.member_id, None, joined.generation_id)
        of_leader = tuple((str(one["member_id"]), b"") for one in joined.members)
        await coordinator.sync("g", groups.SyncRequest(me, of_leader, None, None))
        synced_in[turns.count] += 1

    async with loop_turns() as turns, asyncio.TaskGroup() as tasks:
        for _ in range(members):
            tasks.create_task(member())
    coordinator.close()
    assert sum(joined_in.values()) == sum(synced_in.values()) == members
    assert max(joined_in.values()) == 1
    assert max(synced_in.values()) <= 2, "some sync when the leader has done so"


async def test_look_ups_that_memory_answers_are_made_one_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of ten clients made 32 of them in a turn of the loop."""
    shape = Shape(long=("Topics",), names="full", elements_max=300, fixed={"Timestamp": 5})
    frame = request(ApiKey.LIST_OFFSETS, 4, shape)
    made_in, look_up = Counter[int](), log_offsets._look_up

    async def counted(*arguments: Any) -> Any:
        made_in[turns.count] += 1
        return await look_up(*arguments)

    monkeypatch.setattr(log_offsets, "_look_up", counted)
    async with serve_archive(await plant()) as served, loop_turns() as turns:
        await send_by_each(served, 10, frame)
    assert sum(made_in.values()) == 10 * 300
    # Each client's first 32 begin together.
    assert max(made_in.values()) <= 32 + 1


async def test_requests_of_some_length_take_a_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = request(ApiKey.METADATA, 8, Shape(long=("Topics",), names="full", elements_max=20))
    read_in = Counter[int]()

    def counted(*request: Any) -> Any:
        read_in[turns.count] += 1
        return read_request(*request)

    monkeypatch.setattr(handling, "read_request", counted)
    async with serve_archive(await plant()) as served, loop_turns() as turns:
        await send_by_each(served, 50, frame)
    assert sum(read_in.values()) == 50
    assert max(read_in.values()) <= 2


async def test_a_crowd_of_connections_is_accepted_some_in_a_turn() -> None:
    async with serve_archive(await plant()) as served:
        # By the kernel alone: the loop has no turn meanwhile.
        crowd = [socket.create_connection(("127.0.0.1", served.server.port)) for _ in range(300)]
        most, before = 0, served.server.connections
        while served.server.connections < len(crowd):
            await asyncio.sleep(0)
            most = max(most, served.server.connections - before)
            before = served.server.connections
        for each in crowd:
            each.close()
    assert most <= 64
