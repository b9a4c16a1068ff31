"""Users of an archive's own: nothing before the login, and afterwards what is theirs to read."""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from fetchproxy_protocol.apis import ApiKey
from kafka.net.sasl.scram import ScramClient
from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.admin.topics import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kafka.protocol.consumer import (
    FetchResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from served_archive import Client, ServedArchive, serve_archive
from structlog.testing import capture_logs
from test_archive_only_apis import HOLED, OLD, ORDERS, fetch_request, one, plant

from fetchproxy.cli.user import user_lines
from fetchproxy.errors import ConfigError
from fetchproxy.model import ZERO_UUID

NONE, TOPIC_REFUSED, GROUP_REFUSED, LOGIN_REFUSED = 0, 29, 30, 58
SECRETS = {"alice": "alice-secret", "bob": "bob-secret"}
LINES = user_lines("alice", SECRETS["alice"], ["ord*"], ["alice-*"]) + user_lines(
    "bob", SECRETS["bob"], ["*"], ["*"]
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    path.write_text(LINES, encoding="utf-8")
    return path


@pytest.fixture
async def served(file: Path) -> AsyncIterator[ServedArchive]:
    settings: dict[str, dict[str, object]] = {"archive_only": {"users_file": str(file)}}
    async with serve_archive(await plant(), settings) as served:
        yield served


async def handshake(client: Client, mechanism: str) -> Any:
    request = SaslHandshakeRequest(mechanism=mechanism)
    return await client.ask(request, SaslHandshakeResponse, 1)


async def token(client: Client, data: bytes, version: int = 2) -> Any:
    request = SaslAuthenticateRequest(auth_bytes=data)
    return await client.ask(request, SaslAuthenticateResponse, version)


async def plain(client: Client, name: str, password: str, version: int = 2) -> Any:
    assert (await handshake(client, "PLAIN")).error_code == NONE
    return await token(client, f"\0{name}\0{password}".encode(), version)


async def scram(client: Client, name: str, password: str, mechanism: str) -> Any:
    assert (await handshake(client, mechanism)).error_code == NONE
    scram_client = ScramClient(name, password, mechanism)
    first = await token(client, scram_client.first_message())
    scram_client.process_server_first_message(first.auth_bytes)
    final = await token(client, scram_client.final_message())
    if not final.error_code:
        scram_client.process_server_final_message(final.auth_bytes)
    return final


async def logged_in(served: ServedArchive, name: str) -> Client:
    client = await served.client()
    assert (await plain(client, name, SECRETS[name])).error_code == NONE
    return client


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_plain(served: ServedArchive, version: int) -> None:
    client = await served.client()
    response = await plain(client, "alice", SECRETS["alice"], version)
    assert (response.error_code, response.auth_bytes) == (NONE, b"")
    assert (await client.ask(MetadataRequest(topics=None), MetadataResponse, 12)).topics


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("name", "password", "error"),
    [("alice", "alice-secret", NONE), ("alice", "bob-secret", LOGIN_REFUSED),
     ("mallory", "alice-secret", LOGIN_REFUSED)],
)  # fmt: skip
async def test_scram(
    served: ServedArchive, mechanism: str, name: str, password: str, error: int
) -> None:
    client = await served.client()
    response = await scram(client, name, password, mechanism)
    assert response.error_code == error
    if error:
        assert await client.closed()
    else:
        assert (await client.ask(MetadataRequest(topics=None), MetadataResponse, 12)).topics


@pytest.mark.parametrize(
    "data", [b"\0alice\0wrong", b"\0mallory\0alice-secret", b"bob\0alice\0alice-secret",
             b"\0alice\0", b"alice", b"", b"\xff\0\0", b"\0\0"],
)  # fmt: skip
async def test_a_login_that_fails_is_said_and_ends_the_connection(
    served: ServedArchive, data: bytes
) -> None:
    client = await served.client()
    await handshake(client, "PLAIN")
    response = await token(client, data)
    assert response.error_code == LOGIN_REFUSED
    assert (
        response.error_message
        == "Authentication failed: invalid credentials with SASL mechanism PLAIN"
    )
    assert await client.closed()


async def test_nothing_is_answered_before_the_login(served: ServedArchive) -> None:
    client = await served.client()
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    keys = {k.api_key for k in (await client.ask(request, ApiVersionsResponse, 3)).api_keys}
    assert {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.FETCH} <= keys
    client.send(MetadataRequest(topics=None), 12)
    assert await client.closed()
    unasked = await served.client()
    unasked.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 2)
    response = SaslAuthenticateResponse[2].decode(await unasked.receive(), header=True)
    assert response.error_code == LOGIN_REFUSED
    assert await unasked.closed()


