"""Archives and stores of other folders' tests are used here, too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
for folder in ("pipeline", "remote_log", "metadata", "simulation", "gateway", "e2e"):
    sys.path.insert(0, str(TESTS / folder))


@pytest.fixture(scope="module")
def spark_set_up(find_part: Callable[[str, Callable[[], dict[str, str]]], object]) -> None:
    """For tests that start Spark by commands; they are skipped where it is not set up."""
    from spark_commands import environment  # found by the paths above

    find_part("spark", environment)
