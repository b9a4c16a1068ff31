"""One request to a store that failed for a passing reason is sent again, with pauses.

Stores tell their clients to do so (S3 for 500 and 503, Cloud Storage for 408, 429 and 5xx, Azure
for 500 and 503). Here a try is one request: a page, a range, a small object, a deletion. Only when
the tries are used up, the caller repeats more than that. The cloud stores' library repeats the
parts of an upload and the pages of a listing itself (`obstore_store.make_clients`), as often as
here.

A caller with a back-off of its own, as the fetchers of readers, asks for one try
(`tried_once`): otherwise its tries and these would multiply, and a slow store would get many times
the requests. A job, which has other objects to go on with, asks whether the store fails or only the
one object (`each_object_alone`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar
from zlib import crc32

from fetchproxy.errors import RemoteStorageError, StorageThrottled, StoreMissing
from fetchproxy.storage.stores.object_store import http_date_ms

T = TypeVar("T")

# With 2 % of errors the first pause must not be felt. The last one outlasts a failover of a load
# balancer, and a second in which too much was asked.
PAUSES_S = (0.03, 0.3, 1.5)
REQUEST_TRIES_MAX = len(PAUSES_S) + 1
# A store that refuses too many requests counts them by the second.
THROTTLED_PAUSE_S = 1.0
# A store may ask for a longer pause (Retry-After). Above this, the caller's own back-off decides.
# If a header asks for more, the pause is this: MinIO asks for a minute, whatever the cause.
RETRY_AFTER_MAX_S = 5.0
_HEADER_CHARS_MAX = 100
# One further try always begins. More begin only within this time: a request that ends by its
# time-out has taken long enough.
TRIES_BEGIN_WITHIN_S = 10.0

_once: ContextVar[bool] = ContextVar("tried_once", default=False)
_alone: ContextVar[bool] = ContextVar("each_object_alone", default=False)


@contextmanager
def tried_once() -> Iterator[None]:
    """The body's requests, and those of tasks begun in it, are not sent again by `retried`."""
    token = _once.set(True)
    try:
        yield
    finally:
        _once.reset(token)


@contextmanager
def each_object_alone() -> Iterator[None]:
    """If all tries of the body to read an object fail and the store gives out others, that raises
    ObjectFailing, so the body can name the object and go on. The same holds in its tasks.
    """
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def is_each_object_alone() -> bool:
    """False within `tried_once`, whose caller tries again."""
    return _alone.get() and not _once.get()


def retry_pause_s(retry_after: str | None, date: str | None = None) -> float:
    """The pause (s) that a response's Retry-After asks for, in seconds or as an HTTP date; 0 if it
    is missing or unreadable. `date`: the response's Date, because clocks differ.
    """
    value = (retry_after or "").strip()[:_HEADER_CHARS_MAX]
    if value.isascii() and value.isdecimal():
        return min(float(value), RETRY_AFTER_MAX_S)
    until_ms = http_date_ms(value)
    now_ms = http_date_ms(date)
    if until_ms is None or now_ms is None:
        return 0.0
    return min(max(until_ms - now_ms, 0) / 1000, RETRY_AFTER_MAX_S)


def pause_s(failures: int, error: RemoteStorageError, operation: str) -> float:
    """Seconds before the next try, after `failures` (1, 2, …) of them. `operation` spreads the
    pauses of requests that failed together.
    """
    spread = 0.5 + crc32(f"{failures} {operation}".encode()) / 2**32
    pause = PAUSES_S[failures - 1] * spread
    if isinstance(error, StorageThrottled) and failures > 1:
        pause = max(pause, THROTTLED_PAUSE_S * (0.5 + spread))
    return max(pause, error.retry_after_s)


async def retried(
    operation: str,
    call: Callable[[], Awaitable[T]],
    on_failure: Callable[[RemoteStorageError], object] = lambda error: None,
) -> T:
    """The result of `call`, which is one request. Raises its last error, with the number of tries.

    `on_failure`: called after each failed try.
    """
    clock = asyncio.get_running_loop().time
    begun_at, failures = clock(), 0
    while True:
        try:
            return await call()
        except RemoteStorageError as error:
            failures += 1
            on_failure(error)
            late = failures > 1 and clock() - begun_at >= TRIES_BEGIN_WITHIN_S
            is_last = (
                failures == REQUEST_TRIES_MAX or late or error.retry_after_s > RETRY_AFTER_MAX_S
            )
            passes = error.retriable and not isinstance(error, StoreMissing)
            if not passes or is_last or _once.get():
                error.count_tries(failures)
                raise
            pause = pause_s(failures, error, operation)
        await asyncio.sleep(pause)
