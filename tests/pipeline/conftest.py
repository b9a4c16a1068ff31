"""Spark sessions for the tests of the pipeline, and the modules beside other folders' tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(2, str(Path(__file__).parents[1] / "gateway"))

from folder_fixture import folder_fixture
from spark_program import SparkProgram

from lab.errors import PartMissing
from lab.parts import PARTS, is_cached


def started_where_it_is_set_up() -> SparkProgram:
    """Not installed for a short test: that takes minutes. `make test-all` does it beforehand."""
    if not is_cached(PARTS["spark"]):
        raise PartMissing("spark", "it is not set up", "Run `python -m lab setup spark`.")
    return SparkProgram()


FindSpark = Callable[[str, Callable[[], SparkProgram]], SparkProgram]


@folder_fixture
def spark(find_part: FindSpark) -> Iterator[SparkProgram]:
    """One Spark session, with Spark's Kafka source and `remotelog`, for a folder's tests."""
    program = find_part("spark", started_where_it_is_set_up)
    yield program
    program.close()
