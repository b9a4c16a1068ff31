"""What real clients have asked is answered with the same bytes as ever.

`recorded_answers.txt` has a line for each request of `tests/fuzz`: its API, version, the response's
size and the beginning of its SHA-256. Made when the fields of all messages stood here by hand.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from pathlib import Path

from frame_mutations import TOPIC_ID, recorded_frames
from served_archive import ServedArchive, serve_archive
from test_archive_only_fuzz import plant

RECORDED = Path(__file__).with_name("recorded_answers.txt")
WAIT_S = 60


async def response_to(served: ServedArchive, frame: bytes) -> bytes:
    """With a zero for the listener's port, which is another one each time."""
    client = await served.client()
    client.writer.write(frame)
    client.end()
    async with asyncio.timeout(WAIT_S):
        response = await client.reader.read()
    return response.replace(struct.pack(">i", served.server.port), bytes(4))


async def responses() -> list[str]:
    lines = []
    async with serve_archive(await plant()) as served:
        for frame in recorded_frames(TOPIC_ID):
            response = await response_to(served, frame)
            key, version = struct.unpack_from(">hh", frame, 4)
            digest = hashlib.sha256(response).hexdigest()[:16]
            lines.append(f"{key} {version} {len(response)} {digest}")
    return lines


async def test_recorded_requests_are_answered_as_ever() -> None:
    expected = RECORDED.read_text(encoding="utf-8").splitlines()
    assert sum(int(line.split()[2]) > 0 for line in expected) > 90
    assert await responses() == expected
