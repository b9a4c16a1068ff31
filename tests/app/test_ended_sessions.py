"""Sessions that have ended leave the memory, however long they lasted."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from mirrors import filled, url_of

# Sessions refer to their connections and these to them, so it takes a collection of garbage to free
# them. One that has passed over them while they were open must not have exempted them for good.
SESSIONS = """
import asyncio, gc, struct, sys, weakref
from fetchproxy import app
from fetchproxy.config.load import load_config, parse_assignment
from fetchproxy.serving.session import ClientSession

COUNT = 50
alive = weakref.WeakSet()
make = ClientSession.__init__

def counted(session, *arguments, **named):
    make(session, *arguments, **named)
    alive.add(session)

ClientSession.__init__ = counted

def config(url):
    mode = ("archive_only.enabled=true", "archive_only.open_to_anybody=true")
    settings = (f"store.url={url}", "gateway.listen=127.0.0.1:0", *mode)
    return load_config(None, {}, [parse_assignment(setting) for setting in settings])

async def ended_after_a_collection(port):
    request = struct.pack(">hhih", 18, 0, 1, -1)  # ApiVersions
    writers = []
    for _ in range(COUNT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">i", len(request)) + request)
        await reader.readexactly(4)
        writers.append(writer)
    assert len(alive) == COUNT
    gc.collect()
    for writer in writers:
        writer.transport.abort()

async def main():
    async with app._open_parts(config(sys.argv[1]), app.LIMITS, serves=True, writes=False) as parts:
        async with app._purgatory(parts, parts.rlmm) as purgatory:
            async with app._archive_only(parts, purgatory) as gateway:
                await ended_after_a_collection(gateway.port)
                while gateway.connections:
                    await asyncio.sleep(0.01)
                gc.collect()
                return len(alive)

print(asyncio.run(main()))
"""


def test_sessions_that_a_collection_has_seen_are_freed_when_they_end(tmp_path: Path) -> None:
    asyncio.run(filled(tmp_path))
    command = [sys.executable, "-c", SESSIONS, url_of(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) <= 1, "the last one may still be referred to"
