"""Fetch requests and streamed answers against kafka-python's codec as the oracle."""

from __future__ import annotations

import gc
from contextlib import suppress
from itertools import pairwise
from uuid import UUID

import pytest
from fetchproxy_protocol import addresses
from fetchproxy_protocol import fetch as fr
from fetchproxy_protocol import fetch_scan as fs
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.fetch import (
    any_request,
    encode_fetch_request,
    entry_bytes_max,
    fetch_offset,
    from_offset,
    leader_epoch,
    parse_fetch_request,
    plain_request,
)
from fetchproxy_protocol.primitives import Buffer
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest as OracleRequest
from kafka.protocol.consumer import FetchResponse as OracleResponse

VERSIONS = st.integers(4, 18)
TOPICS = st.lists(st.sampled_from(["orders", "a", "clicks.eu-west_1"]), unique=True, max_size=3)


def header_end(version: int, client_id: str) -> int:
    return 8 + 2 + len(client_id) + (1 if version >= 12 else 0)


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().ljust(16, b"!")[:16])


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, OracleRequest]:
    version = draw(VERSIONS)
    request = OracleRequest[version]()
    request.replica_id = -1
    request.max_wait_ms = draw(st.integers(0, 5000))
    request.min_bytes = draw(st.integers(0, 100))
    request.max_bytes = draw(st.integers(1, 1 << 30))
    request.isolation_level = draw(st.integers(0, 1))
    request.session_id = draw(st.integers(0, 1 << 30)) if version >= 7 else 0
    request.session_epoch = draw(st.integers(-1, 9)) if version >= 7 else -1
    request.topics = []
    request.forgotten_topics_data = []
    for name in draw(TOPICS):
        topic = OracleRequest.FetchTopic(version=version)
        topic.topic, topic.topic_id, topic.partitions = name, topic_id(name), []
        for number in draw(st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=4)):
            entry = OracleRequest.FetchTopic.FetchPartition(version=version)
            entry.partition = number
            entry.fetch_offset = draw(st.integers(0, 1 << 60))
            entry.current_leader_epoch = draw(st.integers(-1, 99)) if version >= 9 else -1
            entry.partition_max_bytes = draw(st.integers(0, 1 << 30))
            topic.partitions.append(entry)
        request.topics.append(topic)
    return version, request


@given(requests())
def test_a_request_parsed_and_composed_is_the_same_bytes(case: tuple[int, OracleRequest]) -> None:
    version, oracle = case
    oracle.with_header(correlation_id=7, client_id="me")
    framed = bytes(oracle.encode(header=True, framed=True))
    parsed = parse_fetch_request(framed[4:], header_end(version, "me"))
    assert parsed.correlation_id == 7
    assert len(parsed.partitions) == sum(len(t.partitions) for t in oracle.topics)
    for topic in oracle.topics:
        ref = topic_id(topic.topic).bytes if version >= 13 else topic.topic.encode()
        for entry in topic.partitions:
            parsed_entry = parsed.partitions[ref, entry.partition]
            assert fetch_offset(parsed_entry) == entry.fetch_offset
            assert entry_bytes_max(parsed_entry) == entry.partition_max_bytes
            assert leader_epoch(parsed_entry) == entry.current_leader_epoch
            moved = from_offset(parsed_entry, 3)
            assert (fetch_offset(moved), len(moved)) == (3, len(parsed_entry))
            assert from_offset(moved, entry.fetch_offset) == parsed_entry
    again = encode_fetch_request(
        parsed,
        partitions=parsed.partitions,
        forgotten=parsed.forgotten,
        session_id=parsed.session_id,
        session_epoch=parsed.session_epoch,
        max_wait_ms=parsed.max_wait_ms,
        min_bytes=parsed.min_bytes,
        bytes_max=parsed.bytes_max,
    )
    assert again == framed


@given(requests(), st.data())
def test_a_damaged_request_raises_only_wire_errors(
    case: tuple[int, OracleRequest], data: st.DataObject
) -> None:
    version, oracle = case
    oracle.with_header(correlation_id=7, client_id="me")
    payload = bytearray(oracle.encode(header=True, framed=False))
    start = header_end(version, "me")
    if data.draw(st.booleans()):
        payload = payload[: data.draw(st.integers(start, len(payload)))]
    for _ in range(data.draw(st.integers(0, 3))):
        if len(payload) > start:
            payload[data.draw(st.integers(start, len(payload) - 1))] = data.draw(
                st.integers(0, 255)
            )
    with suppress(WireError):
        parse_fetch_request(bytes(payload), start)


