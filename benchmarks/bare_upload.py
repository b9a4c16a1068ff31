"""Uploads with the library that the archiver uses and nothing else: the archiver's upper limit.

`python -m benchmarks.bare_upload ENDPOINT BUCKET PREFIX FILES FILE` uploads FILE that many times,
four at a time, and prints `{"seconds": …, "cpu_seconds": …}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from obstore.store import S3Store

from fetchproxy.config.memory_plan import PART_BYTES, PARTS_IN_FLIGHT_MAX

AT_ONCE = 4  # as `archive.workers_max`


async def upload(store: S3Store, prefix: str, count: int, file: Path) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            await store.put_async(
                f"{prefix}/{number}",
                file,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_IN_FLIGHT_MAX,
            )

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(number))


if __name__ == "__main__":
    endpoint, bucket, prefix, count, file = sys.argv[1:]
    # Credentials and the region come from the environment.
    bare = S3Store(
        bucket,
        endpoint=endpoint,
        client_options={"allow_http": True},
        checksum_algorithm="CRC64NVME",  # as in fetchproxy, with a server that checks it
        unsigned_payload=True,
    )
    cpu_before, begun = time.process_time(), time.perf_counter()
    asyncio.run(upload(bare, prefix, int(count), Path(file)))
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_before
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}), flush=True)
    # The library's threads may still hold Python objects when the interpreter ends, which would
    # abort the process.
    os._exit(0)
