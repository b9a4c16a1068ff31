"""What an upload takes while its store keeps it waiting, against the memory plan."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from benchmarks.process_usage import resident_mib
from fetchproxy.config.memory_plan import PART_BYTES, PARTS_IN_FLIGHT_MAX, UPLOAD_BYTES

MiB = 1024 * 1024
UPLOADS = 12
PARTS = 2 * PARTS_IN_FLIGHT_MAX
BEGUN = (
    b"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId>"
    b"</InitiateMultipartUploadResult>"
)


class MuteServer:
    """An S3 server that takes parts and gives no response to them."""

    def __init__(self) -> None:
        self.parts = 0
        self.all_came = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"(?i)content-length: (\d+)", head)
                bytes_left = int(length[1]) if length else 0
                while bytes_left:
                    bytes_left -= len(await reader.read(min(bytes_left, MiB)))
                if "partNumber=" in head:
                    self.parts += 1
                    if self.parts == UPLOADS * PARTS_IN_FLIGHT_MAX:
                        self.all_came.set()
                    continue
                body = BEGUN if "uploads" in head.split()[1] else b""
                lines = f'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: {len(body)}\r\n\r\n'
                writer.write(lines.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def test_an_upload_takes_what_the_plan_says(tmp_path: Path) -> None:
    """The parts in flight; the library accumulates the next one only when one of them is done."""
    file = tmp_path / "segment"
    file.write_bytes(os.urandom(PART_BYTES) * PARTS)
    mute = MuteServer()
    server = await asyncio.start_server(mute.serve, "127.0.0.1", 0, limit=4 * MiB)
    endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("uploading.py"))),
        *(endpoint, str(file), str(UPLOADS)),
        env=os.environ | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert client.stdin is not None
        assert client.stdout is not None
        assert await client.stdout.readline() == b"ready\n"
        before = resident_mib(client.pid)
        client.stdin.write(b"\n")
        await mute.all_came.wait()
        each = (resident_mib(client.pid) - before) / UPLOADS
    finally:
        client.kill()
        await client.wait()
        server.close()
        await server.wait_closed()
    plan = UPLOAD_BYTES / MiB
    print(f"{each:.1f} MiB, {plan:.0f} planned")
    assert mute.parts == UPLOADS * PARTS_IN_FLIGHT_MAX, "more parts at once than the plan knows"
    assert 0.8 * plan <= each <= 1.2 * plan
