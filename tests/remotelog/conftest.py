"""Spark sessions, one for each version of PySpark that is set up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from folder_fixture import folder_fixture
from spark_program import SparkProgram
from spark_versions import VERSIONS, check_set_up

from lab.parts import PYSPARKS


def started_where_it_is_set_up() -> SparkProgram:
    """Not installed for a short test: that takes minutes. `make test-all` does it beforehand."""
    check_set_up("spark")
    return SparkProgram()


FindSpark = Callable[[str, Callable[[], SparkProgram]], SparkProgram]


@folder_fixture
def spark(find_part: FindSpark) -> Iterator[SparkProgram]:
    """One Spark session, with Spark's Kafka source and `remotelog`, for a folder's tests."""
    program = find_part("spark", started_where_it_is_set_up)
    yield program
    program.close()


@pytest.fixture(scope="module", params=VERSIONS)
def any_spark(request: pytest.FixtureRequest, find_part: FindSpark) -> Iterator[SparkProgram]:
    """A session of each PySpark 4, without a Kafka source."""
    part: str = request.param

    def start() -> SparkProgram:
        check_set_up(part)
        return SparkProgram(PYSPARKS[part], kafka=False)

    program = find_part(part, start)
    yield program
    program.close()


@pytest.fixture(scope="module", params=list(PYSPARKS))
def any_kafka_spark(request: pytest.FixtureRequest, find_part: FindSpark) -> Iterator[SparkProgram]:
    """A session of each PySpark 4 with the Kafka source that can be had for it."""
    part: str = request.param

    def start() -> SparkProgram:
        check_set_up(part)
        return SparkProgram(PYSPARKS[part])

    program = find_part(part, start)
    yield program
    program.close()
