"""A group's life on the wire, in each version of each of its APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fetchproxy_protocol.apis import ApiKey
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from served_archive import Client, serve_archive
from test_archive_only_apis import plant

from fetchproxy.serving.archive_only.table import ADVERTISED


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with serve_archive(await plant()) as served:
        yield await served.client()


def versions(key: ApiKey) -> range:
    return range(ADVERTISED[key].lowest, ADVERTISED[key].highest + 1)


def join(member_id: str = "", **more: Any) -> Any:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"meta")
    values = {
        "group_id": "g",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [protocol],
        "reason": None,
    }
    return JoinGroupRequest(member_id=member_id, **(values | more))


async def joined(client: Client, version: int = 9) -> Any:
    response = await client.ask(join(), JoinGroupResponse, version)
    if version >= 4:
        assert response.error_code == 79
        response = await client.ask(join(response.member_id), JoinGroupResponse, version)
    return response


def sync(response: Any, assignment: bytes = b"mine") -> Any:
    assignment_of_member = SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=response.member_id, assignment=assignment
    )
    return SyncGroupRequest(
        group_id="g",
        generation_id=response.generation_id,
        member_id=response.member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[assignment_of_member],
    )


async def member(client: Client) -> Any:
    response = await joined(client)
    assert (await client.ask(sync(response), SyncGroupResponse, 5)).assignment == b"mine"
    return response


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_join_group(client: Client, version: int) -> None:
    response = await joined(client, version)
    assert (response.error_code, response.generation_id, response.protocol_name) == (0, 1, "range")
    assert response.leader == response.member_id
    assert response.member_id.startswith("test-")
    assert [(m.member_id, bytes(m.metadata)) for m in response.members] == [
        (response.member_id, b"meta")
    ]
    for wrong, error in ((join(group_id=""), 24), (join(session_timeout_ms=1), 26)):
        assert (await client.ask(wrong, JoinGroupResponse, version)).error_code == error
    unknown = await client.ask(join("nobody"), JoinGroupResponse, version)
    assert unknown.error_code == 25


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
async def test_sync_group(client: Client, version: int) -> None:
    response = await joined(client)
    synced = await client.ask(sync(response), SyncGroupResponse, version)
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"mine")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
async def test_heartbeat(client: Client, version: int) -> None:
    me = await member(client)
    for generation, error in ((me.generation_id, 0), (me.generation_id + 1, 22)):
        request = HeartbeatRequest(
            group_id="g", generation_id=generation, member_id=me.member_id, group_instance_id=None
        )
        assert (await client.ask(request, HeartbeatResponse, version)).error_code == error


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
async def test_leave_group(client: Client, version: int) -> None:
    me = await member(client)
    identity = LeaveGroupRequest.MemberIdentity(
        member_id=me.member_id, group_instance_id=None, reason=None
    )
    for error in (0, 25):
        request = LeaveGroupRequest(group_id="g", member_id=me.member_id, members=[identity])
        response = await client.ask(request, LeaveGroupResponse, version)
        error_code = response.error_code if version < 3 else response.members[0].error_code
        assert error_code == error


def commit(me: Any, offset: int, topic: str = "orders") -> Any:
    topics = OffsetCommitRequest.OffsetCommitRequestTopic
    part = topics.OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=2,
        committed_metadata="note",
    )
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1 if me is None else me.generation_id,
        member_id="" if me is None else me.member_id,
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topics(name=topic, partitions=[part])],
    )


async def commit_error(client: Client, request: Any, version: int) -> int:
    response = await client.ask(request, OffsetCommitResponse, version)
    return int(response.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
async def test_offset_commit(client: Client, version: int) -> None:
    assert await commit_error(client, commit(None, 1), version) == 0
    me = await member(client)
    assert await commit_error(client, commit(None, 2), version) == 25
    assert await commit_error(client, commit(me, 3), version) == 0
    assert await commit_error(client, commit(me, 3, "nothing"), version) == 3
    me.generation_id += 1
    assert await commit_error(client, commit(me, 4), version) == 22
    epoch = 2 if version >= 6 else -1
    assert await fetched(client, 7) == [("orders", 0, 3, epoch, "note")]


async def fetched(client: Client, version: int, *, every: bool = False) -> list[Any]:
    if version >= 8:
        groups = OffsetFetchRequest.OffsetFetchRequestGroup
        topic_wanted = groups.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])
        one = groups(group_id="g", member_id=None, topics=None if every else [topic_wanted])
        request = OffsetFetchRequest(groups=[one], require_stable=True)
        response = (await client.ask(request, OffsetFetchResponse, version)).groups[0]
    else:
        topic_wanted = OffsetFetchRequest.OffsetFetchRequestTopic(
            name="orders", partition_indexes=[0]
        )
        topics = None if every else [topic_wanted]
        request = OffsetFetchRequest(group_id="g", topics=topics, require_stable=True)
        response = await client.ask(request, OffsetFetchResponse, version)
    return [
        (
            topic.name,
            p.partition_index,
            p.committed_offset,
            p.committed_leader_epoch if version >= 5 else -1,
            p.metadata,
        )
        for topic in response.topics
        for p in topic.partitions
    ]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
async def test_offset_fetch(client: Client, version: int) -> None:
    assert await fetched(client, version) == [("orders", 0, -1, -1, "")]
    assert await commit_error(client, commit(None, 5), 9) == 0
    epoch = 2 if version >= 5 else -1
    assert await fetched(client, version) == [("orders", 0, 5, epoch, "note")]
    if version >= 2:
        assert await fetched(client, version, every=True) == [("orders", 0, 5, epoch, "note")]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
async def test_describe_groups(client: Client, version: int) -> None:
    request = DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=False)
    me = await member(client)
    group, other = (await client.ask(request, DescribeGroupsResponse, version)).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    described_member = group.members[0]
    assert (described_member.member_id, bytes(described_member.member_assignment)) == (
        me.member_id,
        b"mine",
    )
    assert (described_member.client_id, described_member.client_host) == ("test", "/127.0.0.1")
    assert (other.group_state, other.error_code) == ("Dead", 69 if version >= 6 else 0)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
async def test_list_groups(client: Client, version: int) -> None:
    assert await commit_error(client, commit(None, 5), 9) == 0
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    groups = (await client.ask(request, ListGroupsResponse, version)).groups
    assert [(g.group_id, g.protocol_type) for g in groups] == [("g", "consumer")]
    if version >= 4:
        assert groups[0].group_state == "Empty"
        request = ListGroupsRequest(states_filter=["Stable"], types_filter=[])
        assert not (await client.ask(request, ListGroupsResponse, version)).groups


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
async def test_delete_groups(client: Client, version: int) -> None:
    request = DeleteGroupsRequest(groups_names=["g"])

    async def delete() -> int:
        response = await client.ask(request, DeleteGroupsResponse, version)
        return int(response.results[0].error_code)

    assert await delete() == 69
    me = await member(client)
    assert await commit_error(client, commit(me, 5), 9) == 0
    assert await delete() == 68
    leave = LeaveGroupRequest(group_id="g", member_id=me.member_id)
    assert (await client.ask(leave, LeaveGroupResponse, 1)).error_code == 0
    assert await delete() == 0
    assert await fetched(client, 7) == [("orders", 0, -1, -1, "")]


async def test_all_members_together_bring_so_many_bytes_at_most() -> None:
    large = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(6_000))
    settings = {"archive_only": {"groups_bytes_max": 10 * 1024}}
    async with serve_archive(await plant(), settings) as served:
        client = await served.client()

        async def join_of(group: str) -> Any:
            request = join(group_id=group, protocols=[large])
            return await client.ask(request, JoinGroupResponse, 3)

        me = await join_of("g")
        assert me.error_code == 0
        assert (await join_of("h")).error_code == 81  # GROUP_MAX_SIZE_REACHED
        leave = LeaveGroupRequest(group_id="g", member_id=me.member_id)
        assert (await client.ask(leave, LeaveGroupResponse, 1)).error_code == 0
        assert (await join_of("h")).error_code == 0
