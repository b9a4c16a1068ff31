"""What admin clients ask of an archive: true answers, and refusals that give the reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from fetchproxy_protocol.apis import ApiKey
from kafka.protocol import admin
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse
from served_archive import Client, ServedArchive, serve_archive
from test_archive_only_apis import plant, versions

from fetchproxy.cluster_state.document import encode_state
from fetchproxy.cluster_state.state import AclState, ClusterState

POLICY_VIOLATION, SECURITY_DISABLED, UNKNOWN = 44, 54, 3
# Versions from which the response has room for the reason, and what else it repeats.
REASON_SINCE = {ApiKey.CREATE_TOPICS: 1, ApiKey.DELETE_TOPICS: 5}
UNCHANGED_FIELDS: dict[ApiKey, dict[str, object]] = {
    ApiKey.CREATE_TOPICS: {"name": "new"},
    ApiKey.DELETE_TOPICS: {"name": "orders"},
    ApiKey.CREATE_PARTITIONS: {"name": "orders"},
    ApiKey.ALTER_CONFIGS: {"resource_type": 2, "resource_name": "orders"},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {"resource_type": 2, "resource_name": "orders"},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {"user": "a"},
}
NO_ACLS = "an archive has no ACLs; its users and what they may read are in archive_only.users_file"
REASON = "this node serves an archive, which cannot be written to"


@pytest.fixture
async def served() -> AsyncIterator[ServedArchive]:
    async with serve_archive(await plant()) as archive:
        yield archive


@pytest.fixture
async def client(served: ServedArchive) -> Client:
    return await served.client()


def resource(kind: Any) -> Any:
    one = kind.AlterConfigsResource
    operation = {"config_operation": 0} if kind is admin.IncrementalAlterConfigsRequest else {}
    change = one.AlterableConfig(name="retention.ms", value="1", **operation)
    return one(resource_type=2, resource_name="orders", configs=[change])


def topic_of(version: int) -> dict[str, Any]:
    state = admin.DeleteTopicsRequest.DeleteTopicState
    if version >= 6:
        return {"topics": [state(name="orders", topic_id=None)]}
    return {"topic_names": ["orders"]}


def acl_filter() -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


CreateTopics, CreatePartitions = admin.CreateTopicsRequest, admin.CreatePartitionsRequest
CreateAcls, DeleteAcls = admin.CreateAclsRequest, admin.DeleteAclsRequest
AlterConfigs, Incremental = admin.AlterConfigsRequest, admin.IncrementalAlterConfigsRequest
Quotas = admin.AlterClientQuotasRequest
Scram = admin.AlterUserScramCredentialsRequest

# For each API: the request, and where its response has the refused.
REFUSED: dict[ApiKey, tuple[Callable[[int], Any], str, int]] = {
    ApiKey.CREATE_TOPICS: (
        lambda version: CreateTopics(
            topics=[
                CreateTopics.CreatableTopic(
                    name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[]
                )
            ],
            timeout_ms=1_000,
            validate_only=False,
        ),
        "topics",
        POLICY_VIOLATION,
    ),
    ApiKey.DELETE_TOPICS: (
        lambda version: admin.DeleteTopicsRequest(**topic_of(version), timeout_ms=1_000),
        "responses",
        POLICY_VIOLATION,
    ),
    ApiKey.CREATE_PARTITIONS: (
        lambda version: CreatePartitions(
            topics=[
                CreatePartitions.CreatePartitionsTopic(name="orders", count=9, assignments=None)
            ],
            timeout_ms=1_000,
            validate_only=False,
        ),
        "results",
        POLICY_VIOLATION,
    ),
    ApiKey.ALTER_CONFIGS: (
        lambda version: AlterConfigs(resources=[resource(AlterConfigs)], validate_only=False),
        "responses",
        POLICY_VIOLATION,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        lambda version: Incremental(resources=[resource(Incremental)], validate_only=False),
        "responses",
        POLICY_VIOLATION,
    ),
    ApiKey.CREATE_ACLS: (
        lambda version: CreateAcls(
            creations=[
                CreateAcls.AclCreation(
                    resource_type=2,
                    resource_name="orders",
                    resource_pattern_type=3,
                    principal="User:a",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        "results",
        SECURITY_DISABLED,
    ),
    ApiKey.DELETE_ACLS: (
        lambda version: DeleteAcls(filters=[DeleteAcls.DeleteAclsFilter(**acl_filter())]),
        "filter_results",
        SECURITY_DISABLED,
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        lambda version: Quotas(
            entries=[
                Quotas.EntryData(
                    entity=[Quotas.EntryData.EntityData(entity_type="user", entity_name="a")],
                    ops=[
                        Quotas.EntryData.OpData(key="producer_byte_rate", value=1.5, remove=False)
                    ],
                )
            ],
            validate_only=False,
        ),
        "entries",
        POLICY_VIOLATION,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        lambda version: Scram(
            deletions=[Scram.ScramCredentialDeletion(name="a", mechanism=1)], upsertions=[]
        ),
        "results",
        POLICY_VIOLATION,
    ),
}


def response_class(key: ApiKey) -> Any:
    return getattr(admin, "".join(w.capitalize() for w in key.name.split("_")) + "Response")


def known(key: ApiKey) -> list[int]:
    """The versions that kafka-python has, of those that are advertised."""
    low, high = response_class(key).min_version, response_class(key).max_version
    return [version for version in versions(key) if low <= version <= high]


@pytest.mark.parametrize(
    ("key", "version"), [(key, version) for key in REFUSED for version in known(key)]
)
async def test_a_change_is_refused_with_the_reason(
    client: Client, key: ApiKey, version: int
) -> None:
    make, results, code = REFUSED[key]
    response = await client.ask(make(version), response_class(key), version)
    [refused] = getattr(response, results)
    assert refused.error_code == code
    if version >= REASON_SINCE.get(key, 0):
        assert refused.error_message == (REASON if code == POLICY_VIOLATION else NO_ACLS)
    for name, unchanged_value in UNCHANGED_FIELDS.get(key, {}).items():
        assert getattr(refused, name) == unchanged_value


@pytest.mark.parametrize("version", range(6))
async def test_a_producer_gives_up_at_once(client: Client, version: int) -> None:
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1_000, producer_id=-1, producer_epoch=-1
    )
    response = await client.ask(request, InitProducerIdResponse, version)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (31, -1, -1)


async def test_records_are_not_deleted(client: Client) -> None:
    topic = admin.DeleteRecordsRequest.DeleteRecordsTopic
    one = topic.DeleteRecordsPartition(partition_index=0, offset=5)
    for version in known(ApiKey.DELETE_RECORDS):
        request = admin.DeleteRecordsRequest(
            topics=[topic(name="orders", partitions=[one])], timeout_ms=1_000
        )
        response = await client.ask(request, admin.DeleteRecordsResponse, version)
        [partition] = response.topics[0].partitions
        assert (partition.error_code, partition.low_watermark) == (POLICY_VIOLATION, -1)


async def test_there_are_no_acls_quotas_reassignments_transactions_or_scram_users(
    client: Client,
) -> None:
    for version in known(ApiKey.DESCRIBE_ACLS):
        request = admin.DescribeAclsRequest(**acl_filter())
        response = await client.ask(request, admin.DescribeAclsResponse, version)
        assert (response.error_code, list(response.resources)) == (SECURITY_DISABLED, [])
        assert "users_file" in response.error_message
    for version in known(ApiKey.DESCRIBE_CLIENT_QUOTAS):
        quotas = admin.DescribeClientQuotasRequest(components=[], strict=False)
        response = await client.ask(quotas, admin.DescribeClientQuotasResponse, version)
        assert (response.error_code, list(response.entries)) == (0, [])
    reassignments_request = admin.ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None)
    response = await client.ask(reassignments_request, admin.ListPartitionReassignmentsResponse, 0)
    assert (response.error_code, list(response.topics)) == (0, [])
    for version in known(ApiKey.LIST_TRANSACTIONS):
        listing = admin.ListTransactionsRequest(
            state_filters=[], producer_id_filters=[], duration_filter=-1
        )
        response = await client.ask(listing, admin.ListTransactionsResponse, version)
        assert (response.error_code, list(response.transaction_states)) == (0, [])
    described = admin.DescribeTransactionsRequest(transactional_ids=["t"])
    response = await client.ask(described, admin.DescribeTransactionsResponse, 0)
    assert [(t.error_code, t.transactional_id) for t in response.transaction_states] == [(105, "t")]
    users = admin.DescribeUserScramCredentialsRequest(users=None)
    response = await client.ask(users, admin.DescribeUserScramCredentialsResponse, 0)
    assert (response.error_code, list(response.results)) == (0, [])


async def test_rights_with_codes_that_no_broker_has_are_of_unknown_kinds() -> None:
    """Whoever can write to the store may have written them."""
    planted = await plant()
    odd = ("300", "9" * 5_000, "\N{ARABIC-INDIC DIGIT THREE}", "-1")
    acls = tuple(AclState(code, "orders", code, "User:a", "*", code, code) for code in odd)
    state = encode_state(ClusterState("old", 1, acls=acls))
    await planted.storage.objects.put_cluster_state("old", 1, state)
    async with serve_archive(planted) as served:
        client = await served.client()
        for version in known(ApiKey.DESCRIBE_ACLS)[1:]:
            request = admin.DescribeAclsRequest(**acl_filter())
            response = await client.ask(request, admin.DescribeAclsResponse, version)
            [one] = response.resources
            assert (one.resource_type, one.pattern_type) == (0, 0)
            assert {(acl.operation, acl.permission_type) for acl in one.acls} == {(0, 0)}
            assert len(one.acls) == len(odd)


async def test_nobody_produces_and_the_only_node_leads(client: Client) -> None:
    topic = admin.DescribeProducersRequest.TopicRequest
    topics = [
        topic(name="orders", partition_indexes=[0, 7]),
        topic(name="no", partition_indexes=[0]),
    ]
    request = admin.DescribeProducersRequest(topics=topics)
    response = await client.ask(request, admin.DescribeProducersResponse, 0)
    producers = [
        (t.name, p.partition_index, p.error_code, list(p.active_producers))
        for t in response.topics
        for p in t.partitions
    ]
    assert producers == [("orders", 0, 0, []), ("orders", 7, UNKNOWN, []), ("no", 0, UNKNOWN, [])]
    for version in known(ApiKey.ELECT_LEADERS):
        place = admin.ElectLeadersRequest.TopicPartitions
        elected = admin.ElectLeadersRequest(
            election_type=0,
            topic_partitions=[place(topic="orders", partitions=[0, 7])],
            timeout_ms=1_000,
        )
        response = await client.ask(elected, admin.ElectLeadersResponse, version)
        [results] = response.replica_election_results
        assert [(p.partition_id, p.error_code) for p in results.partition_result] == [
            (0, 84),
            (7, UNKNOWN),
        ]


async def test_the_log_dir_has_the_sizes_of_the_archive(
    client: Client, served: ServedArchive
) -> None:
    log_dirs = admin.DescribeLogDirsRequest
    for version in known(ApiKey.DESCRIBE_LOG_DIRS):
        response = await client.ask(log_dirs(topics=None), admin.DescribeLogDirsResponse, version)
        [log_dir] = response.results
        assert (log_dir.error_code, log_dir.log_dir) == (0, "archive")
        sizes = {(t.name, p.partition_index): p.partition_size for t in log_dir.topics
                 for p in t.partitions}  # fmt: skip
        assert sizes["orders", 0] > 0
        one = log_dirs.DescribableLogDirTopic
        log_dirs_request = log_dirs(
            topics=[one(topic="orders", partitions=[0, 9]), one(topic="no", partitions=[0])]
        )
        response = await client.ask(log_dirs_request, admin.DescribeLogDirsResponse, version)
        [topic] = response.results[0].topics
        assert [(p.partition_index, p.partition_size) for p in topic.partitions] == [
            (0, sizes["orders", 0])
        ]


def poll_for_a_minute(producer: confluent_kafka.Producer) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        producer.poll(1)


async def test_stock_producers_give_up_at_once(served: ServedArchive) -> None:
    """With other errors librdkafka tries again for minutes."""
    bootstrap = {"bootstrap.servers": f"127.0.0.1:{served.server.port}"}

    def produce() -> int:
        producer = confluent_kafka.Producer({**bootstrap, "enable.idempotence": True})
        with pytest.raises(confluent_kafka.KafkaException) as failed:
            poll_for_a_minute(producer)
        assert failed.value.args[0].fatal()
        return int(failed.value.args[0].code())

    def transact() -> int:
        producer = confluent_kafka.Producer({**bootstrap, "transactional.id": "t"})
        with pytest.raises(confluent_kafka.KafkaException) as failed:
            producer.init_transactions(60)
        return int(failed.value.args[0].code())

    def python() -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap["bootstrap.servers"], enable_idempotence=True
        )
        with pytest.raises(kafka.errors.KafkaError):
            producer.send("orders", b"v").get(60)
        producer.close()

    errors = confluent_kafka.KafkaError
    assert await asyncio.to_thread(produce) == errors.CLUSTER_AUTHORIZATION_FAILED
    assert await asyncio.to_thread(transact) == errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    await asyncio.to_thread(python)


async def test_a_stock_admin_client_shows_the_reason(served: ServedArchive) -> None:
    def create() -> confluent_kafka.KafkaError:
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{served.server.port}"})
        futures = client.create_topics([NewTopic("new", 1, 1)], request_timeout=60)
        with pytest.raises(confluent_kafka.KafkaException) as failed:
            futures["new"].result(60)
        return failed.value.args[0]

    error = await asyncio.to_thread(create)
    assert (error.code(), error.str()) == (POLICY_VIOLATION, REASON)
