"""Which PySparks the tests run on, and whether the lab has set them up."""

from __future__ import annotations

import pytest

from lab.errors import PartMissing
from lab.parts import PARTS, PYSPARKS, is_cached

# The last one is in short tests, each minor in `make test-all`.
VERSIONS = [
    pytest.param(part, marks=[pytest.mark.slow] * (part != "spark-newest")) for part in PYSPARKS
]


def check_set_up(part: str) -> None:
    if not is_cached(PARTS[part]):
        raise PartMissing(part, "it is not set up", f"Run `python -m lab setup {part}`.")
