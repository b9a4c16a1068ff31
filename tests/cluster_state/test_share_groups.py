"""Offsets of share groups (KIP-932), which only newer brokers have, from such a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from test_state_kafka import CONFIGS_TOOL, state_of

from fetchproxy.cluster_state.document import decode_state, encode_state
from fetchproxy.cluster_state.state import GroupKind
from lab.kafka import KafkaServer, run_tool
from lab.kafka_versions import KAFKA_NEWEST

pytestmark = pytest.mark.kafka

SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
TOPIC, GROUP, RECORDS = "shared-orders", "sharing", 30


@pytest.fixture(scope="module")
def newest_kafka(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka-newest", KafkaServer(version=KAFKA_NEWEST))


async def test_a_share_group_has_the_offset_that_the_brokers_tool_shows(
    newest_kafka: KafkaServer,
) -> None:
    """It is 0 here: the console's consumer closes before it acknowledges its last records."""
    bootstrap = newest_kafka.bootstrap
    newest_kafka.create_topic(TOPIC, 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"value %d" % number)
    assert producer.flush(60) == 0
    where = ("--bootstrap-server", bootstrap)
    run_tool(
        CONFIGS_TOOL, *where, "--alter", "--entity-type", "groups", "--entity-name", GROUP,
        "--add-config", "share.auto.offset.reset=earliest",
    )  # fmt: skip
    output = run_tool(
        SHARE_CONSUMER, *where, "--topic", TOPIC, "--group", GROUP, "--max-messages", str(RECORDS)
    ).stdout
    assert output.count("value") == RECORDS

    state = await state_of(bootstrap)

    assert state.missing == ()
    [group] = [one for one in state.groups if one.group_id == GROUP]
    assert group.kind is GroupKind.SHARE
    [committed] = group.offsets
    in_words = [GROUP, committed.topic, str(committed.partition), str(committed.offset)]
    rows = run_tool(SHARE_GROUPS, *where, "--describe", "--group", GROUP).stdout.splitlines()
    assert in_words in [row.split() for row in rows]
    assert not {one.name for one in state.topics} & {"__share_group_state"}
    assert decode_state(encode_state(state), "key") == state
