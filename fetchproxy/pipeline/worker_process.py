"""What a Python worker of Spark keeps from one task to the next."""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache
from zipimport import zipimporter

_M_ARENA_MAX = -8  # of glibc's <malloc.h>


@cache
def share_one_heap() -> None:
    """Once in a worker's life, before its first task: threads take memory from one heap.

    Each task reads on threads of its own. glibc gives threads heaps of theirs, each of which keeps
    what was freed in it: 30 MiB of a worker, and no query is faster for it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library
        mallopt(_M_ARENA_MAX, 1)


@cache
def keep_what_is_loaded() -> None:
    """Once in a worker's life, after its first task: two things that PySpark does around every
    task, a tenth of a second each, no longer go through all that was loaded in the first.

    A full collection (`pyspark/daemon.py`) leaves out what is frozen. Invalidating the caches of
    imports (`pyspark/worker_util.py`) has importers of zip files read their directories again, that
    of pyspark.zip among them; an importer that is forgotten is made anew for the next import.
    """
    gc.collect()
    gc.freeze()
    for path, finder in tuple(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
