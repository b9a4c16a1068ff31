"""Each client through a proxy whose archive is compressed and encrypted: what it reads is what it
reads from the broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from matrix_all_clients import CLIENTS
from matrix_client import MatrixClient
from matrix_stack import TOPIC, MatrixStack, read_log
from test_client_matrix import CASE_OF
from topic_data import archived_ends

pytestmark = pytest.mark.kafka

FindPart = Callable[[str, Callable[[], object]], object]
CASES = ("assign", "group", "read_committed")
# Two that share no code, in little time.
FAST = {("franz-go", "group"), ("kcat", "assign")}

ALL = [
    pytest.param(
        client,
        case,
        id=f"{client.name}-{case}",
        marks=[] if (client.name, case) in FAST else pytest.mark.slow,
    )
    for client in CLIENTS
    for case in CASES
    if case not in client.lacks
]


@pytest.mark.parametrize(("client", "case"), ALL)
def test_client_of_an_encrypted_archive(
    find_part: FindPart, stack_at_rest: MatrixStack, client: MatrixClient, case: str
) -> None:
    find_part(client.part, client.find)
    CASE_OF[case](client, stack_at_rest)


def test_served_bytes_are_the_brokers_own(stack_at_rest: MatrixStack) -> None:
    stack = stack_at_rest
    logs = [*stack.store.rglob("*.log")]
    assert len(logs) == len([*stack.store.rglob("*.packing")]) > 4
    assert sum(path.stat().st_size for path in logs) < len(stack.log)  # of both partitions
    assert archived_ends(stack.store.as_uri(), TOPIC) == stack.ends
    assert read_log(stack.proxy.bootstrap, TOPIC, stack.ends[0]) == stack.log
