"""A store in memory with one failing write: it fails before it happens, or its response is lost."""

from __future__ import annotations

from memory_object_store import MemoryObjectStore

from fetchproxy.errors import StorageUnavailable
from fetchproxy.model import ByteRange


class LastTryFailed(StorageUnavailable):
    """Nothing below the caller sends the request again, so each write can be the last one."""

    retriable = False


class FailingStore(MemoryObjectStore):
    """`fail_at`: the number of the failing write, from 0; None: no write fails.
    `failed`: True once that write has failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fail_at: int | None = None
        self.response_lost = False
        self.failed = False
        self.away = False  # as a whole, reads included
        self.logs_away = False  # reads by range fail
        self._count = 0

    def fail(self, at: int | None, *, response_lost: bool = False) -> None:
        self.fail_at, self.response_lost, self.failed, self._count = at, response_lost, False, 0

    async def put(self, key: str, content: bytes) -> None:
        self._maybe_fail(key, before=True)
        await super().put(key, content)
        self._maybe_fail(key, before=False)

    async def delete(self, key: str) -> None:
        self._maybe_fail(key, before=True)
        await super().delete(key)
        self._maybe_fail(key, before=False)

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        if self.logs_away:
            raise StorageUnavailable(f"{key}: away, as the test has it")
        return await super().get_range(key, byte_range)

    async def _turn(self) -> None:
        if self.away:
            raise StorageUnavailable("away, as the test has it")
        await super()._turn()

    def _maybe_fail(self, key: str, *, before: bool) -> None:
        if self._count == self.fail_at and before != self.response_lost:
            self.failed = True
            self.fail_at = None
            raise LastTryFailed(f"{key}: as the test has it")
        self._count += 0 if before else 1

    def objects(self) -> set[str]:
        return set(self._objects)
