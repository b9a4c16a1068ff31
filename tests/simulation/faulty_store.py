"""An object store that is slow, fails, hangs and damages answers, all decided by a seed.

The objects in the inner store stay intact; only answers are damaged. With `NO_FAULTS` it passes the
storage contract like any other store, so only the faults affect its callers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Self

from fetchproxy.errors import StorageThrottled, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, ObjectStore, StoredObject


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares are of all requests, 0 … 1; a request that hangs is never answered."""

    latency_s_min: float = 0.0
    latency_s_max: float = 0.0
    failing_share: float = 0.0
    hanging_share: float = 0.0
    corrupting_share: float = 0.0
    # Suffixes of objects that are never damaged: without a checksum no reader could notice.
    intact_suffixes: tuple[str, ...] = ()


BURST_BYTES = 40

NO_FAULTS = Faults()
OUTAGE = Faults(failing_share=1.0)
HANG = Faults(hanging_share=1.0)


class FaultyObjectStore(ObjectStore):
    def __init__(self, inner: ObjectStore, rng: Random, faults: Faults = NO_FAULTS) -> None:
        self.inner = inner
        self.faults = faults
        self.reads: list[tuple[str, ByteRange | None]] = []  # every get and get_range
        self.in_flight_max = 0
        # The most reads of one range of one object in flight at once: single-flight keeps it at 1.
        self.same_in_flight_max: Counter[tuple[str, ByteRange | None]] = Counter()
        self._random = rng
        self._in_flight: Counter[tuple[str, ByteRange | None]] = Counter()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def in_flight(self) -> int:
        return self._in_flight.total()

    async def put(self, key: str, content: bytes) -> None:
        await self._suffer(key)
        await self.inner.put(key, content)

    async def put_new(self, key: str, content: bytes) -> bool:
        await self._suffer(key)
        return await self.inner.put_new(key, content)

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        await self._suffer(key)
        await self.inner.put_file(key, path, settled=settled)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        with self._counted(key, None):
            await self._suffer(key)
            return self._damaged(key, await self.inner.get(key, bytes_max))

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        with self._counted(key, byte_range):
            await self._suffer(key)
            return self._damaged(key, await self.inner.get_range(key, byte_range))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        await self._suffer(prefix)
        async for stored_object in self.inner.list(prefix, start_after):
            yield stored_object

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        await self._suffer(prefix)
        async for folder in self.inner.list_folders(prefix):
            yield folder

    async def delete(self, key: str) -> None:
        await self._suffer(key)
        await self.inner.delete(key)

    async def close(self) -> None:
        await self.inner.close()

    @contextmanager
    def _counted(self, key: str, byte_range: ByteRange | None) -> Iterator[None]:
        range_read = (key, byte_range)
        self.reads.append(range_read)
        self._in_flight[range_read] += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        self.same_in_flight_max[range_read] = max(
            self.same_in_flight_max[range_read], self._in_flight[range_read]
        )
        try:
            yield
        finally:
            self._in_flight[range_read] -= 1

    async def _suffer(self, key: str) -> None:
        faults = self.faults
        if faults.latency_s_max:
            await asyncio.sleep(self._random.uniform(faults.latency_s_min, faults.latency_s_max))
        fate = self._random.random()
        if fate < faults.hanging_share:
            await asyncio.get_running_loop().create_future()
        if fate < faults.hanging_share + faults.failing_share:
            kind = self._random.choice([StorageUnavailable, StorageThrottled])
            raise kind(f"{key}: as the seed has it")

    def _damaged(self, key: str, content: bytes) -> bytes:
        if not content or key.endswith(self.faults.intact_suffixes):
            return content
        if self._random.random() >= self.faults.corrupting_share:
            return content
        if self._random.random() < 0.3:
            return content[: self._random.randrange(len(content))]
        # Damage a run of bytes: one flipped bit may fall into a field that no checksum covers.
        start = self._random.randrange(max(1, len(content) - BURST_BYTES))
        garbled = bytes(byte ^ 0x5A for byte in content[start : start + BURST_BYTES])
        return content[:start] + garbled + content[start + BURST_BYTES :]