@given(requests(), st.data())
def test_what_is_read_in_one_pass_is_what_the_cursor_reads(
    case: tuple[int, OracleRequest], data: st.DataObject
) -> None:
    version, oracle = case
    oracle.with_header(correlation_id=7, client_id="me")
    payload = bytearray(oracle.encode(header=True, framed=False))
    start = header_end(version, "me")
    if version >= 7:  # with sessions, nothing forgotten, no tags: such is plain
        assert plain_request(bytes(payload), start, version) is not None
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(start, len(payload) - 1))
        payload[at] = data.draw(st.sampled_from([0, 1, 2, 3, 127, 128, 255]))
    bytes_kept = data.draw(st.integers(start, len(payload)) | st.just(len(payload)))
    damaged = bytes(payload[:bytes_kept])
    plain = plain_request(damaged, start, version)
    if plain is None:
        return
    assert plain == any_request(damaged, start)
    assert all(type(each) is bytes for each in plain.partitions.values())


def test_the_collector_has_no_partition_of_a_request_to_look_at() -> None:
    """Or each of its full collections would go through all that ten thousand partitions have."""
    fetch_topic = OracleRequest.FetchTopic
    request = OracleRequest[12](
        replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=0,
        session_id=0, session_epoch=0, forgotten_topics_data=[], rack_id="",
        topics=[
            fetch_topic(version=12, topic="a", partitions=[
                fetch_topic.FetchPartition(
                    version=12, partition=n, current_leader_epoch=-1, fetch_offset=0,
                    last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=1,
                ) for n in range(1_000)
            ])
        ],
    )  # fmt: skip
    request.with_header(correlation_id=7, client_id="me")
    payload = bytes(request.encode(header=True, framed=False))
    partitions = parse_fetch_request(payload, header_end(12, "me")).partitions
    gc.collect()
    assert len(partitions) == 1_000
    assert not any(gc.is_tracked(each) for pair in partitions.items() for each in pair)


@st.composite
def responses(draw: st.DrawFn) -> tuple[int, OracleResponse]:
    version = draw(VERSIONS)
    response = OracleResponse[version]()
    response.throttle_time_ms = draw(st.integers(0, 100))
    response.error_code = 0
    response.session_id = draw(st.integers(0, 1 << 30)) if version >= 7 else 0
    response.responses = []
    for name in draw(TOPICS):
        topic = OracleResponse.FetchableTopicResponse(version=version)
        topic.topic, topic.topic_id, topic.partitions = name, topic_id(name), []
        for number in range(draw(st.integers(1, 4))):
            p = OracleResponse.FetchableTopicResponse.PartitionData(version=version)
            p.partition_index = number
            p.error_code = draw(st.sampled_from([0, 0, 0, 1, 6]))
            p.high_watermark = draw(st.integers(-1, 1 << 40))
            p.last_stable_offset = draw(st.integers(-1, 1 << 40))
            p.log_start_offset = draw(st.integers(-1, 1 << 40)) if version >= 5 else -1
            p.aborted_transactions = draw(st.sampled_from([None, [], [(1, 2)], [(1, 2)] * 3]))
            if p.aborted_transactions is not None:
                made = []
                for pid, first in p.aborted_transactions:
                    a = OracleResponse.FetchableTopicResponse.PartitionData.AbortedTransaction(
                        version=version
                    )
                    a.producer_id, a.first_offset = pid, first
                    made.append(a)
                p.aborted_transactions = made
            p.preferred_read_replica = -1
            p.records = draw(st.sampled_from([b"", b"r" * 5, b"x" * 200, b"y" * 20_000]))
            topic.partitions.append(p)
        response.responses.append(topic)
    if version >= 16 and draw(st.booleans()):
        node = OracleResponse.NodeEndpoint(version=version)
        node.node_id, node.host, node.port, node.rack = 1, "real-broker", 9092, None
        response.node_endpoints = [node]
    return version, response