async def test_a_mechanism_that_is_none_is_refused_with_those_that_are(
    served: ServedArchive,
) -> None:
    client = await served.client()
    response = await handshake(client, "GSSAPI")
    assert response.error_code == 33
    assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert await client.closed()


async def test_requests_before_the_login_are_small(served: ServedArchive) -> None:
    client = await served.client()
    client.writer.write(struct.pack(">ihhih", 64 * 1024, 3, 12, 1, -1))
    assert await client.closed()
    known = await logged_in(served, "alice")
    known.writer.write(struct.pack(">ihhih", 64 * 1024, 3, 12, 1, -1))
    versions_request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    other = await logged_in(served, "alice")
    assert (await other.ask(versions_request, ApiVersionsResponse, 3)).api_keys
    assert not known.reader.at_eof()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_who_guesses_is_judged_once_a_second_from_one_address(
    served: ServedArchive, mechanism: str
) -> None:
    async def guess() -> int:
        client = await served.client()
        how = plain if mechanism == "PLAIN" else scram
        more = () if mechanism == "PLAIN" else (mechanism,)
        return int((await how(client, "alice", "guess", *more)).error_code)

    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        guesses = [tasks.create_task(guess()) for _ in range(5)]
    assert [each.result() for each in guesses] == [LOGIN_REFUSED] * 5
    assert asyncio.get_running_loop().time() - began > 2.9  # two at once, then one a second
    assert await logged_in(served, "alice")


async def test_wrong_passwords_of_another_name_hold_up_no_login(served: ServedArchive) -> None:
    refused = 0

    async def guess() -> None:
        nonlocal refused
        client = await served.client()
        assert (await plain(client, "mallory", "guess")).error_code == LOGIN_REFUSED
        refused += 1

    guesses = [asyncio.create_task(guess()) for _ in range(60)]
    while refused < 2:  # noqa: ASYNC110 - two at once, then one a second
        await asyncio.sleep(0.01)
    assert await logged_in(served, "alice")
    assert refused < 20
    for each in guesses:
        each.cancel()
    await asyncio.wait(guesses)


async def test_a_hanging_disk_holds_up_no_login(served: ServedArchive) -> None:
    hangs, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        hangs.wait()

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    hanging = asyncio.create_task(asyncio.to_thread(hang))
    try:
        while not begun.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await logged_in(served, "alice")
    finally:
        hangs.set()
        await hanging


async def test_a_user_reads_what_is_his(served: ServedArchive) -> None:
    client = await logged_in(served, "alice")
    listed = await client.ask(MetadataRequest(topics=None), MetadataResponse, 12)
    assert {topic.name for topic in listed.topics} == {"orders"}
    topics = [
        MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id)
        for name, topic_id in (("again", ZERO_UUID), ("nowhere", ZERO_UUID), (None, HOLED.topic_id))
    ]
    metadata_response = await client.ask(MetadataRequest(topics=topics), MetadataResponse, 12)
    assert [(t.error_code, t.name, t.partitions) for t in metadata_response.topics] == [
        (TOPIC_REFUSED, "again", []), (TOPIC_REFUSED, "nowhere", []), (TOPIC_REFUSED, None, []),
    ]  # fmt: skip
    for version in (12, 16):
        fetch_response_of_user = await client.ask(
            fetch_request(version, {ORDERS: 0}), FetchResponse, version
        )
        assert one(fetch_response_of_user).error_code == NONE
        assert one(fetch_response_of_user).records
    again = ("again", OLD.topic_id, 0)
    for version in (12, 16):
        other = await client.ask(fetch_request(version, {again: 0}), FetchResponse, version)
        assert one(other).error_code == TOPIC_REFUSED
        assert not one(other).records


