"""The modules beside the tests are imported by name; some are of the simulation and of metadata."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "simulation"))
sys.path.append(str(Path(__file__).parent.parent / "metadata"))