def scan(
    version: int, framed: bytes, cuts: list[int], patch: fr.HeadPatch, splice: fs.SpliceTags
) -> bytes:
    def on_error(topic: bytes, partition: int, code: int) -> fr.PartitionPatch | None:
        return fr.PartitionPatch(111, 110, 0) if code == 1 else None

    scanner = fs.FetchResponseScan(version, len(framed), lambda head: patch, on_error, splice)
    out: list[Buffer] = []
    edges = sorted({0, len(framed), *(c for c in cuts if c < len(framed))})
    for a, b in pairwise(edges):
        out += [bytes(x) for x in scanner.feed(memoryview(bytearray(framed[a:b])))]
    assert scanner.done
    return b"".join(bytes(x) for x in out)


def stored_partition(version: int) -> fr.PartitionEntries:
    entry = fr.encode_partition_start(
        version, 3, 0, fr.PartitionPatch(9, 8, 1), [(4, 5)], len(b"stored")
    )
    return fr.PartitionEntries(1, [entry, b"stored", fr.no_tags(version)])


@given(responses(), st.lists(st.integers(1, 60_000), max_size=6), st.data())
def test_partitions_of_both_tiers_are_one_entry_of_their_topic(
    case: tuple[int, OracleResponse], cuts: list[int], data: st.DataObject
) -> None:
    """The broker's topics keep their number and order; the archive's partition comes first."""
    version, oracle = case
    oracle.with_header(correlation_id=5)
    framed = bytes(oracle.encode(header=True, framed=True))
    if len(framed) < 3000 and data.draw(st.booleans()):
        cuts = list(range(len(framed)))
    refs = [t.topic_id.bytes if version >= 13 else t.topic.encode() for t in oracle.responses]
    mixed = data.draw(st.dictionaries(st.sampled_from(refs), st.integers(4, 300))) if refs else {}
    other = topic_id("zz").bytes if version >= 13 else b"zz"
    injected = {ref: stored_partition(version) for ref in [*mixed, other]}
    patch = fr.HeadPatch(99, 1234, injected, mixed)
    forwarded = scan(version, framed, cuts, patch, addresses.hide_node_endpoints)
    response_seen = OracleResponse[version].decode(forwarded, header=True, framed=True)
    assert int.from_bytes(forwarded[:4], "big") == len(forwarded) - 4
    assert len(response_seen.responses) == len(oracle.responses) + 1
    joined = {*mixed}  # the first entry of a topic that the broker lists twice
    for ref, ours_topic, kafkas_topic in zip(
        refs, response_seen.responses[1:], oracle.responses, strict=True
    ):
        partitions = list(ours_topic.partitions)
        if ref in joined:
            joined.remove(ref)
            assert bytes(partitions.pop(0).records) == b"stored"
        assert [p.partition_index for p in partitions] == [
            p.partition_index for p in kafkas_topic.partitions
        ]
        for p, q in zip(partitions, kafkas_topic.partitions, strict=True):
            assert bytes(p.records or b"") == bytes(q.records or b"")


def test_a_topic_that_the_broker_does_not_list_after_all() -> None:
    oracle = OracleResponse(version=11)
    oracle.responses = []
    oracle.with_header(correlation_id=5)
    framed = bytes(oracle.encode(header=True, framed=True))
    patch = fr.HeadPatch(5, 6, {b"zz": stored_partition(11)}, {b"zz": 1})
    with pytest.raises(WireError, match="no b'zz'"):
        scan(11, framed, [], patch, addresses.hide_node_endpoints)


