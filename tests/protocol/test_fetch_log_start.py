"""The log start offset of chosen topics is lowered in passing; nothing else of a response moves."""

from __future__ import annotations

from fetchproxy_protocol import fetch as fr
from fetchproxy_protocol import fetch_scan as fs
from fetchproxy_protocol.fetch import TopicRef
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse as OracleResponse
from test_fetch_in_place import framed_of
from test_fetch_wire import responses


def ref_of(version: int, topic: object) -> TopicRef:
    if version >= 13:
        return topic.topic_id.bytes  # type: ignore[attr-defined]
    return topic.topic.encode()  # type: ignore[attr-defined]


@given(
    responses(),
    st.lists(st.integers(1, 60_000), max_size=6),
    st.sets(st.integers(0, 5)),
    st.dictionaries(st.integers(0, 5), st.none() | st.integers(-1, 1 << 40)),
)
def test_only_the_log_start_of_archived_topics_is_lowered(
    case: tuple[int, OracleResponse],
    cuts: list[int],
    chosen: set[int],
    starts: dict[int, int | None],
) -> None:
    version, oracle = case
    framed = framed_of(oracle)
    archived = {ref_of(version, t) for i, t in enumerate(oracle.responses) if i in chosen}
    scanner = fs.FetchResponseScan(
        version,
        len(framed),
        lambda head: fr.HeadPatch(head.correlation_id, head.session_id),
        lambda topic, partition, code: None,
        lambda tags: tags,
        dict.fromkeys(archived, lambda partition: starts.get(partition % 6, 0)),
    )
    forwarded, at = bytearray(), 0
    for end in sorted({len(framed), *(cut for cut in cuts if cut < len(framed))}):
        for piece in scanner.feed(memoryview(bytearray(framed[at:end]))):
            forwarded += piece
        at = end
    assert len(forwarded) == len(framed)

    expected = OracleResponse[version].decode(framed, header=True, framed=True)
    for topic in expected.responses:
        if version < 5 or ref_of(version, topic) not in archived:
            continue
        for p in topic.partitions:
            start = starts.get(p.partition_index % 6, 0)
            below = start is not None and start < p.log_start_offset
            if not p.error_code and below and p.log_start_offset > 0:
                p.log_start_offset = start
    response_seen = OracleResponse[version].decode(bytes(forwarded), header=True, framed=True)
    if version >= 16 and len(framed) > fs.SMALL_RESPONSE_BYTES_MAX:
        response_seen.node_endpoints = expected.node_endpoints = []
        response_seen.unknown_tags = expected.unknown_tags = {}
    assert response_seen.to_dict() == expected.to_dict()
