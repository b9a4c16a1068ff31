"""The groups of a cluster with their committed offsets, of every kind, from their coordinators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode, WireError
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.primitives import Cursor, encode_count, encode_string
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.group_offsets import read_while_coordinators_stay
from fetchproxy.brokers.messages import raise_for
from fetchproxy.cluster_state.missing_parts import MissingParts, call_all, call_decoded, in_words
from fetchproxy.cluster_state.state import GroupKind, GroupWithOffsets, OffsetOfGroup
from fetchproxy.errors import ClusterError
from fetchproxy.runtime.cooperative import pieces

# Groups whose offsets are asked for together; the broker reads them from its memory.
GROUPS_PER_LOOK = 100
_GROUP_RIGHT = "DESCRIBE on all groups"
_FLEXIBLE = True  # DescribeShareGroupOffsets has no other form
_NO_TAGS = b"\x00"
_TOPIC_ID_BYTES = 16


async def read_groups(cluster: Cluster, missing: MissingParts) -> tuple[GroupWithOffsets, ...]:
    """Groups that have committed, sorted; the others have nothing to go on from. Raises
    ClusterError.
    """

    async def read() -> tuple[list[GroupWithOffsets], MissingParts]:
        groups, holes = list[GroupWithOffsets](), MissingParts()
        for address in (await cluster.brokers()).values():
            async with cluster.exclusive(address) as connection:
                groups += await _coordinated(connection, holes)
        return groups, holes

    groups, holes = await read_while_coordinators_stay(cluster, read)
    for hole in holes.parts:
        missing.add(hole.what, hole.why, hole.right)
    return tuple(sorted(groups, key=lambda group: group.group_id))


async def _coordinated(connection: BrokerConnection, holes: MissingParts) -> list[GroupWithOffsets]:
    """The groups of one coordinator."""
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    response = await call_decoded(connection, request, ListGroupsResponse)
    raise_for(response.error_code, f"ListGroups of {connection.address}")
    kinds = {one.group_id: _kind(one.group_type) for one in response.groups}
    for group_id in [group_id for group_id, kind in kinds.items() if kind is None]:
        holes.add(f"group {group_id}", "it is of a kind that this fetchproxy does not know")
    groups: list[GroupWithOffsets] = []
    refused: list[str] = []
    share = sorted(group_id for group_id, kind in kinds.items() if kind is GroupKind.SHARE)
    known = {g: kind for g, kind in kinds.items() if kind and kind is not GroupKind.SHARE}
    for some in pieces(sorted(known), GROUPS_PER_LOOK):
        committed = await _offsets(connection, some, refused)
        groups += [GroupWithOffsets(g, known[g], offsets) for g, offsets in committed.items()]
    for some in pieces(share, GROUPS_PER_LOOK):
        try:
            of_share = await _share_offsets(connection, some, refused)
        except ClusterError as error:
            holes.note(f"the offsets of share groups ({in_words(share)})", error, _GROUP_RIGHT)
            break
        groups += [GroupWithOffsets(one, GroupKind.SHARE, of_share[one]) for one in of_share]
    if refused:
        holes.add(f"groups {in_words(refused)}", "the brokers refuse their offsets", _GROUP_RIGHT)
    return [group for group in groups if group.offsets]


def _kind(name: str | None) -> GroupKind | None:
    """Brokers before 3.8 name no kind. None: an unknown one."""
    try:
        return GroupKind(name.lower()) if name else GroupKind.CLASSIC
    except ValueError:
        return None


async def _offsets(
    connection: BrokerConnection, group_ids: Sequence[str], refused: list[str]
) -> dict[str, tuple[OffsetOfGroup, ...]]:
    """Asks for all of them before the first response, as each may fail alone."""
    requests = [
        OffsetFetchRequest(group_id=group_id, topics=None, require_stable=False)
        for group_id in group_ids
    ]
    responses = await call_all(connection, requests, OffsetFetchResponse, _error_and_offsets)
    offsets_by_group = {}
    for group_id, (error_code, offsets) in zip(group_ids, responses, strict=True):
        if not _is_refused(error_code, group_id, refused):
            offsets_by_group[group_id] = offsets
    return offsets_by_group


def _error_and_offsets(response: Any) -> tuple[int, tuple[OffsetOfGroup, ...]]:
    return response.error_code, tuple(_committed(response))


def _committed(response: Any) -> Iterator[OffsetOfGroup]:
    for topic in response.topics:
        for one in topic.partitions:
            if one.error_code == 0 and one.committed_offset >= 0:
                yield OffsetOfGroup(
                    topic.name,
                    one.partition_index,
                    one.committed_offset,
                    one.committed_leader_epoch,
                    one.metadata or "",
                )


def _is_refused(error_code: int, group_id: str, refused: list[str]) -> bool:
    """Notes a refused group. True also for one that was deleted meanwhile. Raises ClusterError."""
    if error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        refused.append(group_id)
    elif error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise_for(error_code, f"the offsets of group {group_id}")
        return False
    return True


# --- share groups (KIP-932): kafka-python has no such message -------------------------------------


async def _share_offsets(
    connection: BrokerConnection, group_ids: Sequence[str], refused: list[str]
) -> Mapping[str, tuple[OffsetOfGroup, ...]]:
    key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
    version = connection.version_of(key)
    [payload] = await connection.send(key, version, [b"".join(_share_request(group_ids))])
    offsets_by_group = {}
    try:
        cursor = response_body(payload, key, version)
        cursor.int32()  # throttle time
        for _ in range(cursor.count(_FLEXIBLE) or 0):
            group_id, offsets, error_code = _share_group(cursor)
            if not _is_refused(error_code, group_id, refused):
                offsets_by_group[group_id] = offsets
    except WireError as error:
        raise ClusterError(f"DescribeShareGroupOffsets is malformed: {error}") from None
    return offsets_by_group


def _share_request(group_ids: Iterable[str]) -> Iterator[bytes]:
    every = list(group_ids)
    yield encode_count(len(every), _FLEXIBLE)
    for group_id in every:
        all_topics = encode_count(None, _FLEXIBLE)
        yield encode_string(group_id, _FLEXIBLE) + all_topics + _NO_TAGS
    yield _NO_TAGS


def _share_group(cursor: Cursor) -> tuple[str, tuple[OffsetOfGroup, ...], int]:
    group_id, offsets = cursor.string(_FLEXIBLE), list[OffsetOfGroup]()
    for _ in range(cursor.count(_FLEXIBLE) or 0):
        topic = cursor.string(_FLEXIBLE)
        cursor.skip(_TOPIC_ID_BYTES, "topic id")
        for _ in range(cursor.count(_FLEXIBLE) or 0):
            partition, start, epoch = cursor.int32(), cursor.int64(), cursor.int32()
            error_code = cursor.int16()
            cursor.skip_string(_FLEXIBLE)  # the error's text
            cursor.skip_tags(_FLEXIBLE)
            if error_code == 0 and start >= 0:
                offsets.append(OffsetOfGroup(topic, partition, start, epoch))
        cursor.skip_tags(_FLEXIBLE)
    error_code = cursor.int16()
    cursor.skip_string(_FLEXIBLE)
    cursor.skip_tags(_FLEXIBLE)
    return group_id, tuple(offsets), error_code
