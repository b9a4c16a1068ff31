"""Every legal name and number of a partition makes keys that are read back as written."""

from __future__ import annotations

from uuid import UUID

import legal_logs
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchproxy.model import RemoteLogSegmentId, TopicIdPartition
from fetchproxy.segments.object_keys import (
    SegmentFile,
    check_key,
    conditions_key,
    own_folders,
    parse_conditions_key,
    parse_partition_folder,
    parse_segment_key,
    partition_folder,
    segment_key,
)
from fetchproxy.segments.records import LogStartOffset, decode_message, encode_message

TPS = st.builds(
    TopicIdPartition,
    st.uuids(),
    legal_logs.topic_names(),
    legal_logs.partitions(),
)


@settings(max_examples=60)
@given(TPS, legal_logs.base_offsets, st.sampled_from(["", "archive/"]))
def test_keys_are_read_back(tp: TopicIdPartition, offset: int, prefix: str) -> None:
    folder = partition_folder(prefix, tp)
    assert parse_partition_folder(prefix, folder) == tp
    assert not any(folder.startswith(own_folder) for own_folder in own_folders(prefix))
    key = segment_key(prefix, RemoteLogSegmentId(tp, UUID(int=7)), offset, SegmentFile.LOG)
    assert check_key(key) == key
    parsed_key = parse_segment_key(prefix, key)
    assert parsed_key is not None
    assert (parsed_key.segment_id.topic_id_partition, parsed_key.base_offset) == (tp, offset)
    assert parse_conditions_key(prefix, conditions_key(prefix, tp, "x")) == (tp, "x")
    event = LogStartOffset(tp, offset, 1)
    assert decode_message(encode_message(event), "topic") == event
