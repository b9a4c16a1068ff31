"""A store with the fault of the drill that is running, if one is.

No drill writes anything wrong. While the store is said to be down, and while reads are damaged, no
write reaches it: so nothing is written on the grounds of damaged bytes. What is damaged is a copy
in memory, and of logs alone: these have a checksum that the proxy compares.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fetchproxy.errors import StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.runtime.drills import Drill, Fault
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.stores.object_store import Content, ObjectStore, WrappedObjectStore

_NO_REQUESTS = ("open", "close")
_READS = ("get", "get_range", "list", "list_folders", "clock_ms")


class DrilledObjectStore(WrappedObjectStore):
    def __init__(self, inner: ObjectStore, drill: Drill) -> None:
        super().__init__(inner)
        self._drill = drill

    def around(
        self, verb: str, key: str | None = None
    ) -> AbstractAsyncContextManager[Callable[[], object]]:
        return self._with_fault(verb)

    @asynccontextmanager
    async def _with_fault(self, verb: str) -> AsyncIterator[Callable[[], object]]:
        fault, reads = self._drill.fault, verb in _READS
        if verb not in _NO_REQUESTS:
            if fault is Fault.STORE_DOWN or (fault is Fault.STORE_CORRUPT and not reads):
                raise StorageUnavailable(f"the drill {fault} refuses the request")
            if fault is Fault.STORE_SLOW and reads:
                await self._drill.wait_slow()
        yield lambda: None

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        content = await super().get_range(key, byte_range)
        if self._drill.fault is not Fault.STORE_CORRUPT or not key.endswith(f".{SegmentFile.LOG}"):
            return content
        damaged = bytearray(content)
        if damaged:
            damaged[len(damaged) // 2] ^= 1
        return damaged
