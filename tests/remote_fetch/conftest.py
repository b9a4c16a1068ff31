"""The virtual-time loop, the faulty store and generated archives are those of the simulation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("read_side")
sys.path.insert(0, str(Path(__file__).parent.parent / "simulation"))
