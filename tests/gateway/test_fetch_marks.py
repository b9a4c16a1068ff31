"""What a connection knows of its partitions: the broker's own word against older log edges."""

from __future__ import annotations

from uuid import UUID

import pytest

from fetchproxy.gateway.fetch_marks import FetchMarks, Knowledge
from fetchproxy.gateway.judgement import Judgement, Verdict
from fetchproxy.metadata.partition_view import build_view
from fetchproxy.model import (
    LogEdges,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from protocol.fetch_request import FetchPartition, PartitionKey

TIP = TopicIdPartition(UUID(int=1), "t", 0)
KEY: PartitionKey = (b"t", 0)
STALE = LogEdges(log_start_offset=0, high_watermark=900, last_stable_offset=900)


def knowledge(edges: LogEdges) -> Knowledge:
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TIP, UUID(int=2)), 0, 499, 0, 0, (), 1, finished, False
    )
    view = build_view(TIP, [segment], 0.0)
    return Knowledge(lambda tip: view, lambda tip: edges, lambda topic, number: TIP)


@pytest.mark.parametrize(
    ("offset", "is_remote"),
    [(100, True), (99, True), (101, False)],
    ids=["caught", "below it", "above it"],
)
def test_edges_from_before_the_catch_do_not_send_it_back_to_the_broker(
    offset: int, is_remote: bool
) -> None:
    """Sent back, it would be out of range again: a round without data as fast as the net allows."""
    marks = FetchMarks(permit_ttl_s=60)
    mark = marks.catch(KEY, 100, 0.0)
    assert mark is not None
    mark.judgement = Judgement(Verdict.REMOTE, TIP)
    asked = {KEY: FetchPartition(0, offset, 1_000, b"")}
    split = marks.split(asked, 1.0, knowledge(STALE))
    assert (KEY in split.remote) is is_remote
