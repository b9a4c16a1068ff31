"""Makes hostile frames out of real ones. Pure: the same seed makes the same frames."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

RECORDED = Path(__file__).with_name("recorded_frames.txt")
TOPIC_ID = UUID("f022ed00-0000-4000-8000-00000000f022")  # as `record_frames` writes it
_HEAD_BYTES = 12  # size, API key, version, correlation id

# Where parsers go wrong: signs, the ends of each width, lengths around what a frame holds.
_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_VARINTS = (b"\x00", b"\x01", b"\x7f", b"\x80\x01", b"\xff\xff\xff\xff\x0f", b"\x80" * 9 + b"\x01")

Mutation = Callable[[random.Random, bytearray, list[bytes]], bytearray]


def recorded_frames(topic_id: UUID) -> list[bytes]:
    """The requests of real clients for the topic `fuzzed`, which has this id here."""
    frames = (bytes.fromhex(line.split()[3]) for line in RECORDED.read_text().splitlines())
    return [frame.replace(TOPIC_ID.bytes, topic_id.bytes) for frame in frames]


def hostile_frames(rng: random.Random, seeds: list[bytes]) -> Iterator[bytes]:
    """Endless. One in eight is as a real client sent it, so that connections get past the start."""
    while True:
        frame = bytearray(rng.choice(seeds))
        if rng.random() >= 1 / 8:
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                if len(frame) < _HEAD_BYTES:
                    break
                frame = rng.choice(_MUTATIONS)(rng, frame, seeds)
            if rng.random() < 0.9:  # else the size lies, and what follows is read out of step
                frame[:4] = struct.pack(">i", len(frame) - 4)
        yield bytes(frame)


def _place(rng: random.Random, frame: bytearray, width: int = 1) -> int:
    """Mostly in the body: behind a broken API key nothing else is looked at."""
    start = 4 if rng.random() < 0.1 else _HEAD_BYTES
    return rng.randrange(min(start, len(frame) - width), len(frame) - width + 1)


def _flip_bits(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    for _ in range(rng.randint(1, 8)):
        frame[_place(rng, frame)] ^= 1 << rng.randrange(8)
    return frame


def _write_number(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    width = rng.choice((1, 2, 4, 8))
    at = _place(rng, frame, width)
    number = rng.choice((*_NUMBERS, len(frame), len(frame) - at, -1))
    frame[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "big")
    return frame


def _write_varint(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    at = _place(rng, frame)
    frame[at : at + 1] = rng.choice(_VARINTS)
    return frame


def _cut(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    return frame[: max(_HEAD_BYTES + 2, _place(rng, frame))]


def _cut_out(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    start = max(_HEAD_BYTES + 2, _place(rng, frame))
    del frame[start : start + rng.randint(1, 16)]
    return frame


def _repeat(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    start = _place(rng, frame)
    part = frame[start : start + rng.randint(1, 64)]
    frame[start:start] = part * rng.choice((1, 1, 2, 50))
    return frame


def _append(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    return frame + rng.randbytes(rng.choice((1, 4, 100, 5000)))


def _graft(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    """This header over another request's end."""
    other = rng.choice(seeds)
    return frame[: _place(rng, frame)] + other[rng.randrange(_HEAD_BYTES, len(other)) :]


def _other_api(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    key = rng.choice((rng.randrange(93), rng.randrange(93), rng.randrange(-(1 << 15), 1 << 15)))
    version = rng.choice((rng.randrange(20), rng.randrange(20), rng.randrange(-(1 << 15), 1 << 15)))
    struct.pack_into(">hh", frame, 4, key, version)
    return frame


def _other_version(rng: random.Random, frame: bytearray, seeds: list[bytes]) -> bytearray:
    struct.pack_into(">h", frame, 6, rng.randrange(-1, 20))
    return frame


_MUTATIONS: list[Mutation] = [
    _flip_bits,
    _write_number,
    _write_number,
    _write_varint,
    _cut,
    _cut_out,
    _repeat,
    _append,
    _graft,
    _other_api,
    _other_version,
]
