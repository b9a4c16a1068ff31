"""DeleteRecords, as the archiver sends it to a partition's leader.

It goes by topic *name*, as Kafka has no other form, so the topic's id is looked up anew before: a
topic that was created again is another log.
"""

from __future__ import annotations

from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse

from fetchproxy.cluster import messages
from fetchproxy.cluster.answers import TopicInfo
from fetchproxy.cluster.client import Cluster
from fetchproxy.cluster.connection import BrokerConnection
from fetchproxy.errors import ClusterError
from fetchproxy.model import TopicIdPartition

_REPLICAS_WAIT_MS = 5_000  # for all replicas to trim; the answer is an error after it


async def delete_records(cluster: Cluster, tip: TopicIdPartition, offset: int) -> int:
    """Everything below `offset` goes from the brokers; the log start after it, of all replicas.

    May be repeated. Raises ClusterError: with Kafka's code where the leader refuses; without an
    answer it may have happened.
    """

    async def ask(connection: BrokerConnection, topic: TopicInfo) -> int:
        asked = DeleteRecordsRequest.DeleteRecordsTopic
        place = asked.DeleteRecordsPartition(partition_index=tip.partition, offset=offset)
        request = messages.versioned(
            DeleteRecordsRequest(
                topics=[asked(name=topic.name, partitions=[place])], timeout_ms=_REPLICAS_WAIT_MS
            ),
            connection.version_of(messages.DELETE_RECORDS),
        )
        answers = await connection.request_all(
            [request], _decode_low_watermark, extra_ms=_REPLICAS_WAIT_MS
        )
        return answers[0]

    await cluster.topic_by_id(tip.topic_id, max_age_ms=0)
    return await cluster.ask_leader(tip, ask)


def _decode_low_watermark(payload: memoryview, version: int) -> int:
    answer = messages.body_of(DeleteRecordsResponse, payload, version)
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code:
                what = f"DeleteRecords of {topic.name}: error {partition.error_code}"
                raise ClusterError(what, partition.error_code)
            return int(partition.low_watermark)
    raise ClusterError("DeleteRecords was answered without the partition")
