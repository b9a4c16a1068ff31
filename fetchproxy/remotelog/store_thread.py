"""The project's async store for callers that are not: one thread with a loop of its own. Spark's
workers and its planner are synchronous; while they decode, the next read is under way here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

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
    """An event loop on a thread of its own, and what is `opened` on it until `close`."""

    def __init__(self, name: str, opened: AbstractAsyncContextManager[object]) -> None:
        """Raises as the opening of `opened`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name=name)
        self._thread.start()
        self._opened = opened
        try:
            self.done(opened.__aenter__())
        except BaseException:
            self._stop()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def done(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns."""
        return self.begin(work).result()

    def time(self) -> float:
        """The loop's, in seconds."""
        return self._loop.time()

    def close(self) -> None:
        """Whatever is under way is cancelled."""
        try:
            self.done(self._opened.__aexit__(None, None, None))
        finally:
            self._stop()

    def _stop(self) -> None:
        self.done(_cancel_others())
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
