"""Archives and stores of other folders' tests are used here, too."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
for folder in ("pipeline", "remote_log", "metadata", "simulation", "gateway", "e2e"):
    sys.path.insert(0, str(TESTS / folder))
