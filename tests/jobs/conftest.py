"""What the tests of jobs share."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(scope="module")
def spark_set_up(find_part: Callable[[str, Callable[[], dict[str, str]]], object]) -> None:
    """For tests that start Spark by commands; they are skipped where it is not set up."""
    from spark_commands import environment

    find_part("spark", environment)
