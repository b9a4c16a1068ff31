"""Gives synchronous callers the async store, on one thread with its own event loop.

Spark's workers and its planner are synchronous. While they decode, the next read runs here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from pydantic import ValidationError

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import (
    ConfigError,
    FetchProxyError,
    ObjectFailing,
    RemoteStorageError,
    StorageUnavailable,
)
from fetchproxy.remotelog.options import SourceOptions
from fetchproxy.storage.remote_storage import RemoteStorage, open_store
from fetchproxy.storage.stores.retries import is_each_object_alone, tried_once

T = TypeVar("T")

# The pause before a retry doubles from the first value up to the second.
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0


def opened_store(options: SourceOptions) -> RemoteStorage:
    """The store, before the first read. Raises ConfigError."""
    try:
        config = StoreConfig.model_validate(dict(options.store_settings))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"remotelog: store.{first['loc'][0]}: {first['msg']}") from None
    return open_store(options.store, config)


class LoopThread:
    """An event loop on its own thread. `opened` stays open on it until `close`."""

    def __init__(self, name: str, opened: AbstractAsyncContextManager[object]) -> None:
        """Raises the errors of opening `opened`."""
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
        """Waits for the result of `work`."""
        return self.begin(work).result()

    def time(self) -> float:
        """The loop's time, in seconds."""
        return self._loop.time()

    def close(self) -> None:
        """Cancels the work under way."""
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
    current = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not current]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


async def with_retries(operation: str, read: Callable[[], Awaitable[T]], max_s: float) -> T:
    """The result of `read`, which is retried while the store may answer later.

    Raises RemoteStorageError of the same type, naming `operation`; StorageUnavailable after `max_s`
    seconds. Within `each_object_alone` its requests are repeated one by one, and ObjectFailing is
    raised at once.
    """
    last_error: FetchProxyError | None = None
    pause_s = RETRY_FIRST_S
    try:
        async with asyncio.timeout(max_s):
            while True:
                try:
                    # Usually this loop is the one that repeats it.
                    with nullcontext() if is_each_object_alone() else tried_once():
                        return await read()
                except RemoteStorageError as error:
                    if not error.retriable or isinstance(error, ObjectFailing):
                        raise type(error)(f"{operation}: {error}") from error
                    last_error = error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
    except TimeoutError:
        reason = f"; last: {last_error}" if last_error is not None else ""
        raise StorageUnavailable(
            f"{operation}: not read within {max_s:g} s{reason}"
        ) from last_error
