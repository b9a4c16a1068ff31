"""The proxy as a process and known records, as the gateway's and the end-to-end tests have them."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("fuzz", "gateway", "e2e")]
