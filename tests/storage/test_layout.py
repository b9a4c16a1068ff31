from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.model import RemoteLogSegmentId, TopicIdPartition
from fetchproxy.segments.object_keys import (
    LAYOUT_OBJECT,
    SegmentFile,
    SegmentKey,
    check_key,
    cluster_topics_key,
    layout_text,
    log_start_key,
    normal_prefix,
    parse_layout_version,
    parse_log_start_key,
    parse_partition_folder,
    parse_segment_key,
    parse_topic_folder,
    parse_uuid,
    partition_folder,
    retention_step_key,
    segment_key,
    topic_folder,
    uuid_text,
)

TOPIC_CHARS = "abcxyzABCXYZ0189._-"
topics = st.text(TOPIC_CHARS, min_size=1, max_size=40).filter(lambda t: t not in (".", ".."))
# All-ones and all-zeros bytes give "_" and "A": such ids look most like the rest of a name.
uuids = st.one_of(
    st.uuids(),
    st.lists(st.sampled_from([0, 0xFF, 0xFB, 0xBE, 0xEF]), min_size=16, max_size=16).map(
        lambda octets: UUID(bytes=bytes(octets))
    ),
)
offsets = st.integers(0, 2**63 - 1)
tps = st.builds(TopicIdPartition, topic_id=uuids, topic=topics, partition=st.integers(0, 2**31 - 1))
segment_ids = st.builds(RemoteLogSegmentId, tps, uuids)
prefixes = st.sampled_from(["", "a/", "team/archive/", "we.ird-_/"])


@given(prefixes, segment_ids, offsets, st.sampled_from(SegmentFile))
def test_a_key_says_what_it_was_made_from(
    prefix: str, segment_id: RemoteLogSegmentId, offset: int, file: SegmentFile
) -> None:
    key = segment_key(prefix, segment_id, offset, file)
    assert check_key(key) == key
    assert parse_segment_key(prefix, key) == SegmentKey(segment_id, offset, file)


@given(prefixes, tps)
def test_a_folder_says_what_it_was_made_from(prefix: str, tp: TopicIdPartition) -> None:
    assert parse_partition_folder(prefix, partition_folder(prefix, tp)) == tp
    folder = topic_folder("", tp.topic, tp.topic_id)
    assert parse_topic_folder(folder.rstrip("/")) == (tp.topic, tp.topic_id)


@given(prefixes, tps, offsets)
def test_a_log_start_says_what_it_was_made_from(
    prefix: str, tp: TopicIdPartition, offset: int
) -> None:
    key = log_start_key(prefix, tp, offset)
    assert check_key(key) == key
    assert key.startswith(partition_folder(prefix, tp))
    assert parse_log_start_key(prefix, key) == (offset, -1)
    later = log_start_key(prefix, tp, offset, 7)
    assert parse_log_start_key(prefix, later) == (offset, 7)
    assert parse_log_start_key(prefix, later.replace("-7", "-07")) is None
    assert parse_segment_key(prefix, key) is None
    assert parse_log_start_key(prefix, key.replace(".log-start", ".log_start")) is None
    assert parse_log_start_key(prefix, key + "s") is None


@given(segment_ids, offsets, st.sampled_from(SegmentFile))
def test_no_segments_object_is_a_log_start(
    segment_id: RemoteLogSegmentId, offset: int, file: SegmentFile
) -> None:
    assert parse_log_start_key("", segment_key("", segment_id, offset, file)) is None


@given(uuids)
def test_uuids_are_read_back(value: UUID) -> None:
    text = uuid_text(value)
    assert len(text) == 22
    assert parse_uuid(text) == value


@given(st.text(TOPIC_CHARS, min_size=22, max_size=22))
def test_a_text_is_one_uuid_or_none(text: str) -> None:
    value = parse_uuid(text)
    assert value is None or uuid_text(value) == text


