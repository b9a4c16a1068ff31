"""Puts objects with the library that the archiver uses and nothing else: its lower limit.

`python -m benchmarks.bare_puts ENDPOINT BUCKET AT_ONCE FILE` puts objects of the keys and sizes in
FILE, a JSON list of pairs, in that order, AT_ONCE at a time, and prints `{"seconds": …,
"cpu_seconds": …}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from obstore.store import S3Store


async def put_all(store: S3Store, objects: Sequence[tuple[str, int]], at_once: int) -> None:
    waiting = iter(objects)

    async def put_some() -> None:
        for key, size_bytes in waiting:
            await store.put_async(key, bytes(size_bytes), use_multipart=False)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(put_some())


if __name__ == "__main__":
    endpoint, bucket, at_once, file = sys.argv[1:]
    objects = json.loads(Path(file).read_text())
    # Credentials and the region come from the environment.
    bare = S3Store(
        bucket,
        endpoint=endpoint,
        client_options={"allow_http": True},
        checksum_algorithm="CRC64NVME",  # as in fetchproxy, with a server that checks it
        unsigned_payload=True,
    )
    cpu_before, begun = time.process_time(), time.perf_counter()
    asyncio.run(put_all(bare, objects, int(at_once)))
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_before
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}), flush=True)
    # The library's threads may still hold Python objects when the interpreter ends, which would
    # abort the process.
    os._exit(0)
