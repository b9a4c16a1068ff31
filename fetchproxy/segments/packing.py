"""The layout of a log in a packed `.log` object. Pure.

The object has blocks, each compressed, encrypted or both by itself. So any range of the log can be
read by a range of the object.

A stored block is

    codec  int8   0: as it is, 1: zstd
    body   bytes  of the block's part of the log; encrypted if the segment has a key
    check  bytes  CRC-32C of the rest (4), or the tag of AES-256-GCM (16)

and the check covers a label, too: the segment, the log's length, `block_bytes` and the block's
number. So a block that was changed, or that belongs elsewhere, is refused. Every block except the
last has `block_bytes` of the log.

The `.packing` object has the rest:

    {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0, "segment_id": "…",
     "log_bytes": 67108864, "block_bytes": 262144, "stored_block_bytes": "<base64>",
     "key_id": "2026-11-26", "wrapped_key": "<base64>"}

`stored_block_bytes` has a uint32 for each block. The last two fields are missing if nothing is
encrypted. `wrapped_key` is the segment's own data key, encrypted by a key of the key ring.

An encrypted segment's object has version 2, and repeats the metadata of the copy:

     "base_offset": 0, "end_offset": 999, "max_timestamp_ms": …, "has_aborted_txns": false,
     "leader_epochs": [{"epoch": 0, "start_offset": 0}]

The data key is wrapped together with a hash of these fields. If one is changed or left out, the key
does not open. The reader of the segment compares its metadata with these fields, because anybody
with write access to the store can change the metadata.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from struct import Struct
from typing import Any, Protocol

import cramjam
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    AnySegment,
    ByteRange,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from fetchproxy.segments.description import FIELDS, from_json, to_json
from fetchproxy.segments.json_fields import (
    JsonFields,
    decode_document,
    identity_fields,
    json_document,
)
from fetchproxy.segments.object_keys import SegmentFile, uuid_text

PACKING_VERSION = 2
_UNDESCRIBED_VERSION = 1
# A range of the log costs up to one more block at either end. A smaller block compresses less well.
BLOCK_BYTES = 256 * 1024
BLOCK_BYTES_MAX = 16 * 1024 * 1024
ZSTD_LEVEL = 1  # level 3 takes half as much time again, and gains a few percent
# A block that compression leaves above this share of its size is stored as it is, for fast reads.
_COMPRESSED_SHARE_MAX = 7 / 8

_AS_IT_IS, _ZSTD = 0, 1
_LABEL = Struct(">16sI16sQII")
_PLACE = Struct(">I")
_CRC_BYTES = 4
TAG_BYTES = 16
# A nonce is used once under a key: the block's number in the log, or a file's random bytes.
_BLOCK_NONCE = Struct(">4xQ")
_FILE_NONCE_HEAD = b"\xff"
NONCE_BYTES = 12
_SEALED = b"\xfffpsealed"  # begins each encrypted file, and no other file
SEALED_BYTES_MORE = len(_SEALED) + NONCE_BYTES + TAG_BYTES
# The fields of a CopyDescription that a SegmentRef has, too.
_IN_REFS = ("start_offset", "end_offset", "segment_size_bytes", "has_aborted_txns")


class Cipher(Protocol):
    """AES-256-GCM with a segment's data key.

    `open` and `open_into` raise CorruptSegment. `out` is as long as the content.
    """

    def seal(self, nonce: bytes, content: Buffer, label: bytes) -> bytes: ...
    def open(self, nonce: bytes, sealed: Buffer, label: bytes) -> bytes: ...
    def open_into(self, nonce: bytes, sealed: Buffer, label: bytes, out: memoryview) -> None: ...


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key, encrypted by the key `key_id`."""

    key_id: str
    wrapped: bytes


