"""The logs of a seed stay the same when our source changes.

Hypothesis also draws integers and texts that it finds in the source of the program under test. Then
each commit would bring other logs, and a run could not be repeated with the same `SEED`.
"""

from __future__ import annotations

from hypothesis.internal.conjecture import providers

assert callable(providers.is_local_module_file)  # a private name: its end must be noticed
providers.is_local_module_file = lambda path: False
