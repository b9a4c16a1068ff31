"""Any range of a packed log is what it was, and nothing that was changed passes for it."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from itertools import accumulate
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import ByteRange, EpochStart, RemoteLogSegmentId, TopicIdPartition
from fetchproxy.segments.json_fields import NewerMetadataVersion
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.packing import (
    BLOCK_BYTES_MAX,
    Cipher,
    CopyDescription,
    Packing,
    WrappedKey,
    decode_packing,
    encode_packing,
    file_label,
    opened_file,
    packed_blocks,
    sealed_file,
    unpacked,
)
from fetchproxy.storage.ciphers import AesGcm

SEGMENT = RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "orders", 0), UUID(int=7))
BLOCK = 64
CIPHER = AesGcm(bytes(range(32)))
CIPHERS = st.sampled_from([None, CIPHER])
KEY = WrappedKey("k1", b"wrapped")
# Some parts of a log become smaller, and some do not.
LOGS = st.lists(st.binary(min_size=1, max_size=90) | st.just(bytes(200)), min_size=1, max_size=8)


def packed(
    log: bytes,
    cipher: Cipher | None,
    compress: bool = True,
    segment_id: RemoteLogSegmentId = SEGMENT,
) -> tuple[Packing, bytes]:
    parts = [log[at : at + BLOCK] for at in range(0, len(log), BLOCK)]
    blocks = [
        *packed_blocks(
            parts, segment_id, len(log), compress=compress, cipher=cipher, block_bytes=BLOCK
        )
    ]
    key = None if cipher is None else KEY
    ends = array("q", accumulate(map(len, blocks)))
    return Packing(segment_id, len(log), BLOCK, ends, key), b"".join(blocks)


def read(
    packing: Packing, cipher: Cipher | None, stored: bytes, byte_range: ByteRange
) -> bytearray:
    where = packing.stored_range(packing.blocks_of(byte_range))
    return unpacked(packing, cipher, stored[where.start : where.end], byte_range)


def whole(packing: Packing) -> ByteRange:
    return ByteRange(0, packing.log_bytes)


@given(LOGS.map(b"".join), CIPHERS, st.booleans(), st.data())
def test_any_range_is_what_it_was(
    log: bytes, cipher: Cipher | None, compress: bool, data: st.DataObject
) -> None:
    packing, stored = packed(log, cipher, compress)
    assert packing.stored_bytes == len(stored)
    packing = decode_packing(encode_packing(packing), "a key")
    start = data.draw(st.integers(0, len(log) - 1))
    end = data.draw(st.integers(start + 1, len(log)))
    assert read(packing, cipher, stored, ByteRange(start, end)) == log[start:end]


def test_what_can_be_made_smaller_is() -> None:
    log = bytes(10 * BLOCK)
    assert len(packed(log, None)[1]) < len(log) / 2
    assert len(packed(log, None, compress=False)[1]) == len(log) + 10 * (1 + 4)
    assert len(packed(log, CIPHER, compress=False)[1]) == len(log) + 10 * (1 + 16)
    assert b"orders are open" not in packed(b"orders are open" * 40, CIPHER, compress=False)[1]


@pytest.mark.parametrize("cipher", [None, CIPHER], ids=["compressed", "encrypted"])
def test_every_flipped_bit_is_found(cipher: Cipher | None) -> None:
    log = bytes(range(100)) + bytes(100)
    packing, stored = packed(log, cipher)
    for at in range(len(stored)):
        for bit in range(8):
            changed = bytearray(stored)
            changed[at] ^= 1 << bit
            with pytest.raises(CorruptSegment, match="block "):
                read(packing, cipher, bytes(changed), whole(packing))


@given(LOGS.map(b"".join), CIPHERS, st.data())
def test_every_cut_is_found(log: bytes, cipher: Cipher | None, data: st.DataObject) -> None:
    packing, stored = packed(log, cipher)
    cut = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(CorruptSegment, match="the object ends inside block"):
        read(packing, cipher, stored[:cut], whole(packing))
    with_more = stored + b"more"
    assert read(packing, cipher, with_more, whole(packing)) == log


@pytest.mark.parametrize("cipher", [None, CIPHER], ids=["compressed", "encrypted"])
def test_a_block_counts_in_its_own_place_alone(cipher: Cipher | None) -> None:
    """Swapped, said twice, of another partition, of another log of the same key."""
    log = bytes(range(BLOCK)) + bytes(reversed(range(BLOCK))) + bytes(range(BLOCK))
    packing, stored = packed(log, cipher, compress=False)
    size = len(stored) // 3
    first, second, third = (stored[at : at + size] for at in range(0, len(stored), size))
    for changed in (second + first + third, first + first + third, third + second + first):
        with pytest.raises(CorruptSegment, match=r"block [01]"):
            read(packing, cipher, changed, whole(packing))
    tp = SEGMENT.topic_id_partition
    for other in (
        RemoteLogSegmentId(tp._replace(partition=1), SEGMENT.id),
        RemoteLogSegmentId(tp._replace(topic_id=UUID(int=2)), SEGMENT.id),
        RemoteLogSegmentId(tp, UUID(int=8)),
    ):
        transplanted = packed(log, cipher, compress=False, segment_id=other)[1]
        with pytest.raises(CorruptSegment, match="block 0"):
            read(packing, cipher, transplanted, whole(packing))
    # Without its last block, and with a packing that says so: the label has the log's size.
    shorter = Packing(SEGMENT, 2 * BLOCK, BLOCK, array("q", (size, 2 * size)), packing.key)
    with pytest.raises(CorruptSegment, match="block 0"):
        read(shorter, cipher, first + second, whole(shorter))


def test_another_key_opens_nothing() -> None:
    packing, stored = packed(b"orders" * 40, CIPHER)
    with pytest.raises(CorruptSegment, match="block 0"):
        read(packing, AesGcm(bytes(32)), stored, whole(packing))


def test_a_block_that_claims_to_be_small_fills_no_memory() -> None:
    """A gigabyte of zeros in some bytes: the room for it is that of a block."""
    blocks = packed_blocks([bytes(BLOCK_BYTES_MAX)], SEGMENT, BLOCK, compress=True, cipher=None)
    stored = b"".join(blocks)
    packing = Packing(SEGMENT, BLOCK, BLOCK, array("q", [len(stored)]))
    with pytest.raises(CorruptSegment, match="block 0"):
        read(packing, None, stored, whole(packing))


def test_a_file_beside_the_log_is_bound_to_its_name_and_segment() -> None:
    label = file_label(SEGMENT, SegmentFile.TXN)
    sealed = sealed_file(CIPHER, label, b"aborted", bytes(11))
    assert opened_file(CIPHER, label, sealed) == b"aborted"
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(CorruptSegment):
            opened_file(CIPHER, label, bytes(changed))
    for other in (file_label(SEGMENT, SegmentFile.INDEX), b""):
        with pytest.raises(CorruptSegment):
            opened_file(CIPHER, other, sealed)
    for plain in (b"", b"aborted", sealed[:20]):
        with pytest.raises(CorruptSegment, match="not encrypted"):
            opened_file(CIPHER, label, plain)


def test_a_packing_is_what_the_docs_say_and_refuses_what_cannot_be() -> None:
    packing = Packing(SEGMENT, 100, BLOCK, array("q", (30, 50)), KEY)
    document = json.loads(encode_packing(packing))
    assert document == {
        "version": 1,
        "topic": "orders",
        "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ",
        "partition": 0,
        "segment_id": "AAAAAAAAAAAAAAAAAAAABw",
        "log_bytes": 100,
        "block_bytes": 64,
        "stored_block_bytes": "AAAAHgAAABQ=",
        "key_id": "k1",
        "wrapped_key": "d3JhcHBlZA==",
    }
    for wrong in (
        {"log_bytes": 0},
        {"log_bytes": 200},
        {"block_bytes": BLOCK_BYTES_MAX + 1},
        {"block_bytes": 1},
        {"stored_block_bytes": "AAAAHgAAAAA="},  # a size of 0
        {"stored_block_bytes": "AAAAHv////8="},
        {"stored_block_bytes": "AAAAHgA"},
        {"wrapped_key": None},
    ):
        with pytest.raises(CorruptSegment, match="a key"):
            decode_packing(json.dumps(document | wrong).encode(), "a key")
    with pytest.raises(NewerMetadataVersion):
        decode_packing(json.dumps(document | {"version": 3}).encode(), "a key")


def test_an_encrypted_segment_says_what_it_was_copied_with() -> None:
    epochs = (EpochStart(-1, 0), EpochStart(7, 5))
    described = CopyDescription(
        5, 19, -1, 100, has_aborted_txns=False, segment_leader_epochs=epochs
    )
    packing = Packing(SEGMENT, 100, BLOCK, array("q", (30, 50)), KEY, described)
    document = json.loads(encode_packing(packing))
    assert document["version"] == 2
    assert decode_packing(json.dumps(document).encode(), "a key") == packing
    digests = {described.digest("orders"), described.digest("orders-2")}
    for name, other in (
        ("start_offset", 6), ("end_offset", 20), ("max_timestamp_ms", 0),
        ("segment_size_bytes", 101),
        ("has_aborted_txns", True), ("segment_leader_epochs", epochs[:1]),
    ):  # fmt: skip
        digests.add(replace(described, **{name: other}).digest("orders"))
    assert len(digests) == 8
    for wrong in (
        {"base_offset": -1},
        {"end_offset": 4},
        {"end_offset": None},
        {"max_timestamp_ms": -2},
        {"has_aborted_txns": 0},
        {"leader_epochs": [{"epoch": 0}]},
    ):
        with pytest.raises(CorruptSegment, match="a key"):
            decode_packing(json.dumps(document | wrong).encode(), "a key")
