"""Which group a client's requests name, and to which of its connections it belongs."""

from __future__ import annotations

from typing import Any

import pytest
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.headers import peek_request_header, request_header
from message_schema import encode_body
from test_client_rates import RATE, Clock, share_of

from fetchproxy.serving.admission import NAME_CHARS_MAX, ClientQuota, ClientRates
from fetchproxy.serving.client_groups import GroupsOfClients
from fetchproxy.serving.gateway.apis.group_names import HANDLING, KEYS, group_of
from fetchproxy.serving.gateway.apis.table import BEHAVIOURS

GROUP = "billing"
JOIN: dict[str, Any] = {
    "GroupId": GROUP,
    "SessionTimeoutMs": 1,
    "RebalanceTimeoutMs": 1,
    "MemberId": "m",
    "GroupInstanceId": None,
    "ProtocolType": "consumer",
    "Protocols": [],
    "Reason": None,
}


def fetch_of(*groups: str) -> dict[str, Any]:
    every = [
        {"GroupId": one, "MemberId": None, "MemberEpoch": -1, "Topics": None} for one in groups
    ]
    return {"GroupId": groups[0], "Topics": [], "Groups": every, "RequireStable": False}


def named(key: ApiKey, version: int, body: bytes, end: int | None = None) -> str:
    frame = request_header(key, version, 7, "app") + body
    return group_of(frame, peek_request_header(frame), len(frame) if end is None else end)


@pytest.mark.parametrize("version", range(10))
def test_a_join_names_its_group(version: int) -> None:
    body = encode_body("JoinGroupRequest", version, JOIN)
    assert named(ApiKey.JOIN_GROUP, version, body) == GROUP
    assert named(ApiKey.JOIN_GROUP, version, body, 16) == ""  # it came in part


@pytest.mark.parametrize("version", range(1, 10))
def test_a_question_for_commits_names_its_group_if_it_is_one(version: int) -> None:
    body = encode_body("OffsetFetchRequest", version, fetch_of(GROUP))
    assert named(ApiKey.OFFSET_FETCH, version, body) == GROUP
    if version >= 8:
        several = encode_body("OffsetFetchRequest", version, fetch_of(GROUP, "audit"))
        assert named(ApiKey.OFFSET_FETCH, version, several) == ""


def test_a_heartbeat_of_the_new_protocol_names_its_group() -> None:
    body = bytes([len(GROUP) + 1]) + GROUP.encode() + b"\x01" + bytes(20)
    assert named(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, body) == GROUP


def test_the_gateway_looks_into_these_requests_alone() -> None:
    looks = {key for key, rows in BEHAVIOURS.items() if any(r.handling is HANDLING for r in rows)}
    assert looks == set(KEYS)


def quotas(count: int) -> list[ClientQuota]:
    first = share_of(ClientRates(lambda: RATE, Clock()))
    return [first, *(ClientQuota(first._admission) for _ in range(count - 1))]


async def test_a_group_belongs_to_all_connections_of_its_client_while_one_names_it() -> None:
    coordinator, reader, other = quotas(3)
    assert reader.client("10.0.0.1", "app").group == ""
    coordinator.group_is("10.0.0.1", "app", GROUP)
    coordinator.group_is("10.0.0.1", "app", GROUP)
    assert reader.client("10.0.0.1", "app").group == GROUP
    assert other.client("10.0.0.2", "app").group == ""
    other.group_is("10.0.0.1", "app", "audit")
    assert reader.client("10.0.0.1", "app").group == GroupsOfClients.SEVERAL
    other.close()
    assert reader.client("10.0.0.1", "app").group == GROUP
    coordinator.group_is("10.0.0.1", "app", "audit")
    assert reader.client("10.0.0.1", "app").group == "audit"
    coordinator.close()
    assert reader.client("10.0.0.1", "app").group == ""
    assert not reader._admission.groups.items()


async def test_names_that_clients_choose_are_cut() -> None:
    reader, coordinator = quotas(2)
    reader.user = "u" * 5_000
    coordinator.group_is("10.0.0.1", "c" * 5_000, "g" * 5_000)
    client = reader.client("10.0.0.1", "c" * 5_000)
    assert {len(client.client_id), len(client.user), len(client.group)} == {NAME_CHARS_MAX}
