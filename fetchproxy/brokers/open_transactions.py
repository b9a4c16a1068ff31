"""The transaction that keeps a partition's last stable offset where it is: finds it, names it."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import walk

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.producers import active_producers
from fetchproxy.model import IsolationLevel, TopicIdPartition


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """`start_offset`: the offset of its first record in the partition."""

    producer_id: int
    start_offset: int


async def oldest_open_transaction(cluster: Cluster, tp: TopicIdPartition) -> OpenTransaction | None:
    """The open transaction that begins first, from the leader (DescribeProducers, Kafka 2.8).

    None: none is open, or the broker has no such request. Raises ClusterError, also if the proxy's
    user has no READ on the topic.
    """
    begun = [
        OpenTransaction(producer.producer_id, producer.current_txn_start_offset)
        for producer in await active_producers(cluster, tp) or ()
        if producer.current_txn_start_offset >= 0
    ]
    return min(begun, key=lambda one: one.start_offset, default=None)


def pinned_in_words(last_stable_offset: int, oldest: OpenTransaction | None) -> str:
    """The cause, as a sentence without an end. `oldest` None: not known."""
    if oldest is None:
        return f"an open transaction keeps the last stable offset at {last_stable_offset}"
    return (
        f"a transaction of producer {oldest.producer_id}, open since offset "
        f"{oldest.start_offset}, keeps the last stable offset at {last_stable_offset}"
    )


def ended_by(tp: TopicIdPartition, oldest: OpenTransaction | None) -> str:
    """What ends the transaction, if its producer does not."""
    place = f"--topic {tp.topic} --partition {tp.partition}"
    tool = "kafka-transactions.sh --bootstrap-server BROKER"
    if oldest is None:
        return (
            f"if its producer does not end it, find it by {tool} describe-producers {place}, and "
            f"end it by {tool} abort {place} --start-offset OFFSET"
        )
    return (
        f"if its producer does not end it, this does: {tool} abort {place} --start-offset "
        f"{oldest.start_offset}"
    )


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """`timestamp_ms`: the timestamp of its first record, or its append time."""

    timestamp_ms: int
    bytes_per_offset: float


async def first_batch_at(cluster: Cluster, tp: TopicIdPartition, offset: int) -> FirstBatch | None:
    """The batch at `offset`, committed or not. None: the log has no such batch, or one of an old
    format. Raises ClusterError.
    """
    fetched = await cluster.fetch(
        tp, offset, bytes_max=1, wait_max_ms=0, isolation=IsolationLevel.READ_UNCOMMITTED
    )
    try:
        header = next(iter(walk(fetched.records)), None)
    except WireError:
        return None
    if header is None:
        return None
    at_ms = header.max_timestamp if header.is_log_append_time else header.base_timestamp
    return FirstBatch(at_ms, header.size / (header.last_offset_delta + 1))
