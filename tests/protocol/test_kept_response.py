"""A response without records may be suppressed; one with records leaves as it comes."""

from __future__ import annotations

import pytest
from fetchproxy_protocol import fetch_scan as fs
from fetchproxy_protocol.fetch import FetchResponseHead, HeadPatch, PartitionPatch, TopicRef
from fetchproxy_protocol.fetch_scan import KEPT_BYTES_MAX, BufferedFetchResponse
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

OUT_OF_RANGE, NOT_LEADER = 1, 6
VERSIONS = [4, 7, 11, 12, 16]


def response(version: int, partitions: list[tuple[int, bytes]]) -> bytes:
    """A whole frame; each partition as (error code, records)."""
    response = FetchResponse[version]()
    topic = FetchResponse.FetchableTopicResponse(version=version)
    topic.topic, topic.topic_id, topic.partitions = "t", None, []
    for number, (code, records) in enumerate(partitions):
        entry = FetchResponse.FetchableTopicResponse.PartitionData(version=version)
        entry.partition_index, entry.error_code, entry.records = number, code, records
        entry.high_watermark = entry.last_stable_offset = 5
        topic.partitions.append(entry)
    response.responses = [topic]
    response.with_header(correlation_id=1)
    frame: bytes = response.encode(header=True, framed=True)
    return frame


def scanned(
    version: int, frame: bytes, cuts: list[int], suppressed: bool, any_empty: bool = False
) -> tuple[bytes, list[tuple[bool, bool]]]:
    """What left, and what was asked."""
    questions: list[tuple[bool, bool]] = []

    def on_error(topic: TopicRef, partition: int, code: int) -> PartitionPatch | None:
        return PartitionPatch() if code == OUT_OF_RANGE else None

    def suppress(patched: bool, errors_left: bool) -> bool:
        questions.append((patched, errors_left))
        return suppressed

    def on_head(head: FetchResponseHead) -> HeadPatch:
        return HeadPatch(head.correlation_id, head.session_id)

    scan = fs.FetchResponseScan(
        version, len(frame), on_head, on_error, lambda tags: tags, None, suppress, any_empty
    )
    forwarded, at = b"", 0
    for end in [*sorted(cuts), len(frame)]:
        if end > at:
            forwarded += b"".join(scan.feed(memoryview(bytearray(frame[at:end]))))
            at = end
    assert scan.done
    return forwarded, questions


PARTITIONS = st.lists(
    st.tuples(st.sampled_from([0, 0, OUT_OF_RANGE, NOT_LEADER]), st.sampled_from([b"", b"", b"r"])),
    min_size=1,
    max_size=6,
)


@given(st.sampled_from(VERSIONS), PARTITIONS, st.data(), st.booleans(), st.booleans())
def test_only_an_answer_without_records_is_asked_about_and_then_all_or_nothing_leaves(
    version: int,
    partitions: list[tuple[int, bytes]],
    data: st.DataObject,
    suppressed: bool,
    any_empty: bool,
) -> None:
    frame = response(version, partitions)
    cuts = data.draw(st.lists(st.integers(1, len(frame)), max_size=5))
    forwarded, questions = scanned(version, frame, cuts, suppressed, any_empty)
    codes = {code for code, _ in partitions}
    records = any(content for _, content in partitions)
    patched = OUT_OF_RANGE in codes
    if records or not (patched or any_empty):
        assert not questions
        assert len(forwarded) == len(frame)
    else:
        assert questions == [(patched, NOT_LEADER in codes)]
        assert len(forwarded) == (0 if suppressed else len(frame))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_comes_before_the_first_records_is_not_lost(version: int) -> None:
    partitions = [(OUT_OF_RANGE, b""), *[(0, b"")] * 50, (0, b"records")]
    frame = response(version, partitions)
    every_byte = list(range(1, len(frame)))
    forwarded, questions = scanned(version, frame, every_byte, suppressed=True)
    assert not questions
    assert len(forwarded) == len(frame)
    assert b"records" in forwarded


def test_at_the_limit_what_was_kept_leaves_unasked() -> None:
    questions: list[bool] = []

    def suppress(patched: bool, errors_left: bool) -> bool:
        questions.append(patched)
        return True

    response_kept = BufferedFetchResponse(suppress, any_empty=False)
    response_kept.patched = True
    assert response_kept.keep([bytes(KEPT_BYTES_MAX)], whole=False) is None
    released = response_kept.keep([b"x"], whole=False)
    assert released is not None
    assert sum(map(len, released)) == KEPT_BYTES_MAX + 1
    assert not questions
