"""Commits are exported whole or not at all: a cluster in trouble has no fewer groups."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.consumer.group import OffsetFetchResponse
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from scripted_broker import VERSIONS, ScriptedBroker, encode, serving

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.group_offsets import GroupOffset, committed_offsets
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.errors import ClusterError

LIST_GROUPS, OFFSET_FETCH, METADATA, API_VERSIONS = 16, 9, 3, 18
OFFERED = {**VERSIONS, LIST_GROUPS: (0, 4), OFFSET_FETCH: (1, 7)}


class Coordinator(ScriptedBroker):
    """Has one group with one commit, if it leads the one partition of `__consumer_offsets`.

    `moves`: how often that changes after a ListGroups.
    """

    moves = 0

    def response(self, api_key: int, version: int, correlation_id: int) -> bytes | None:
        message: Any
        if api_key == API_VERSIONS:
            keys = [
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in OFFERED.items()
            ]
            message = ApiVersionsResponse(error_code=0, api_keys=keys)
        elif api_key == METADATA:
            message = self._metadata()
            message.topics[0].name = "__consumer_offsets"
        elif api_key == LIST_GROUPS:
            group = ListGroupsResponse.ListedGroup(
                group_id="g", protocol_type="consumer", group_state="Empty"
            )
            groups = [group] if self.leader == self.node_id else []
            message = ListGroupsResponse(throttle_time_ms=0, error_code=0, groups=groups)
            if self.moves:
                self.moves -= 1
                self.leader_epoch += 1
                self.leader = self.node_id
        elif api_key == OFFSET_FETCH:
            of_topic = OffsetFetchResponse.OffsetFetchResponseTopic
            place = of_topic.OffsetFetchResponsePartition(
                partition_index=0,
                committed_offset=7,
                committed_leader_epoch=-1,
                metadata="",
                error_code=0,
            )
            topic = of_topic(name="orders", partitions=[place])
            message = OffsetFetchResponse(throttle_time_ms=0, topics=[topic], error_code=0)
        else:
            return super().response(api_key, version, correlation_id)
        return encode(message, version, correlation_id)


async def exported(broker: Coordinator) -> list[GroupOffset]:
    async with serving(broker) as bootstrap, Cluster(ClusterConfig(bootstrap=bootstrap)) as cluster:
        return await committed_offsets(cluster)


async def test_groups_without_a_coordinator_are_not_left_out() -> None:
    assert await exported(Coordinator()) == [GroupOffset("g", "orders", 0, 7, -1, "")]
    with pytest.raises(
        ClusterError, match="1 of 1 partitions of __consumer_offsets have no leader"
    ):
        await exported(Coordinator(leader=-1))


async def test_groups_that_move_meanwhile_are_looked_for_again() -> None:
    moving = Coordinator(leader=2)
    moving.moves = 1
    assert len(await exported(moving)) == 1
    restless = Coordinator()
    restless.moves = 99
    with pytest.raises(ClusterError, match="keep moving"):
        await exported(restless)
