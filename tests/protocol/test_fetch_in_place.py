"""Answers with nothing to put in front: patched where they lie, and leaving in one piece."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from uuid import UUID

import pytest
from fetchproxy_protocol import addresses
from fetchproxy_protocol import fetch as fr
from fetchproxy_protocol import fetch_scan as fs
from fetchproxy_protocol.primitives import Buffer
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse as OracleResponse
from test_fetch_wire import responses

CORRELATION_ID = 5
TWO_ENDPOINTS = b"\x01\x00\x02\x01\x00"  # tag 0 with an empty array: shorter than the broker's


def framed_of(oracle: OracleResponse) -> bytes:
    oracle.with_header(correlation_id=CORRELATION_ID)
    return bytes(oracle.encode(header=True, framed=True))


def scan_in_place(
    version: int, framed: bytes, cuts: list[int], session_id: int, splice: fs.SpliceTags
) -> list[list[bytes]]:
    """The pieces that leave, by chunk fed."""
    scanner = fs.FetchResponseScan(
        version,
        len(framed),
        lambda head: fr.HeadPatch(head.correlation_id, session_id),
        lambda topic, partition, code: fr.PartitionPatch(7, 6, 5) if code == 1 else None,
        splice,
    )
    edges = sorted({0, len(framed), *(c for c in cuts if c < len(framed))})
    fed = []
    for a, b in pairwise(edges):
        pieces: list[Buffer] = scanner.feed(memoryview(bytearray(framed[a:b])))
        fed.append([bytes(piece) for piece in pieces])
    assert scanner.done
    return fed


def is_plain(oracle: OracleResponse) -> bool:
    partitions = [p for topic in oracle.responses for p in topic.partitions]
    return not oracle.node_endpoints and not any(
        p.error_code or p.aborted_transactions for p in partitions
    )


@given(responses(), st.lists(st.integers(1, 60_000), max_size=6), st.booleans(), st.booleans())
def test_an_answer_patched_in_place_is_otherwise_unchanged(
    case: tuple[int, OracleResponse], cuts: list[int], every_byte: bool, same_session: bool
) -> None:
    version, oracle = case
    framed = framed_of(oracle)
    if every_byte and len(framed) < 3000:
        cuts = list(range(len(framed)))
    session_id = oracle.session_id if same_session else 1234
    fed = scan_in_place(version, framed, cuts, session_id, addresses.hide_node_endpoints)
    forwarded = b"".join(piece for pieces in fed for piece in pieces)

    expected = OracleResponse[version].decode(framed, header=True, framed=True)
    expected.session_id = session_id if version >= 7 else 0
    expected.node_endpoints = []
    for topic in expected.responses:
        for p in topic.partitions:
            if p.error_code == 1:
                p.error_code, p.high_watermark, p.last_stable_offset = 0, 7, 6
                p.log_start_offset = 5 if version >= 5 else -1
    response_seen = OracleResponse[version].decode(forwarded, header=True, framed=True)
    assert len(forwarded) == len(framed)
    assert response_seen.header.correlation_id == CORRELATION_ID
    response_seen.unknown_tags = (
        expected.unknown_tags
    ) = {}  # the endpoints under a number of no meaning
    assert response_seen.to_dict() == expected.to_dict()


@given(responses(), st.lists(st.integers(1, 60_000), max_size=6))
def test_every_chunk_leaves_in_at_most_one_piece(
    case: tuple[int, OracleResponse], cuts: list[int]
) -> None:
    version, oracle = case
    fed = scan_in_place(version, framed_of(oracle), cuts, 1234, addresses.hide_node_endpoints)
    assert max(len(pieces) for pieces in fed) == 1


@given(responses(), st.integers(1, 4_000), st.randoms(use_true_random=False))
def test_records_may_go_by_another_way(
    case: tuple[int, OracleResponse], step: int, rng: Random
) -> None:
    version, oracle = case
    framed = framed_of(oracle)
    scanner = fs.FetchResponseScan(
        version,
        len(framed),
        lambda head: fr.HeadPatch(head.correlation_id, 1234),
        lambda topic, partition, code: fr.PartitionPatch(7, 6, 5) if code == 1 else None,
        addresses.hide_node_endpoints,
    )
    forwarded, pos = b"", 0
    while not scanner.done:
        pieces = scanner.feed(memoryview(bytearray(framed[pos : pos + min(step, scanner.left)])))
        forwarded += b"".join(bytes(piece) for piece in pieces)
        pos = len(framed) - scanner.left
        passing = rng.randint(0, scanner.records_left)
        scanner.passed_by(passing)
        forwarded += framed[pos : pos + passing]
        pos += passing
    fed = scan_in_place(version, framed, [], 1234, addresses.hide_node_endpoints)
    assert forwarded == b"".join(fed[0])
    assert len(forwarded) == len(framed)


@given(responses())
def test_spliced_endpoints_of_another_length_change_the_size_prefix(
    case: tuple[int, OracleResponse],
) -> None:
    version, oracle = case
    framed = framed_of(oracle)
    fed = scan_in_place(version, framed, [], 1234, lambda tags: TWO_ENDPOINTS)
    forwarded = b"".join(fed[0])
    assert int.from_bytes(forwarded[:4], "big") == len(forwarded) - 4
    if version >= fs.NODE_ENDPOINTS_FROM and len(framed) <= fs.SMALL_RESPONSE_BYTES_MAX:
        assert forwarded.endswith(TWO_ENDPOINTS) or not oracle.node_endpoints


@given(responses())
def test_exactly_the_answers_without_anything_to_look_at_are_plain(
    case: tuple[int, OracleResponse],
) -> None:
    version, oracle = case
    framed = framed_of(oracle)
    if version < 7:
        return
    session_id = fr.plain_session_id(memoryview(framed), version)
    parsed = fr.parse_head(framed, version)
    assert parsed is not None
    assert session_id == (parsed[0].session_id if is_plain(oracle) else None)


@given(responses(), st.dictionaries(st.integers(0, 3), st.none() | st.integers(-1, 1 << 40)))
def test_a_plain_answer_has_the_log_starts_that_the_scan_shows(
    case: tuple[int, OracleResponse], starts: dict[int, int | None]
) -> None:
    version, oracle = case
    framed = framed_of(oracle)
    archived = {t.topic_id.bytes if version >= 13 else t.topic.encode() for t in oracle.responses}
    log_starts = dict.fromkeys(archived, starts.get)
    in_one_pass = bytearray(framed)
    plain = fr.plain_session_id(memoryview(in_one_pass), version, log_starts)
    scanned = b"".join(scan_of(version, framed, log_starts).feed(memoryview(bytearray(framed))))
    if plain is not None:
        assert bytes(in_one_pass) == scanned
    else:  # what is patched already stays as it is
        rescan = scan_of(version, framed, log_starts)
        assert b"".join(rescan.feed(memoryview(in_one_pass))) == scanned


def scan_of(version: int, framed: bytes, log_starts: fr.LogStarts) -> fs.FetchResponseScan:
    return fs.FetchResponseScan(
        version,
        len(framed),
        lambda head: fr.HeadPatch(head.correlation_id, head.session_id),
        lambda topic, partition, code: None,
        lambda tags: tags,
        log_starts,
    )


@given(responses(), st.data())
def test_a_damaged_answer_is_not_plain(
    case: tuple[int, OracleResponse], data: st.DataObject
) -> None:
    version, oracle = case
    framed = framed_of(oracle)
    if version < 7:
        return
    for at in (8, -1) if version >= 12 else ():  # the header's tags and the response's: not there
        tagged = bytearray(framed)
        tagged[at] += 1
        assert fr.plain_session_id(memoryview(tagged), version) is None
    bytes_kept = data.draw(st.integers(20, len(framed) - 1))
    assert fr.plain_session_id(memoryview(framed[:bytes_kept]), version) is None
    assert fr.plain_session_id(memoryview(framed + b"\x00"), version) is None


@pytest.mark.parametrize("version", [4, 10, 11, 12, 17])
@pytest.mark.parametrize("tags", [b"\x00", b"\x01\x09\x01x"])
def test_aborted_transactions_leave_as_they_come(version: int, tags: bytes) -> None:
    """A broker that lists many must not make each piece cost more than its own bytes."""
    partition = OracleResponse.FetchableTopicResponse.PartitionData
    aborted = [
        partition.AbortedTransaction(producer_id=n, first_offset=5_000, version=version)
        for n in range(1, 5_001)
    ]
    topic = OracleResponse.FetchableTopicResponse(
        topic="t",
        topic_id=UUID(int=7),
        partitions=[
            partition(partition_index=1, aborted_transactions=aborted, records=b"", version=version)
        ],
        version=version,
    )
    framed = framed_of(OracleResponse(responses=[topic], version=version))
    if version >= fr.FETCH_FLEXIBLE_FROM and tags != b"\x00":
        first = framed.index((1).to_bytes(8) + (5_000).to_bytes(8))
        for entry in reversed(range(0, len(aborted), 3)):
            at = first + 17 * entry + 16
            framed = framed[:at] + tags + framed[at + 1 :]
        framed = (len(framed) - 4).to_bytes(4) + framed[4:]
    cuts = list(range(1_000, len(framed), 1_000))
    fed = scan_in_place(version, framed, cuts, 0, addresses.hide_node_endpoints)
    entry_bytes = 16 + len(tags)
    arrived = bytes_forwarded = 0
    for pieces in fed:
        arrived += min(1_000, len(framed) - arrived)
        bytes_forwarded += sum(map(len, pieces))
        assert arrived - bytes_forwarded < entry_bytes
    assert bytes_forwarded == len(framed)
