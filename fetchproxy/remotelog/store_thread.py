"""The project's async store for callers that are not: one thread with a loop of its own. Spark's
workers and its planner are synchronous; while they decode, the next read is under way here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ConfigError, FetchProxyError, RemoteStorageError, StorageUnavailable
from fetchproxy.remotelog.options import SourceOptions
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager, open_store

T = TypeVar("T")

# Between two attempts at what a store may answer later: doubled from the first up to the second.
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0


def opened_store(options: SourceOptions) -> RemoteStorageManager:
    """Nothing is read yet. Raises ConfigError."""
    try:
        config = StoreConfig.model_validate(dict(options.store_settings))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"remotelog: store.{first['loc'][0]}: {first['msg']}") from None
    return open_store(options.store, config)


class LoopThread:
    """An event loop on a thread of its own. `submit` begins, the result of its future waits."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name=name)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def time(self) -> float:
        """The loop's, in seconds."""
        return self._loop.time()

    def stop(self) -> None:
        """Whatever is under way is cancelled."""
        self.submit(_cancel_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    mine = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not mine]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


class StoreThread:
    """`with` opens the store and closes it."""

    def __init__(self, options: SourceOptions) -> None:
        self.rsm = opened_store(options)
        self._read_max_s = options.read_max_ms / 1000

    def __enter__(self) -> Self:
        self._loop = LoopThread("store")
        self._loop.submit(self.rsm.__aenter__()).result()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop.submit(self.rsm.close()).result()
        finally:
            self._loop.stop()

    def begin(self, what: str, read: Callable[[], Awaitable[T]]) -> Future[T]:
        """`read`, again and again as `with_retries` does."""
        return self._loop.submit(with_retries(what, read, self._read_max_s))


async def with_retries(what: str, read: Callable[[], Awaitable[T]], max_s: float) -> T:
    """What `read` returns, tried again while the store may answer later.

    Raises RemoteStorageError of the same kind, with `what` was to be read; StorageUnavailable where
    `max_s` seconds have passed.
    """
    last: FetchProxyError | None = None
    pause_s = RETRY_FIRST_S
    try:
        async with asyncio.timeout(max_s):
            while True:
                try:
                    return await read()
                except RemoteStorageError as error:
                    if not error.retriable:
                        raise type(error)(f"{what}: {error}") from error
                    last = error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
    except TimeoutError:
        reason = f"; last: {last}" if last is not None else ""
        raise StorageUnavailable(f"{what}: not read within {max_s:g} s{reason}") from last