@pytest.mark.parametrize("version", [11, 12, 13, 18])
@pytest.mark.parametrize("broken_off", [0, 5])
@pytest.mark.parametrize("partitions", [1, 125, 126, 127, 200])
@pytest.mark.parametrize("further", [1, 3])
def test_a_count_of_partitions_may_need_another_byte(
    version: int, broken_off: int, partitions: int, further: int
) -> None:
    """`broken_off`: the broker lists fewer than it was asked for, or the rest in another entry."""
    oracle = OracleResponse(version=version)
    topic = OracleResponse.FetchableTopicResponse(version=version)
    topic.topic, topic.topic_id, topic.partitions = "t", topic_id("t"), []
    for number in range(partitions):
        entry = OracleResponse.FetchableTopicResponse.PartitionData(version=version)
        entry.partition_index, entry.high_watermark, entry.records = 10 + number, 7, b"x" * 200
        topic.partitions.append(entry)
    oracle.responses = [topic]
    oracle.with_header(correlation_id=5)
    framed = bytes(oracle.encode(header=True, framed=True))
    ref = topic_id("t").bytes if version >= 13 else b"t"
    one = stored_partition(version)
    injected = {ref: fr.PartitionEntries(further, [*one.pieces] * further)}
    patch = fr.HeadPatch(99, 1234, injected, {ref: partitions + broken_off})
    forwarded = scan(version, framed, [100, 3_000], patch, addresses.hide_node_endpoints)
    assert int.from_bytes(forwarded[:4], "big") == len(forwarded) - 4
    response_seen = OracleResponse[version].decode(forwarded, header=True, framed=True)
    [topic_seen] = response_seen.responses
    numbers = [p.partition_index for p in topic_seen.partitions]
    assert numbers == [3] * further + [*range(10, 10 + partitions)]


@given(responses(), st.lists(st.integers(1, 60_000), max_size=6), st.booleans())
def test_a_scanned_answer_is_patched_and_otherwise_unchanged(
    case: tuple[int, OracleResponse], cuts: list[int], every_byte: bool
) -> None:
    version, oracle = case
    oracle.with_header(correlation_id=5)
    framed = bytes(oracle.encode(header=True, framed=True))
    if every_byte and len(framed) < 3000:
        cuts = list(range(len(framed)))
    other = topic_id("zz").bytes if version >= 13 else b"zz"
    patch = fr.HeadPatch(99, 1234, {other: stored_partition(version)})
    forwarded = scan(version, framed, cuts, patch, addresses.hide_node_endpoints)
    response_seen = OracleResponse[version].decode(forwarded, header=True, framed=True)
    assert int.from_bytes(forwarded[:4], "big") == len(forwarded) - 4
    assert response_seen.header.correlation_id == 99
    if version >= 7:
        assert response_seen.session_id == 1234
    assert response_seen.throttle_time_ms == oracle.throttle_time_ms
    first, *rest = response_seen.responses
    partition_seen = first.partitions[0]
    assert (
        partition_seen.partition_index,
        partition_seen.high_watermark,
        bytes(partition_seen.records),
    ) == (3, 9, b"stored")
    assert [(a.producer_id, a.first_offset) for a in partition_seen.aborted_transactions] == [
        (4, 5)
    ]
    assert len(rest) == len(oracle.responses)
    for mine_topic, kafkas_topic in zip(rest, oracle.responses, strict=True):
        for p, q in zip(mine_topic.partitions, kafkas_topic.partitions, strict=True):
            assert bytes(p.records or b"") == bytes(q.records or b"")
            if q.error_code == 1:
                assert (p.error_code, p.high_watermark, p.last_stable_offset) == (0, 111, 110)
            else:
                assert (p.error_code, p.high_watermark) == (q.error_code, q.high_watermark)
    if version >= 16:
        assert not response_seen.node_endpoints
    assert b"real-broker" not in forwarded


@given(responses(), st.lists(st.integers(1, 60_000), max_size=6), st.data())
def test_a_damaged_answer_raises_only_wire_errors(
    case: tuple[int, OracleResponse], cuts: list[int], data: st.DataObject
) -> None:
    version, oracle = case
    oracle.with_header(correlation_id=5)
    framed = bytearray(oracle.encode(header=True, framed=True))
    for _ in range(data.draw(st.integers(1, 3))):
        framed[data.draw(st.integers(4, min(len(framed) - 1, 200)))] = data.draw(
            st.integers(0, 255)
        )
    with suppress(WireError):
        scan(version, bytes(framed), cuts, fr.HeadPatch(5, 6), lambda tags: tags)


@pytest.mark.parametrize("version", range(7, 19))
def test_an_error_answer_is_what_kafka_sends(version: int) -> None:
    framed = fr.encode_error_response(version, 3, 70)
    response_seen = OracleResponse[version].decode(framed, header=True, framed=True)
    assert (response_seen.error_code, response_seen.session_id, response_seen.responses) == (
        70,
        0,
        [],
    )
