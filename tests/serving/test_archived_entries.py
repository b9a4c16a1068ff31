"""Cutting the archive's part of a response to size: whole batches, their transactions, KIP-74."""

from __future__ import annotations

import struct

from fetchproxy_protocol.fetch import PartitionPatch
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.model import AbortedTxn
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.segments.aborted_index import AbortedIndex, AbortedSpan, txn_starts
from fetchproxy.segments.side_files import encode_aborted
from fetchproxy.serving.archived_entries import PartitionResponse, ResponseRoom


def batch(base_offset: int, records: int, body: int) -> bytes:
    rest = struct.pack(">iBihi", 0, 2, 0, 0, records - 1) + bytes(34 + body)
    return struct.pack(">qi", base_offset, len(rest)) + rest


def response(
    partition: int, batches: list[bytes], cuts: list[int], aborted=()
) -> PartitionResponse:
    """The batches in pieces that may end inside a batch, as chunks do."""
    whole = b"".join(batches)
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    pieces, at = [], 0
    for end in ends:
        pieces.append(memoryview(whole)[at:end])
        at = end
    return PartitionResponse((b"t", partition), PartitionPatch(), 0, pieces, aborted)


SIZES = st.lists(st.lists(st.integers(0, 90), max_size=5), min_size=1, max_size=4)


@given(SIZES, st.integers(-10, 900), st.booleans(), st.lists(st.integers(0, 600), max_size=4))
def test_whole_batches_in_order_and_one_too_many_at_most_once(sizes, room, first_whole, cuts):
    archived_partitions = []
    for partition, bodies in enumerate(sizes):
        batches = [batch(10 * n, 10, body) for n, body in enumerate(bodies)]
        archived_partitions.append((batches, response(partition, batches, cuts)))
    response_room = ResponseRoom(room, first_whole)
    fitting = [response_room.fit(part) for _, part in archived_partitions]
    assert len(fitting) == len(archived_partitions)
    total, first_size, dropped = 0, 0, False
    for (batches, _), kept_partition in zip(archived_partitions, fitting, strict=True):
        records = b"".join(kept_partition.records)
        assert kept_partition.size == len(records)
        prefixes = [b"".join(batches[:n]) for n in range(len(batches) + 1)]
        assert records in prefixes
        dropped = dropped or records != prefixes[-1]
        if records and not total:
            first_size = len(batches[0])
        total += len(records)
    assert response_room.left_off == dropped
    assert total <= max(room, first_size if first_whole else 0, 0)
    if first_whole and any(batches for batches, _ in archived_partitions):
        assert total > 0


def test_transactions_that_begin_behind_the_cut_are_not_listed() -> None:
    batches = [batch(0, 10, 50), batch(10, 10, 50)]
    listed = encode_aborted([AbortedTxn(3, 12, 7, 13), AbortedTxn(11, 15, 8, 16)])
    whole = response(0, batches, [30], (AbortedSpan(AbortedIndex(listed), 0, 19),))
    room = ResponseRoom(len(batches[0]), first_whole=False)
    assert at_once(txn_starts(room.fit(whole).aborted)) == [(3, 7)]
    assert room.left_off
    room = ResponseRoom(10_000, first_whole=False)
    assert room.fit(whole) == whole
    assert not room.left_off


def test_a_partition_is_named_again_when_its_ends_have_moved() -> None:
    ends = PartitionPatch(100, 90, 5)
    quiet = PartitionResponse((b"t", 0), ends)
    assert not quiet.has_news(ends)
    assert quiet.has_news(PartitionPatch(99, 90, 5))
    assert quiet.has_news(None)
