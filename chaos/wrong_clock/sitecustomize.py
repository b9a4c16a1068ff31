"""Shifts the wall clock of a Python process by `$CHAOS_CLOCK_AHEAD_S` if it is on PYTHONPATH.

It shifts only `time.time` and `time.time_ns`. Signatures of requests to the store use `datetime`,
and the store would refuse all requests with a shifted one.
"""

import os
import time

_AHEAD_NS = int(float(os.environ["CHAOS_CLOCK_AHEAD_S"]) * 1e9)
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _AHEAD_NS / 1e9
time.time_ns = lambda: _time_ns() + _AHEAD_NS