async def test_offsets_epochs_and_settings_of_others_are_refused(served: ServedArchive) -> None:
    client = await logged_in(served, "alice")
    errors = []
    names = ("again", "nowhere", "orders")
    request_topic = ListOffsetsRequest.ListOffsetsTopic
    partitions = [
        request_topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    ]
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, timeout_ms=1000,
        topics=[request_topic(name=n, partitions=partitions) for n in names],
    )  # fmt: skip
    response = await client.ask(request, ListOffsetsResponse, 7)
    errors.append([t.partitions[0].error_code for t in response.topics])
    Epoch = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    epochs = [Epoch.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)]
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[Epoch(topic=name, partitions=epochs) for name in ("again", "nowhere", "orders")],
    )
    response = await client.ask(request, OffsetForLeaderEpochResponse, 4)
    errors.append([t.partitions[0].error_code for t in response.topics])
    Resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[
            Resource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in ("again", "nowhere", "orders")
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    response = await client.ask(request, DescribeConfigsResponse, 4)
    errors.append([r.error_code for r in response.results])
    Topic = DescribeTopicPartitionsRequest.TopicRequest
    request = DescribeTopicPartitionsRequest(
        topics=[Topic(name=name) for name in ("again", "nowhere", "orders")],
        response_partition_limit=10,
        cursor=None,
    )
    response = await client.ask(request, DescribeTopicPartitionsResponse, 0)
    errors.append([t.error_code for t in response.topics])
    request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=10, cursor=None)
    response = await client.ask(request, DescribeTopicPartitionsResponse, 0)
    assert [t.name for t in response.topics] == ["orders"]
    assert errors == [[TOPIC_REFUSED, TOPIC_REFUSED, NONE]] * 4


def commit(group: str, *topics: str) -> OffsetCommitRequest:
    Topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partitions = [
        Topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=5, committed_leader_epoch=-1,
            committed_metadata="", commit_timestamp=-1,
        )
    ]  # fmt: skip
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[Topic(name=name, partitions=partitions) for name in topics],
    )  # fmt: skip


async def test_groups_and_commits(served: ServedArchive) -> None:
    alice, bob = await logged_in(served, "alice"), await logged_in(served, "bob")
    response = await alice.ask(commit("alice-1", "orders", "again"), OffsetCommitResponse, 7)
    assert [t.partitions[0].error_code for t in response.topics] == [NONE, TOPIC_REFUSED]
    response = await alice.ask(commit("bobs", "orders"), OffsetCommitResponse, 7)
    assert response.topics[0].partitions[0].error_code == GROUP_REFUSED
    for group in ("alice-1", "bobs"):
        response = await bob.ask(commit(group, "orders", "again"), OffsetCommitResponse, 7)
        assert [t.partitions[0].error_code for t in response.topics] == [NONE, NONE]

    Topic = OffsetFetchRequest.OffsetFetchRequestTopic
    request = OffsetFetchRequest(
        group_id="alice-1", require_stable=False,
        topics=[Topic(name=name, partition_indexes=[0]) for name in ("orders", "again")],
    )  # fmt: skip
    response = await alice.ask(request, OffsetFetchResponse, 7)
    assert {t.name: t.partitions[0].error_code for t in response.topics} == {
        "orders": NONE, "again": TOPIC_REFUSED,
    }  # fmt: skip
    request = OffsetFetchRequest(group_id="alice-1", require_stable=False, topics=None)
    response = await alice.ask(request, OffsetFetchResponse, 7)
    assert [t.name for t in response.topics] == ["orders"]
    request = OffsetFetchRequest(group_id="bobs", require_stable=False, topics=None)
    assert (await alice.ask(request, OffsetFetchResponse, 7)).error_code == GROUP_REFUSED

    listed = await alice.ask(ListGroupsRequest(states_filter=[]), ListGroupsResponse, 4)
    assert [g.group_id for g in listed.groups] == ["alice-1"]
    request = DescribeGroupsRequest(groups=["alice-1", "bobs"], include_authorized_operations=False)
    response = await alice.ask(request, DescribeGroupsResponse, 5)
    assert [g.error_code for g in response.groups] == [NONE, GROUP_REFUSED]
    request = DeleteGroupsRequest(groups_names=["bobs"])
    response = await alice.ask(request, DeleteGroupsResponse, 2)
    assert response.results[0].error_code == GROUP_REFUSED
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["alice-1", "bobs"])
    response = await alice.ask(request, FindCoordinatorResponse, 4)
    assert [c.error_code for c in response.coordinators] == [NONE, GROUP_REFUSED]
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = JoinGroupRequest(
        group_id="bobs", session_timeout_ms=6000, rebalance_timeout_ms=6000, member_id="",
        group_instance_id=None, protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip
    assert (await alice.ask(request, JoinGroupResponse, 5)).error_code == GROUP_REFUSED


async def test_who_is_taken_out_of_the_file_is_let_go_and_a_broken_file_changes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fetchproxy.serving.archive_only.logins._LOOK_INTERVAL_S", 0.02)
    settings: dict[str, dict[str, object]] = {"archive_only": {"users_file": str(file)}}

    async def looked_at(logged: list[Any], event: str) -> None:
        async with asyncio.timeout(20):
            while event not in [e["event"] for e in logged]:  # noqa: ASYNC110 - a log tells nobody
                await asyncio.sleep(0.01)

    with capture_logs() as logged:
        async with serve_archive(await plant(), settings) as served:
            alice, bob = await logged_in(served, "alice"), await logged_in(served, "bob")
            listing = MetadataRequest(topics=None)
            file.write_text("[alice", encoding="utf-8")
            await looked_at(logged, "users_file_unusable")
            assert (await alice.ask(listing, MetadataResponse, 12)).topics
            bobs = user_lines("bob", SECRETS["bob"], ["again"], [])
            file.write_text(bobs, encoding="utf-8")
            await looked_at(logged, "users_file_read_again")
            alice.send(listing, 12)
            assert await alice.closed()
            bob.send(listing, 12)  # other salts: he logs in again
            assert await bob.closed()
            bob = await logged_in(served, "bob")
            topics = (await bob.ask(listing, MetadataResponse, 12)).topics
            assert [topic.name for topic in topics] == ["again"]


async def test_who_does_not_log_in_in_time_is_let_go(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, dict[str, object]] = {"archive_only": {"users_file": str(file)}}
    async with serve_archive(await plant(), settings) as served:
        with monkeypatch.context() as patched:
            patched.setattr("fetchproxy.serving.archive_only.session._LOGIN_MAX_S", 0.2)
            silent = await served.client()
            assert await silent.closed()
        known = await logged_in(served, "alice")
        for session in served.server._sessions:
            session._login_until = 0.0  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)
        assert (await known.ask(MetadataRequest(topics=None), MetadataResponse, 12)).topics


