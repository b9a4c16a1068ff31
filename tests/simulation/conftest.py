"""Folders that are no packages: contract suites and the metadata log in memory come from them."""

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
    "archive_simulation",
    "archive_audit",
)
for folder in ("contracts", "metadata"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))
