"""The certificates beside the TLS tests are used here too, and the virtual-time loop."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "tls"))
sys.path.insert(2, str(Path(__file__).parents[1] / "simulation"))
