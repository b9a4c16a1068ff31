"""Freed memory goes back to the system: a burst's peak must not be the process's size for ever.

glibc keeps what was freed between blocks that are still in use: after a thousand clients with half
requests of 100 KiB the process held 60 MB of it, in use 23. `malloc_trim` gives whole free pages
back. It takes about 0.15 ms per MB and holds the heap's lock: often and little is better than
rarely and much.

Blocks of chunks' size it gives back by itself, each time, and every page of the next one is then
made and cleared anew: a fifth of the CPU of a replay. So they stay in the heap until a trim.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from fetchproxy.config.sections import MiB, ProcessConfig
from fetchproxy.observability.metrics import HEAP_FREED_BYTES, HEAP_TRIMS

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 5.0
# From <malloc.h>; the threshold is the largest that glibc takes, the rest follows from it.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK_BYTES_MAX = 32 * MiB


def spare_collections() -> None:
    """What is there by now stays, and a full collection of garbage need not look at it each time:
    it took 80 ms with the descriptions of S3, while everything else waited."""
    gc.collect()
    gc.freeze()


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33; `fordblks` is what is free within the heap."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


@dataclass(frozen=True, slots=True)
class Allocator:
    """`freed_bytes()` counts pages that were given back as well: to glibc they are as free."""

    freed_bytes: Callable[[], int]
    give_back: Callable[[], None]
    keep_large_blocks: Callable[[], None]


def glibc_allocator() -> Allocator | None:
    """None where the C library is another one, or older."""
    library = ctypes.CDLL(None)
    try:
        told, trim = library.mallinfo2, library.malloc_trim
    except AttributeError:
        return None
    told.restype = _MallInfo2
    trim.argtypes = [ctypes.c_size_t]

    def keep_large_blocks() -> None:
        library.mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES_MAX)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BLOCK_BYTES_MAX)

    return Allocator(lambda: int(told().fordblks), lambda: trim(0), keep_large_blocks)


async def give_back_freed_memory(config: ProcessConfig, allocator: Allocator | None) -> None:
    """Until cancelled."""
    if allocator is None:
        log.info("freed_memory_is_kept", reason="not glibc 2.33 or later")
        await asyncio.Event().wait()
        return
    allocator.keep_large_blocks()
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        freed_bytes = allocator.freed_bytes()
        HEAP_FREED_BYTES.set(freed_bytes)
        if freed_bytes > config.freed_bytes_max:
            await asyncio.to_thread(allocator.give_back)
            HEAP_TRIMS.inc()
