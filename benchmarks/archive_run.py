"""One run of fetchproxy's command line, timed from within.

`python -m benchmarks.archive_run ARG…` prints `{"seconds": …, "cpu_seconds": …, "mib_max": …}`. The
time to start Python and to load the code is left out, as it is for a consumer that `drain` times.
Everything else counts.
"""

from __future__ import annotations

import json
import os
import sys
import time

import fetchproxy.cli.archive
import fetchproxy.storage.stores.s3  # noqa: F401 - both are loaded when they are needed
from benchmarks.process_usage import resident_mib_max
from fetchproxy.cli.main import app

if __name__ == "__main__":
    cpu_before, begun = time.process_time(), time.perf_counter()
    status = app(sys.argv[1:], prog_name="fetchproxy", standalone_mode=False)
    if status:
        sys.exit(status)
    measured = {
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu_before,
        "mib_max": resident_mib_max(os.getpid()),
    }
    print(json.dumps(measured))
