"""A segment's leader epochs, in the text of Kafka's `leader-epoch-checkpoint` file. Pure.

    0               version
    2               number of entries
    0 0             epoch, first offset written in it
    3 17200

Epochs and offsets both rise from line to line.
"""

from __future__ import annotations

from collections.abc import Iterable

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart

VERSION = 0
_DIGITS_MAX = 19  # of an int64


def encode_epochs(epochs: Iterable[EpochStart]) -> bytes:
    entries = list(epochs)
    lines = [str(VERSION), str(len(entries)), *(f"{e.epoch} {e.start_offset}" for e in entries)]
    return ("\n".join(lines) + "\n").encode()


def decode_epochs(raw: bytes) -> tuple[EpochStart, ...]:
    """Raises CorruptSegment, naming the line."""
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise CorruptSegment("leader epochs are not ASCII text") from None
    lines = text.split("\n")
    if lines[-1] != "":
        raise CorruptSegment(f"leader epochs: line {len(lines)} has no end")
    del lines[-1]
    if len(lines) < 2:
        raise CorruptSegment("leader epochs: version or number of entries is missing")
    version, count = _numbers(lines, 0, 1)[0], _numbers(lines, 1, 1)[0]
    if version != VERSION:
        raise CorruptSegment(f"leader epochs: line 1 has version {version}, not {VERSION}")
    if count != len(lines) - 2:
        raise CorruptSegment(f"leader epochs: line 2 says {count} entries, {len(lines) - 2} follow")
    entries: list[EpochStart] = []
    for i in range(2, len(lines)):
        entry = EpochStart(*_numbers(lines, i, 2))
        before = entries[-1] if entries else None
        if before and not (entry.epoch > before.epoch and entry.start_offset > before.start_offset):
            raise CorruptSegment(f"leader epochs: line {i + 1} does not rise above line {i}")
        entries.append(entry)
    return tuple(entries)


def _numbers(lines: list[str], i: int, count: int) -> list[int]:
    words = lines[i].split(" ")
    if len(words) != count or not all(w.isdigit() and len(w) <= _DIGITS_MAX for w in words):
        raise CorruptSegment(f"leader epochs: line {i + 1} is {lines[i][:80]!r}")
    return [int(word) for word in words]
