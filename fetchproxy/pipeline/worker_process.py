"""What a Python worker of Spark keeps from one task to the next."""

from __future__ import annotations

import gc
import sys
from functools import cache
from zipimport import zipimporter


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