def test_uuids_are_kafkas() -> None:
    # From Kafka's UuidTest, and ids that its own tools print.
    assert uuid_text(UUID("0a5f5dd4-5b0e-4d5a-8f4b-1f6c3f9c4e3d")) == "Cl9d1FsOTVqPSx9sP5xOPQ"
    assert uuid_text(UUID(int=0)) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_text(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"


@given(prefixes, st.text("ab-_./0123456789A", max_size=80))
def test_what_parses_is_written_the_same(prefix: str, text: str) -> None:
    parsed = parse_segment_key(prefix, prefix + text)
    if parsed is not None:
        rewritten = segment_key(prefix, parsed.segment_id, parsed.base_offset, parsed.file)
        assert rewritten == prefix + text


@given(segment_ids, offsets, offsets, st.sampled_from(SegmentFile))
def test_keys_sort_by_offset(
    segment_id: RemoteLogSegmentId, offset: int, other: int, file: SegmentFile
) -> None:
    key = segment_key("", segment_id, offset, file)
    assert (key > segment_key("", segment_id, other, file)) == (offset > other)


STEM = "t-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000005-AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize(
    "key",
    [
        "",
        STEM,
        f"{STEM}.snapshot",
        f"{STEM}.LOG",
        f"{STEM}.log/x",
        f"x/{STEM}.log",
        f"{STEM}.log.log",
        f"{STEM}x.log",
        "t-AAAAAAAAAAAAAAAAAAAAAQ/0/5-AAAAAAAAAAAAAAAAAAAAAQ.log",
        "t-AAAAAAAAAAAAAAAAAAAAAQ/0/99999999999999999999-AAAAAAAAAAAAAAAAAAAAAQ.log",
        "t-AAAAAAAAAAAAAAAAAAAAAQ/00/00000000000000000005-AAAAAAAAAAAAAAAAAAAAAQ.log",
        "t-AAAAAAAAAAAAAAAAAAAAAQ/2147483648/00000000000000000005-AAAAAAAAAAAAAAAAAAAAAQ.log",
        "t-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000005-AAAAAAAAAAAAAAAAAAAAAR.log",
        "t-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000005_AAAAAAAAAAAAAAAAAAAAAQ.log",
        "t-AAAAAAAAAAAAAAAAAAAAAR/0/00000000000000000005-AAAAAAAAAAAAAAAAAAAAAQ.log",
        "-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000005-AAAAAAAAAAAAAAAAAAAAAQ.log",
        "..-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000005-AAAAAAAAAAAAAAAAAAAAAQ.log",
        LAYOUT_OBJECT,
    ],
)
def test_strangers_are_left_alone(key: str) -> None:
    assert parse_segment_key("", f"{STEM}.log") is not None
    assert parse_segment_key("", key) is None


def test_only_below_the_prefix() -> None:
    assert parse_segment_key("a/", f"a/{STEM}.log") is not None
    assert parse_segment_key("a/", f"b/{STEM}.log") is None
    assert parse_segment_key("a/", f"{STEM}.log") is None


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\n"])
def test_what_is_no_topic_has_no_folder(topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        topic_folder("", topic, UUID(int=1))


def test_numbers_out_of_range_have_no_key() -> None:
    tp = TopicIdPartition(UUID(int=1), "t", 0)
    for offset in (-1, 2**63):
        with pytest.raises(ValueError, match="offset"):
            segment_key("", RemoteLogSegmentId(tp, UUID(int=1)), offset, SegmentFile.LOG)
    with pytest.raises(ValueError, match="partition"):
        partition_folder("", TopicIdPartition(UUID(int=1), "t", -1))


def test_a_prefix_is_normal_or_refused() -> None:
    assert normal_prefix("") == normal_prefix("/") == ""
    assert normal_prefix("a/b") == normal_prefix("/a/b/") == "a/b/"
    for prefix in ("a//b", "../a", "a b", "~"):
        with pytest.raises(ValueError, match="invalid"):
            normal_prefix(prefix)


def test_the_layout_object_says_its_version() -> None:
    assert parse_layout_version(layout_text()) == 1
    assert parse_layout_version(layout_text(12)) == 12
    for content in (b"", b"remote-log-layout", b"remote-log-layout x\n", b"remote-log-layout 1"):
        assert parse_layout_version(content) is None


@pytest.mark.parametrize("cluster_id", ["MkU3OEVBNTcwNTJENDM2Qk", "a/../b c", "Ü" * 60])
def test_any_cluster_has_a_key_for_its_topics(cluster_id: str) -> None:
    key = cluster_topics_key("archive/", cluster_id)
    assert check_key(key).startswith("archive/clusters/")
    assert parse_topic_folder("clusters") is None
    assert key != cluster_topics_key("archive/", cluster_id + "b")


def test_what_retention_announces_is_no_segments_object() -> None:
    tp = TopicIdPartition(UUID(int=1), "orders", 0)
    key = check_key(retention_step_key("archive/", tp))
    assert key.startswith(partition_folder("archive/", tp))
    assert parse_segment_key("archive/", key) is None
    assert parse_log_start_key("archive/", key) is None
