"""`python uploading.py ENDPOINT FILE COUNT` stores FILE so many times at once.

It prints a line when it could begin, and begins when it gets one. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore


async def main(endpoint: str, file: Path, count: int) -> None:
    location = S3Location("b", endpoint_url=endpoint, region="us-east-1", checksum="none")
    async with S3ObjectStore(location) as store, asyncio.TaskGroup() as uploads:
        await store.put_file("first", Path(__file__))  # small: it opens the client
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for number in range(count):
            uploads.create_task(store.put_file(f"object-{number}", file))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
