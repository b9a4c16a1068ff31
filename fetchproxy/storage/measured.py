"""Counts and times the operations of a RemoteStorageManager; changes nothing about them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fetchproxy.errors import RemoteStorageError
from fetchproxy.observability.metrics import STORE_REQUEST_ERRORS, STORE_REQUEST_SECONDS

P = ParamSpec("P")
T = TypeVar("T")


def measured(operation: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The label is the operation's own name. What is cancelled is timed, but is no error."""
    seconds = STORE_REQUEST_SECONDS.labels(operation.__name__)

    @wraps(operation)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        clock = asyncio.get_running_loop().time
        begun_at = clock()
        try:
            return await operation(*args, **kwargs)
        except RemoteStorageError as error:
            STORE_REQUEST_ERRORS.labels(operation.__name__, type(error).__name__).inc()
            raise
        finally:
            seconds.observe(clock() - begun_at)

    return run
