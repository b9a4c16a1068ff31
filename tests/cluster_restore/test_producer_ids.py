"""No broker gives away an id of an archived producer, also not from a block that it had before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import pytest
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse
from restore_process import config_of
from test_cluster_restore import assert_no_phantom, produced

from fetchproxy.archive import open_cluster
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_restore import new_cluster
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.controller_requests import supported_features
from fetchproxy.cluster_restore.phantoms import Phantoms, new_identities
from fetchproxy.cluster_restore.producer_ids import ProducerIds
from fetchproxy.config.values import HostPort, parse_host_port
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka


@pytest.fixture
async def ids_and_cluster(
    kafka_server: KafkaServer,
) -> AsyncIterator[tuple[ProducerIds, Cluster]]:
    """With phantoms that have registered, and lead nothing. The broker has a block of ids."""
    kafka_server.create_topic("has-a-producer")
    produced(kafka_server.bootstrap, "has-a-producer", 0, b"the broker has a block now")
    config = config_of(kafka_server.bootstrap)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_cluster(config))
        placements = await new_cluster.read_placements(cluster)
        further = partial(ActiveController, config, await new_cluster.controllers(cluster))
        controller = await stack.enter_async_context(further())
        phantoms = Phantoms(new_identities(placements.brokers), controller)
        configs = await new_cluster.configs_of_broker(cluster, 1)
        listener = new_cluster.listener_of(configs)
        features = await supported_features(controller)
        nowhere = HostPort("127.0.0.1", 1)
        await phantoms.register(placements.cluster_id, {listener: nowhere}, features)
        brokers = [parse_host_port(kafka_server.bootstrap)]
        yield ProducerIds(cluster, controller, further, phantoms, brokers), cluster
        await phantoms.lay_down()
        await phantoms.unregister()
    assert_no_phantom(kafka_server.bootstrap, {1})


async def next_id(cluster: Cluster, kafka: KafkaServer) -> int:
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    async with cluster.exclusive(parse_host_port(kafka.bootstrap)) as connection:
        response = await connection.call(request, InitProducerIdResponse)
    assert response.error_code == 0
    return int(response.producer_id)


async def test_all_ids_up_to_one_are_passed_over(
    kafka_server: KafkaServer, ids_and_cluster: tuple[ProducerIds, Cluster]
) -> None:
    ids, cluster = ids_and_cluster
    before = await next_id(cluster, kafka_server)
    highest = before + 30_000

    await ids.pass_over(highest)

    assert highest <= ids.passed < highest + 1_000
    after = await next_id(cluster, kafka_server)
    # Bounded: a block each for the broker and the last one, and those that were asked for at once.
    assert ids.passed < after < highest + 40_000

    await ids.pass_over(before)
    assert await next_id(cluster, kafka_server) == after + 1
