"""The modules beside the tests are imported by name; the virtual-time loop is the simulation's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "simulation"))
