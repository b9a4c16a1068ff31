"""A real store that reports each write of a segment's object, before and after it. Not a test.

A test can stop or kill its process there. A label is `before` or `after`, a verb (put, put_file,
delete) and the object's suffix; for metadata, the state follows: `before put_file log`,
`after put metadata COPY_SEGMENT_FINISHED`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from fetchproxy.model import ByteRange
from fetchproxy.segments.object_keys import SegmentFile, parse_segment_key
from fetchproxy.storage import packed_logs
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, ObjectStore, StoredObject

# The files of an unpacked segment.
_FILES = [f for f in SegmentFile if f not in (SegmentFile.METADATA, SegmentFile.PACKING)]
_SMALL = [f for f in _FILES if f is not SegmentFile.LOG]

# In the order of RemoteStorage's writes.
COPY_STEPS = [
    "put metadata COPY_SEGMENT_STARTED",
    *(f"put {file.value}" for file in _SMALL),
    "put_file log",
    "put metadata COPY_SEGMENT_FINISHED",
]
DELETE_STEPS = [
    "put metadata DELETE_SEGMENT_STARTED",
    *(f"delete {file.value}" for file in _FILES),
    "delete metadata",
]
PACKED_COPY_STEPS = [
    *COPY_STEPS[: COPY_STEPS.index("put_file log")],
    "put packing",
    *COPY_STEPS[COPY_STEPS.index("put_file log") :],
]
WITHIN_PACKING = "within packing"


def labels(steps: list[str]) -> list[str]:
    return [f"{when} {step}" for step, when in product(steps, ("before", "after"))]


def kill_at(label: str) -> Callable[[str], None]:
    def reached(now: str) -> None:
        if now == label:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def stop_at(label: str) -> Callable[[str], None]:
    """Stop the process there once, like a sleeping machine; SIGCONT continues it."""
    stopped: list[str] = []

    def reached(now: str) -> None:
        if now == label and not stopped:
            stopped.append(now)
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    return reached


def stop_within_rename(label: str) -> None:
    """Like `stop_at`, but between a file store's last check and the rename to the object.

    Label: `put metadata` and the state.
    """
    rename, stopped = Path.replace, []
    state = label.removeprefix("put metadata ").encode()

    def replace(self: Path, target: Path) -> Path:
        if not stopped and target.suffix == ".metadata" and state in self.read_bytes():
            stopped.append(label)
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1.0)  # a thread may run on for a moment before the signal reaches it
            written = rename(self, target)
            print("written", flush=True)
            return written
        return rename(self, target)

    Path.replace = replace  # type: ignore[assignment, method-assign]


def kill_within_packing() -> None:
    """Kill between two blocks of a log, when the first one is in the spool."""
    every = packed_logs.packed_blocks

    def blocks(*args: Any, **options: Any) -> Iterator[bytes]:
        for number, block in enumerate(every(*args, **options)):
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield block

    packed_logs.packed_blocks = blocks


class LabelledStore(ObjectStore):
    """Calls `reached(label)` on the loop for segment objects; other objects cause no call."""

    def __init__(self, inner: ObjectStore, reached: Callable[[str], None]) -> None:
        self.inner = inner
        self._reached = reached

    async def put(self, key: str, content: bytes) -> None:
        step = self._step("put", key, content)
        self._say("before", step)
        await self.inner.put(key, content)
        self._say("after", step)

    async def put_new(self, key: str, content: bytes) -> bool:
        return await self.inner.put_new(key, content)

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        step = self._step("put_file", key)
        self._say("before", step)
        await self.inner.put_file(key, path, settled=settled)
        self._say("after", step)

    async def delete(self, key: str) -> None:
        step = self._step("delete", key)
        self._say("before", step)
        await self.inner.delete(key)
        self._say("after", step)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        return await self.inner.get(key, bytes_max)

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        return await self.inner.get_range(key, byte_range)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        async for stored_object in self.inner.list(prefix, start_after):
            yield stored_object

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        async for folder in self.inner.list_folders(prefix):
            yield folder

    async def close(self) -> None:
        await self.inner.close()

    def _say(self, when: str, step: str | None) -> None:
        if step is not None:
            self._reached(f"{when} {step}")

    @staticmethod
    def _step(verb: str, key: str, content: bytes | None = None) -> str | None:
        parsed = parse_segment_key("", key)
        if parsed is None:
            return None
        if parsed.file is SegmentFile.METADATA and content is not None:
            return f"{verb} metadata {json.loads(content)['state']}"
        return f"{verb} {parsed.file.value}"
