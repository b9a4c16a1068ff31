"""On PYTHONPATH, shifts the wall clock of a Python process by `$CHAOS_CLOCK_AHEAD_S`.

Only `time.time` and `time.time_ns`: signatures of requests to the store take `datetime`, and a
store would refuse all of them.
"""

import os
import time

_AHEAD_NS = int(float(os.environ["CHAOS_CLOCK_AHEAD_S"]) * 1e9)
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _AHEAD_NS / 1e9
time.time_ns = lambda: _time_ns() + _AHEAD_NS