async def test_a_file_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    for text in (None, "", "[alice]"):
        path = tmp_path / "users.toml"
        if text is not None:
            path.write_text(text, encoding="utf-8")
        settings: dict[str, dict[str, object]] = {"archive_only": {"users_file": str(path)}}
        with pytest.raises(ConfigError, match=r"archive_only\.users_file"):
            async with serve_archive(await plant(), settings):
                pass


async def test_a_password_in_clear_is_taken_under_tls_or_from_this_machine(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fetchproxy.serving.archive_only.session.is_loopback", lambda host: False)
    users: dict[str, object] = {"users_file": str(file)}
    async with serve_archive(await plant(), {"archive_only": users}) as served:
        client = await served.client()
        response = await handshake(client, "PLAIN")
        assert response.error_code == 33
        assert response.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert await client.closed()
    authority = Authority(tmp_path)
    certificate = authority.issue("node", hosts=("127.0.0.1",))
    settings = {"archive_only": users, "gateway": {"tls_certificate_file": str(certificate)}}
    async with serve_archive(await plant(), settings) as served:
        context = ssl.create_default_context(cafile=str(authority.file))
        client = Client(
            *await asyncio.open_connection("127.0.0.1", served.server.port, ssl=context)
        )
        assert (await plain(client, "alice", SECRETS["alice"])).error_code == NONE
        await client.close()


@pytest.mark.parametrize(("source", "allowed"), [("192.0.2.7", False), ("127.0.0.9", True)])
async def test_a_load_balancer_on_this_machine_has_clients_elsewhere(
    file: Path, source: str, allowed: bool
) -> None:
    settings: dict[str, dict[str, object]] = {
        "archive_only": {"users_file": str(file)},
        "gateway": {"proxy_protocol_from": "127.0.0.1"},
    }
    async with serve_archive(await plant(), settings) as served:
        client = await served.client()
        client.writer.write(f"PROXY TCP4 {source} 127.0.0.1 4711 9192\r\n".encode())
        response = await handshake(client, "PLAIN")
        assert ("PLAIN" in response.mechanisms) == allowed
        assert response.error_code == (NONE if allowed else 33)
        await client.close()
