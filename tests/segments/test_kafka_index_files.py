"""Kafka's own index files: which are sound."""

from __future__ import annotations

from struct import pack

import pytest
from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.segments.side_files import offset_index_fault, snapshot_fault, time_index_fault


def offsets(*entries: tuple[int, int]) -> bytes:
    return b"".join(pack(">ii", *entry) for entry in entries)


def times(*entries: tuple[int, int]) -> bytes:
    return b"".join(pack(">qi", *entry) for entry in entries)


@pytest.mark.parametrize("raw", [b"", offsets((0, 0)), offsets((3, 100), (9, 4_999))])
def test_sound_offset_indexes(raw: bytes) -> None:
    assert offset_index_fault(raw, 100, 109, 5_000) == ""


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (offsets((3, 100))[:-1], "inside an entry"),
        (offsets((3, 100), (3, 200)), "after"),
        (offsets((3, 100), (4, 100)), "after"),
        (offsets((3, 100), (0, 0)), "after"),  # preallocated and never trimmed
        (offsets((10, 100)), "above"),
        (offsets((9, 5_000)), "above"),
    ],
)
def test_unsound_offset_indexes(raw: bytes, what: str) -> None:
    assert what in offset_index_fault(raw, 100, 109, 5_000)


@pytest.mark.parametrize("raw", [b"", times((-1, 0)), times((7, 3), (9, 3), (10, 9))])
def test_sound_time_indexes(raw: bytes) -> None:
    assert time_index_fault(raw, 100, 109, 10) == ""


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (times((7, 3))[:-1], "inside an entry"),
        (times((7, 3), (7, 4)), "after"),
        (times((7, 3), (8, 2)), "after"),
        (times((11, 3)), "above"),
        (times((7, 10)), "above"),
    ],
)
def test_unsound_time_indexes(raw: bytes, what: str) -> None:
    assert what in time_index_fault(raw, 100, 109, 10)


def test_snapshots_carry_their_checksum() -> None:
    body = b"\x00\x00\x00\x00"
    sound = pack(">hI", 1, crc32c(body)) + body
    assert snapshot_fault(sound) == ""
    assert "checksum" in snapshot_fault(sound[:-1] + b"\x01")
    assert "head" in snapshot_fault(sound[:5])
