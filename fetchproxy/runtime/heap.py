"""Freed memory goes back to the system, so that the process does not keep the size of a peak.

glibc keeps freed memory between blocks that are still in use. After a thousand clients with half
requests of 100 KiB, the process held 60 MB of freed memory with 23 MB in use. `malloc_trim` gives
whole free pages back. It takes about 0.15 ms per MB and holds the heap's lock, so frequent small
trims are better than rare large ones.

By default, glibc returns each freed block of a chunk's size at once, and the kernel makes and
clears every page of the next block anew. That takes a fifth of the CPU of a replay. So these
blocks stay in the heap until a trim.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import (
    Callable,
)
from dataclasses import dataclass

import structlog

from fetchproxy.config.memory_plan import FREED_BYTES_MAX
from fetchproxy.config.schema import MiB
from fetchproxy.observability.metrics import (
    HEAP_FREED_BYTES,
    HEAP_TRIMS,
)

log = structlog.get_logger(__name__)


_uninitialised = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)
HEAP_LOOK_INTERVAL_S = 5.0
# From <malloc.h>. The block size is the largest mmap threshold that glibc accepts; the trim
# threshold follows from it.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK_BYTES_MAX = 32 * MiB


def uninitialised(size_bytes: int) -> bytearray:
    """A bytearray with arbitrary content: the caller must fill it. `bytearray(size_bytes)` would
    clear it first, which takes a tenth of the CPU of a replay and of an archiver.
    """
    buffer: bytearray = _uninitialised(None, size_bytes)
    return buffer


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33. `fordblks`: free bytes within the heap."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


@dataclass(frozen=True, slots=True)
class Allocator:
    """`freed_bytes()` also counts pages that were given back, because glibc counts them as free."""

    freed_bytes: Callable[[], int]
    give_back: Callable[[], None]
    keep_large_blocks: Callable[[], None]


def glibc_allocator() -> Allocator | None:
    """None: the C library is not glibc, or is older than 2.33."""
    library = ctypes.CDLL(None)
    try:
        usage, trim = library.mallinfo2, library.malloc_trim
    except AttributeError:
        return None
    usage.restype = _MallInfo2
    trim.argtypes = [ctypes.c_size_t]

    def keep_large_blocks() -> None:
        library.mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES_MAX)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BLOCK_BYTES_MAX)

    return Allocator(lambda: int(usage().fordblks), lambda: trim(0), keep_large_blocks)


async def give_back_freed_memory(allocator: Allocator | None) -> None:
    """Runs until cancelled."""
    if allocator is None:
        log.info("freed_memory_is_kept", reason="not glibc 2.33 or later")
        await asyncio.Event().wait()
        return
    allocator.keep_large_blocks()
    while True:
        await asyncio.sleep(HEAP_LOOK_INTERVAL_S)
        freed_bytes = allocator.freed_bytes()
        HEAP_FREED_BYTES.set(freed_bytes)
        if freed_bytes > FREED_BYTES_MAX:
            await asyncio.to_thread(allocator.give_back)
            HEAP_TRIMS.inc()
