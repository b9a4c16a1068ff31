"""What there is very much of in a cluster is read in short turns of the loop."""

from __future__ import annotations

import time
from typing import Any

from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.consumer.group import OffsetFetchResponse
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from longest_turns import longest_turn
from scripted_broker import ScriptedBroker, encode, serving

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_state.committed import GROUPS_PER_LOOK, read_groups
from fetchproxy.cluster_state.missing_parts import MissingParts, rights_in_words
from fetchproxy.cluster_state.state import GroupKind
from fetchproxy.config.schema import ClusterConfig

TOPICS, PARTITIONS = 25, 20
TURN_MAX_S = 0.05
LIST_GROUPS, OFFSET_FETCH, API_VERSIONS = 16, 9, 18


class Coordinator(ScriptedBroker):
    """All groups have committed in each partition."""

    def __init__(self) -> None:
        super().__init__(override=self._own_response)
        self._commits = encode(_commits(), 7, 0)

    def _own_response(self, api_key: int, version: int, correlation_id: int) -> bytes | None:
        if api_key == API_VERSIONS:
            message = self._versions()
            for key, highest in ((LIST_GROUPS, 4), (OFFSET_FETCH, 7)):
                message.api_keys.append(
                    ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=highest)
                )
            return encode(message, version, correlation_id)
        if api_key == LIST_GROUPS:
            return encode(_groups(), version, correlation_id)
        if api_key == OFFSET_FETCH:
            return self._commits[:4] + correlation_id.to_bytes(4, "big") + self._commits[8:]
        return None


def _groups() -> Any:
    listed = ListGroupsResponse.ListedGroup
    rows = [
        listed(group_id=f"group-{n:03}", protocol_type="consumer", group_state="Empty")
        for n in range(GROUPS_PER_LOOK)
    ]
    return ListGroupsResponse(throttle_time_ms=0, error_code=0, groups=rows)


def _commits() -> Any:
    topic = OffsetFetchResponse.OffsetFetchResponseTopic
    place = topic.OffsetFetchResponsePartition
    return OffsetFetchResponse(
        throttle_time_ms=0,
        error_code=0,
        topics=[
            topic(
                name=f"topic-{number}",
                partitions=[
                    place(
                        partition_index=one,
                        committed_offset=1_000 + one,
                        committed_leader_epoch=3,
                        metadata="",
                        error_code=0,
                    )
                    for one in range(PARTITIONS)
                ],
            )
            for number in range(TOPICS)
        ],
    )


async def test_the_commits_of_a_hundred_groups_do_not_hold_the_loop() -> None:
    async with (
        serving(Coordinator()) as address,
        Cluster(ClusterConfig(bootstrap=address)) as cluster,
    ):
        await cluster.brokers()
        async with longest_turn() as longest:
            groups = await read_groups(cluster, MissingParts())
    assert len(groups) == GROUPS_PER_LOOK
    assert {len(group.offsets) for group in groups} == {TOPICS * PARTITIONS}
    assert {group.kind for group in groups} == {GroupKind.CLASSIC}
    assert longest[0] < TURN_MAX_S


def test_very_many_missing_parts_are_noted_at_once() -> None:
    """When a broker is away, the ends of all its topics are missing."""
    parts, began_s = MissingParts(), time.thread_time()
    for _ in range(2):
        for number in range(3_000):
            parts.add(f"the ends of topic-{number}-0", "its broker is away")
    assert time.thread_time() - began_s < TURN_MAX_S
    assert [part.what for part in parts.parts[:2]] == [
        "the ends of topic-0-0", "the ends of topic-1-0",
    ]  # fmt: skip
    assert len(parts.parts) == 3_000


def test_of_very_many_things_without_a_right_some_are_named() -> None:
    parts = MissingParts()
    for number in range(3_000):
        parts.add(f"the ends of topic-{number}-0", "denied", "DESCRIBE on all topics")
    assert rights_in_words(parts.parts) == (
        "DESCRIBE on all topics (for the ends of topic-0-0, the ends of topic-1-0, "
        "the ends of topic-2-0 and 2,997 more)"
    )
