"""`make chaos` in its short form: the acts that matter, each once, and every check."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.conductor import Conductor
from chaos.plan import Act, Kind, Plan, Round
from lab.kafka_versions import kafka_jars
from lab.s3 import versitygw_executable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.s3,
    # kafka-python leaves sockets to the garbage collector where a broker does not answer.
    pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*<socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

SHORT = Plan(
    seed=20,
    metadata_manager="store",
    rounds=(
        Round(
            Act(0.0, Kind.LOSE_RECORDS, "chaos-plain-1"),
            (
                Act(1.0, Kind.KILL, "broker 2", 4.0),
                Act(2.0, Kind.CUT, "archiver 1", 8.0),
                Act(3.0, Kind.STALE_LISTINGS, "proxy 2", 8.0),
                Act(4.0, Kind.KILL, "proxy 1", 2.0),
                Act(5.0, Kind.CLOCK_AHEAD, "archiver 2", 16.0),
                Act(14.0, Kind.PAUSE, "store", 4.0),
            ),
        ),
        Round(
            Act(0.0, Kind.REPLACE_DISK, "broker 1", response="keep"),
            (
                Act(1.0, Kind.LOSE_OBJECT, "chaos-plain-0"),
                Act(2.0, Kind.PAUSE, "archiver 2", 8.0),
                Act(3.0, Kind.KILL, "store", 3.0),
                Act(8.0, Kind.PAUSE, "proxy 2", 4.0),
                Act(9.0, Kind.KILL, "archiver 1", 3.0),
                Act(14.0, Kind.CORRUPT, "proxy 1", 6.0),
            ),
        ),
    ),
)


@pytest.mark.parametrize("rounds", [1, 2])
def test_every_record_is_there_whatever_breaks(
    rounds: int, find_part: Callable[[str, Callable[[], Any]], Any], tmp_path: Path
) -> None:
    find_part("kafka", kafka_jars)
    find_part("s3", versitygw_executable)
    plan = replace(SHORT, rounds=SHORT.rounds[:rounds])
    conductor = Conductor(plan, tmp_path, print)
    conductor.play()
    gc.collect()  # here, where such sockets are forgiven, and not within another folder's test
    assert not conductor.faults