@dataclass(frozen=True, slots=True)
class CopyDescription:
    """What a copy's metadata said, of which a segment may only be clipped later. Its fields are
    some of the metadata's: `FIELDS` has their form in JSON.
    """

    start_offset: int
    end_offset: int  # inclusive
    max_timestamp_ms: int
    segment_size_bytes: int
    has_aborted_txns: bool
    segment_leader_epochs: tuple[EpochStart, ...]

    @classmethod
    def of(cls, metadata: RemoteLogSegmentMetadata) -> CopyDescription:
        """`metadata`: the metadata of the copy."""
        return cls(**{name: _as_copied(metadata, name) for name in _DESCRIBED})

    def digest(self, topic: str) -> str:
        values = [getattr(self, name) for name in _DESCRIBED]
        text = json.dumps([topic, *values], default=lambda epoch: [epoch.epoch, epoch.start_offset])
        return hashlib.sha256(text.encode()).hexdigest()

    def fault(self, segment: AnySegment) -> str:
        """The fields of `segment` that differ from this description; "": none.

        It may claim aborted transactions that do not exist: their index is encrypted too.
        """
        names: Iterable[str] = _IN_REFS
        expected: AnySegment | CopyDescription = self
        if isinstance(segment, RemoteLogSegmentMetadata):
            names, expected = _DESCRIBED, self.expected_metadata(segment)
        wrong = [
            f"{name} is {now}, not {was}"
            for name in names
            if (now := _as_copied(segment, name)) != (was := _as_copied(expected, name))
            and not (name == "has_aborted_txns" and now)
        ]
        return "; ".join(wrong)

    def expected_metadata(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """The metadata as they should be. Only the state and the offset of a cut are taken from
        `metadata`.
        """
        values = {name: getattr(self, name) for name in _DESCRIBED}
        values["has_aborted_txns"] = metadata.has_aborted_txns or self.has_aborted_txns
        whole_metadata = replace(metadata, **values, copied_end_offset=None, packed=True)
        end = metadata.end_offset
        if metadata.copied_end_offset is None or not self.start_offset <= end < self.end_offset:
            return whole_metadata
        # A cut may have removed the newest record.
        newest = min(metadata.max_timestamp_ms, self.max_timestamp_ms)
        return replace(whole_metadata.clipped(end), max_timestamp_ms=newest)


# By name, in the order of `digest`.
_DESCRIBED = {
    name: next(field for field in FIELDS if field.attribute == name and field.json)
    for name in CopyDescription.__dataclass_fields__
}


def _as_copied(segment: AnySegment | CopyDescription, name: str) -> Any:
    """The value at the time of the copy, as far as the segment has it."""
    if name == "end_offset" and not isinstance(segment, CopyDescription):
        return segment.stored_end_offset
    return getattr(segment, name)


@dataclass(frozen=True, slots=True)
class Packing:
    """`ends`: the byte of the object after each block. `copy_description` None: nothing is
    encrypted, or the encrypting program wrote no description.
    """

    segment_id: RemoteLogSegmentId
    log_bytes: int
    block_bytes: int
    ends: array[int]
    key: WrappedKey | None = None
    copy_description: CopyDescription | None = None

    @property
    def digest(self) -> str:
        """The hash of the description, wrapped with the data key; "": there is none."""
        topic = self.segment_id.topic_id_partition.topic
        return "" if self.copy_description is None else self.copy_description.digest(topic)

    @property
    def stored_bytes(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def memory_bytes(self) -> int:
        epochs = (
            () if self.copy_description is None else self.copy_description.segment_leader_epochs
        )
        return 8 * len(self.ends) + 200 * len(epochs) + 1000

    def blocks_of(self, byte_range: ByteRange) -> range:
        """`byte_range` ends within the log."""
        first, last = byte_range.start // self.block_bytes, (byte_range.end - 1) // self.block_bytes
        return range(first, last + 1)

    def stored_range(self, blocks: range) -> ByteRange:
        return ByteRange(self.ends[blocks.start - 1] if blocks.start else 0, self.ends[blocks[-1]])


def block_label(
    segment_id: RemoteLogSegmentId, log_bytes: int, block_bytes: int, number: int
) -> bytes:
    tp = segment_id.topic_id_partition
    return _LABEL.pack(
        tp.topic_id.bytes, tp.partition, segment_id.id.bytes, log_bytes, block_bytes, number
    )


def file_label(segment_id: RemoteLogSegmentId, file: SegmentFile) -> bytes:
    tp = segment_id.topic_id_partition
    place = tp.topic_id.bytes + _PLACE.pack(tp.partition) + segment_id.id.bytes
    return place + file.value.encode()


def packed_blocks(
    log: Iterable[Buffer],
    segment_id: RemoteLogSegmentId,
    log_bytes: int,
    *,
    compress: bool,
    cipher: Cipher | None,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[bytes]:
    """The stored blocks of a log. `log`: parts of `block_bytes`; the last one may be shorter."""
    for number, part in enumerate(log):
        label = block_label(segment_id, log_bytes, block_bytes, number)
        codec, body = _AS_IT_IS, part
        if compress:
            smaller = memoryview(cramjam.zstd.compress(part, level=ZSTD_LEVEL))
            if len(smaller) < _COMPRESSED_SHARE_MAX * len(part):
                codec, body = _ZSTD, smaller
        head = bytes([codec])
        if cipher is not None:
            yield head + cipher.seal(_BLOCK_NONCE.pack(number), body, label + head)
        else:
            check = crc32c(body, crc32c(label + head))
            yield b"".join((head, body, check.to_bytes(_CRC_BYTES, "big")))


def unpacked(
    packing: Packing, cipher: Cipher | None, stored: Buffer, byte_range: ByteRange
) -> bytearray:
    """The bytes of `byte_range`, which ends within the log. `stored`: the range's whole blocks.

    Raises CorruptSegment, naming the block.
    """
    out = bytearray(byte_range.length)
    view, unpacking = memoryview(out), _Unpacking(packing, cipher)
    blocks = packing.blocks_of(byte_range)
    begin = packing.stored_range(blocks).start
    for number in blocks:
        block_range = packing.stored_range(range(number, number + 1))
        block = memoryview(stored)[block_range.start - begin : block_range.end - begin]
        if len(block) < block_range.length:
            raise CorruptSegment(f"the object ends inside block {number}")
        start = number * packing.block_bytes
        length = min(packing.block_bytes, packing.log_bytes - start)
        low, high = max(byte_range.start - start, 0), min(byte_range.end - start, length)
        target_start = start + low - byte_range.start
        try:
            unpacking.unpack(
                number, block, length, low, view[target_start : target_start + high - low]
            )
        except CorruptSegment as error:
            raise CorruptSegment(f"block {number}: {error}") from None
    return out


class _Unpacking:
    def __init__(self, packing: Packing, cipher: Cipher | None) -> None:
        self._place = packing.segment_id, packing.log_bytes, packing.block_bytes
        self._cipher = cipher
        self._check_bytes = _CRC_BYTES if cipher is None else TAG_BYTES
        # Buffers between two steps. Each block reuses them, as fresh memory is dear.
        room = min(packing.block_bytes, packing.log_bytes)
        self._of_block = memoryview(bytearray(room))
        self._of_body = memoryview(bytearray(0 if cipher is None else room))

    def unpack(
        self, number: int, block: memoryview, length: int, low: int, target: memoryview
    ) -> None:
        """Fills `target` with the block's bytes from `low` on. `length`: the length of the whole
        block.
        """
        codec, body = block[0], block[1 : -self._check_bytes]
        if codec not in (_AS_IT_IS, _ZSTD):
            raise CorruptSegment(f"codec {codec} is not known")
        if codec == _AS_IT_IS and len(body) != length:
            raise CorruptSegment(f"a block of {len(block)} bytes has not {length}")
        block_room = target if len(target) == length else self._of_block[:length]
        if codec == _AS_IT_IS:
            self._open_into(number, block, block_room)
        else:
            opened = body if self._cipher is None else self._of_body[: len(body)]
            self._open_into(number, block, None if self._cipher is None else opened)
            try:
                count = cramjam.zstd.decompress_into(opened, block_room)
            except cramjam.DecompressionError as error:
                raise CorruptSegment(str(error)) from None
            if count != length:
                raise CorruptSegment(f"{count} bytes, not {length}")
        if block_room is not target:
            target[:] = block_room[low : low + len(target)]

    def _open_into(self, number: int, block: memoryview, out: memoryview | None) -> None:
        """Writes the block's body into `out`, which is as long. None: only checks it."""
        label = block_label(*self._place, number) + block[:1]
        if self._cipher is not None:
            assert out is not None
            self._cipher.open_into(_BLOCK_NONCE.pack(number), block[1:], label, out)
            return
        body, check = block[1:-_CRC_BYTES], block[-_CRC_BYTES:]
        if crc32c(body, crc32c(label)) != int.from_bytes(check, "big"):
            raise CorruptSegment("its checksum does not match")
        if out is not None:
            out[:] = body


def sealed_file(cipher: Cipher, label: bytes, content: bytes, random_bytes: bytes) -> bytes:
    """`random_bytes`: 11 bytes, never used before, as the file may be written again."""
    nonce = _FILE_NONCE_HEAD + random_bytes
    return _SEALED + nonce + cipher.seal(nonce, content, label)


def opened_file(cipher: Cipher, label: bytes, sealed: bytes) -> bytes:
    position = len(_SEALED)
    if not sealed.startswith(_SEALED + _FILE_NONCE_HEAD) or len(sealed) < SEALED_BYTES_MORE:
        raise CorruptSegment("it is not encrypted, as it should be")
    return cipher.open(
        sealed[position : position + NONCE_BYTES], sealed[position + NONCE_BYTES :], label
    )


def encode_packing(packing: Packing) -> bytes:
    begins = [0, *packing.ends[:-1]]
    sizes = [end - begin for begin, end in zip(begins, packing.ends, strict=True)]
    described = packing.copy_description
    version = _UNDESCRIBED_VERSION if described is None else PACKING_VERSION
    document = {
        **identity_fields(packing.segment_id.topic_id_partition, version),
        "segment_id": uuid_text(packing.segment_id.id),
        "log_bytes": packing.log_bytes,
        "block_bytes": packing.block_bytes,
        "stored_block_bytes": b64encode(_sizes(len(sizes)).pack(*sizes)).decode(),
    }
    if packing.key is not None:
        document["key_id"] = packing.key.key_id
        document["wrapped_key"] = b64encode(packing.key.wrapped).decode()
    if described is not None:
        for name, field in _DESCRIBED.items():
            if name != "segment_size_bytes":  # it is log_bytes
                document[field.json] = to_json(field, getattr(described, name))
    return json_document(document)


def decode_packing(raw: bytes, key: str) -> Packing:
    """Raises CorruptSegment, naming `key` and the field; NewerMetadataVersion."""
    return decode_document(raw, key, PACKING_VERSION, _packing)


def _packing(fields: JsonFields) -> Packing:
    segment_id = RemoteLogSegmentId(fields.partition(), fields.uuid("segment_id"))
    log_bytes = fields.integer("log_bytes", 1, SEGMENT_BYTES_MAX + 1)
    block_bytes = fields.integer("block_bytes", 1, BLOCK_BYTES_MAX + 1)
    packed = _base64(fields, "stored_block_bytes")
    blocks = -(-log_bytes // block_bytes)
    if len(packed) != 4 * blocks:
        raise CorruptSegment(f"field stored_block_bytes has {len(packed) / 4} sizes, not {blocks}")
    sizes = _sizes(blocks).unpack(packed)
    if not all(0 < size <= block_bytes + 1 + TAG_BYTES for size in sizes):
        raise CorruptSegment("field stored_block_bytes has a size that no block can have")
    key = None
    if "key_id" in fields.names() or "wrapped_key" in fields.names():
        key = WrappedKey(fields.text("key_id"), _base64(fields, "wrapped_key"))
    described = None
    if fields.integer("version", 1, PACKING_VERSION + 1) > _UNDESCRIBED_VERSION:
        described = _decode_copy_description(fields, log_bytes)
    ends = array("q", accumulate(sizes))
    return Packing(segment_id, log_bytes, block_bytes, ends, key, described)


def _decode_copy_description(fields: JsonFields, log_bytes: int) -> CopyDescription:
    values: dict[str, Any] = {"segment_size_bytes": log_bytes}
    for name, field in _DESCRIBED.items():
        if name not in values:
            values[name] = from_json(fields, field, field.least(values))
    if values["end_offset"] > OFFSET_MAX:
        raise CorruptSegment(f"field end_offset is above {OFFSET_MAX}")
    return CopyDescription(**values)


def _sizes(count: int) -> Struct:
    return Struct(f">{count}I")


def _base64(fields: JsonFields, name: str) -> bytes:
    try:
        return b64decode(fields.text(name), validate=True)
    except ValueError:
        raise CorruptSegment(f"field {name} is not base64") from None
