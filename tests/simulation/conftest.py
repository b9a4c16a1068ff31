"""The contract suite is no package: its folder is put on the path for the faulty store's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "storage_contract",
    "manager_contract",
    "read_side_simulation",
    "session_simulation",
    "simulated_consumer",
    "client_connection",
    "fetch_check",
    "broker",
)
sys.path.insert(0, str(Path(__file__).parent.parent / "contracts"))
