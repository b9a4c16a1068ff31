"""Each client × each broker version through the proxy, with an archived and trimmed topic below.

What a client reads is compared with its untrimmed twin, read from the broker itself. Nothing may
fall back on a reset, so that a lost offset is a failure and never a silent jump.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from client_readers import read_confluent
from matrix_all_clients import CLIENTS
from matrix_client import CASES, Line, MatrixClient, as_client, by_partition
from matrix_python_clients import confluent_times
from matrix_results import BROKERS, MatrixResults
from matrix_stack import LEVELS, PARTITIONS, TOPIC, TWIN, MatrixStack, StackOf
from topic_data import TopicData

pytestmark = pytest.mark.kafka

FindPart = Callable[[str, Callable[[], object]], object]
PRODUCED = 40
UNCOMMITTED, COMMITTED = LEVELS
# What make test has time for: clients that share no code, on a broker that only this test has.
FAST_CLIENTS = ("confluent-kafka", "aiokafka", "franz-go", "sarama", "kafkajs")
FAST_BROKERS = ("kafka-newest",)


def read_all(client: MatrixClient, stack: MatrixStack, level: str, group: str) -> list[Line]:
    """By assignment where the client has it, else in one go by a group."""
    bootstrap, counts = stack.proxy.bootstrap, stack.counts(level)
    if client.assign is not None:
        until = counts if client.assign_until == "count" else stack.ends
        return client.assign(bootstrap, TOPIC, until, level)
    assert client.group is not None
    stack.commit_zero(group)
    return client.group(bootstrap, TOPIC, group, sum(counts.values()), level)


def assign(client: MatrixClient, stack: MatrixStack) -> None:
    lines = read_all(client, stack, UNCOMMITTED, f"{client.name}-assign")
    assert by_partition(lines) == as_client(client, stack.expected[UNCOMMITTED])


def read_committed(client: MatrixClient, stack: MatrixStack) -> None:
    assert len(stack.expected[COMMITTED]) < len(stack.expected[UNCOMMITTED])
    lines = read_all(client, stack, COMMITTED, f"{client.name}-committed")
    assert by_partition(lines) == as_client(client, stack.expected[COMMITTED])


def group(client: MatrixClient, stack: MatrixStack) -> None:
    """A second member goes on exactly where the first one has committed, up to the end."""
    assert client.group is not None
    name = f"{client.name}-group"
    stack.commit_zero(name)
    total = sum(stack.counts(UNCOMMITTED).values())
    at_once = client.commits_ahead or client.reads_on
    shares = [total] if at_once else [total // 2, total - total // 2]
    lines_read: list[Line] = []
    for share in shares:
        lines = client.group(stack.proxy.bootstrap, TOPIC, name, share, UNCOMMITTED)
        assert len(lines) == share
        lines_read += lines
    assert by_partition(lines_read) == as_client(client, stack.expected[UNCOMMITTED])
    assert stack.committed(name) == stack.ends


def appended(stack: MatrixStack, topic: str, level: str) -> list[int]:
    """The offsets of what the broker itself has."""
    end = TopicData(topic, {0: []}).ends(stack.kafka.bootstrap)
    isolation = {"isolation.level": level}
    return [offset for offset, _, _ in
            read_confluent(stack.kafka.bootstrap, topic, end, **isolation)[0]]  # fmt: skip


def idempotent(client: MatrixClient, stack: MatrixStack) -> None:
    assert client.produce is not None
    topic = stack.new_topic(f"produced-{client.name}")
    client.produce(stack.proxy.bootstrap, topic, PRODUCED)
    assert appended(stack, topic, COMMITTED) == [*range(PRODUCED)]


def transactional(client: MatrixClient, stack: MatrixStack) -> None:
    assert client.transact is not None
    topic = stack.new_topic(f"transacted-{client.name}")
    client.transact(stack.proxy.bootstrap, topic, PRODUCED)
    assert len(appended(stack, topic, COMMITTED)) == PRODUCED
    assert len(appended(stack, topic, UNCOMMITTED)) == PRODUCED + client.aborted


def times(client: MatrixClient, stack: MatrixStack) -> None:
    """Before all, between two archived records, at one of them, and at one that the broker has."""
    assert client.times is not None
    first = stack.first_timestamp
    last = first + 1000 * (len(stack.expected[UNCOMMITTED]) // PARTITIONS - 1)
    times_asked = (first - 1, first + 100_500, first + 101_000, last - 5_000)
    oracle = [
        confluent_times(stack.kafka.bootstrap, TWIN, 1, timestamp) for timestamp in times_asked
    ]
    assert oracle[0] == 0 < oracle[1] == oracle[2] < oracle[3]
    assert [client.times(stack.proxy.bootstrap, TOPIC, 1, t) for t in times_asked] == oracle


CASE_OF = {
    "assign": assign,
    "group": group,
    "read_committed": read_committed,
    "idempotent": idempotent,
    "transactional": transactional,
    "times": times,
}


def is_fast(broker: str, client: MatrixClient, case: str) -> bool:
    if client.name == "kafka-go":  # to leave a group it waits for its last fetch, ten seconds
        return broker == "kafka-newest" and case == "assign"
    return broker in FAST_BROKERS and client.name in FAST_CLIENTS and case == "group"


ALL = [
    pytest.param(
        broker,
        client,
        case,
        id=f"{broker}-{client.name}-{case}",
        marks=[] if is_fast(broker, client, case) else pytest.mark.slow,
    )
    for broker in BROKERS
    for client in CLIENTS
    for case in CASES
]


@pytest.mark.parametrize(("broker", "client", "case"), ALL)
def test_client_and_broker(
    find_part: FindPart, stack_of: StackOf, matrix_results: MatrixResults, broker: str,
    client: MatrixClient, case: str,
) -> None:  # fmt: skip
    version = BROKERS[broker]
    if case in client.lacks:
        matrix_results.tell(client, version, case, client.lacks[case])
        return
    find_part(client.part, client.find)
    stack = find_part(broker, lambda: stack_of(version))
    assert isinstance(stack, MatrixStack)
    matrix_results.tell(client, version, case, "fail")
    CASE_OF[case](client, stack)
    matrix_results.tell(client, version, case, "pass")
