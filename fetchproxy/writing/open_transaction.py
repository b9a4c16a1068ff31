"""Words about a transaction that keeps a log's last stable offset where it is. Pure."""

from __future__ import annotations

from fetchproxy.brokers.open_transactions import OpenTransaction
from fetchproxy.model import TopicIdPartition


def pinned_in_words(last_stable_offset: int, oldest: OpenTransaction | None) -> str:
    """The cause, as a sentence without an end. `oldest` None: not known."""
    if oldest is None:
        return f"an open transaction keeps the last stable offset at {last_stable_offset}"
    return (
        f"a transaction of producer {oldest.producer_id}, open since offset "
        f"{oldest.start_offset}, keeps the last stable offset at {last_stable_offset}"
    )


def ended_by(tip: TopicIdPartition, oldest: OpenTransaction | None) -> str:
    """What ends the transaction, if its producer does not."""
    place = f"--topic {tip.topic} --partition {tip.partition}"
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
