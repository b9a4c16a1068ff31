"""The benchmarks of replaying run from end to end, and their figures are what their names say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import goals
from benchmarks.contestants import FETCHPROXY
from benchmarks.fanin import FanIn
from benchmarks.fanin import rows_of as fan_in_rows
from benchmarks.filling import Shape
from benchmarks.remote_replay import RemoteReplay, far_rows
from benchmarks.replay import MAIN, TIERED, Measured, Run, readers_of, rows_of
from lab.kafka_versions import kafka_jars
from lab.s3 import versitygw_executable
from tests.conftest import FindPart

PROJECT = Path(__file__).parents[2]
OTHER = Shape(100, "lz4")


def measured_of(ours: list[float], theirs: list[float]) -> Measured:
    """Seconds for a GB each round; the proxy uses 0.5 s, Kafka's broker 2 s."""
    found = Measured(
        range_reads={MAIN: [900.0], OTHER: [900.0]}, store_share={MAIN: [1.0], OTHER: [1.0]}
    )
    for shape in (MAIN, OTHER):
        for reader in readers_of(shape):
            cpu = {"proxy": 0.5, "broker": 0.1, "client": 1.0}
            found.runs[shape, reader, FETCHPROXY] = [Run(s, 10**9, cpu) for s in ours]
            cpu = {"broker": 2.0, "client": 1.0}
            found.runs[shape, reader, TIERED] = [Run(s, 10**9, cpu) for s in theirs]
    return found


def test_replay_is_compared_within_a_round() -> None:
    rows = {each.name: each for each in rows_of(measured_of([1.0, 4.0], [2.0, 2.0]), [MAIN, OTHER])}
    line = rows[goals.REPLAY_LIBRDKAFKA.words]
    assert (line.value, line.min, line.max, line.met) == (1.25, 0.5, 2.0, True)
    assert rows[goals.REPLAY_RAW.words].met is False
    assert rows[f"{goals.REPLAY_RAW.words}: 8 connections"].value == 1.25
    cpu = rows[goals.REPLAY_CPU.words]
    assert (cpu.value, cpu.met) == (0.25, True)
    speed = rows[f"100 B lz4, raw client, 8 connections, {TIERED}"]
    assert (speed.value, speed.unit) == (500.0, "MB/s")
    assert rows[f"1 KiB, librdkafka, stock, {FETCHPROXY}: CPU of the broker"].value == 0.1
    assert goals.REPLAY_S3.words not in rows


def test_goals_are_only_judged_by_their_own_shape() -> None:
    names = {each.name for each in rows_of(measured_of([1.0], [2.0]), [OTHER])}
    assert not names & {goal.words for goal in goals.TABLE}


def test_a_far_store_is_compared_with_raw_reads() -> None:
    found = RemoteReplay(
        raw_way=(8, 4),
        raw_mb_per_s=[400.0, 500.0],
        raw_cpu_per_gb=[0.5, 0.5],
        proxy_mb_per_s=[360.0, 400.0],
        proxy_cpu_per_gb=[1.0, 1.0],
        store_share=[1.0, 1.0],
        cold_round_trips=[2, 2, 3],
        cold_ms=[101.0, 102.0, 160.0],
        warm_ms=[1.0, 6.0, 7.0],
    )
    rows = {each.name: each for each in far_rows(found)}
    assert (rows[goals.REPLAY_S3.words].value, rows[goals.REPLAY_S3.words].met) == (0.85, True)
    first = rows[goals.FIRST_RECORD.words]
    assert (first.value, first.max, first.met) == (2, 3, False)
    assert rows[f"{goals.FIRST_RECORD.words}: warm"].value == 6.0


def test_fan_in_counts_a_gib_of_the_topic() -> None:
    gib = 1024**3
    rows = {
        each.name: each
        for each in fan_in_rows(FanIn(gib // 2, gib * 6 // 10, 50 * gib, 10.0, 5.0, 5.0, 100.0))
    }
    line = rows[goals.FAN_IN.words]
    assert (line.value, line.unit, line.met) == (1.2, "GiB", False)
    assert rows["size of the topic"].value == 0.5


def test_shapes_by_name() -> None:
    assert Shape.parse("1024") == MAIN == Shape.parse("1024:none")
    assert str(Shape.parse("65536:lz4")) == "64 KiB lz4"
    with pytest.raises(ValueError, match="brotli"):
        Shape.parse("1024:brotli")


def run(part: str, results: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{part}", "--quick", "--results", str(results)]
    done = subprocess.run(
        [*command, *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(results.read_text())
    assert document["not_compared"] == []
    return {each["name"]: each for each in document["rows"]}


@pytest.mark.kafka
@pytest.mark.s3
@pytest.mark.slow
def test_replay_runs(find_part: FindPart[Path], tmp_path: Path) -> None:
    find_part("kafka", kafka_jars)
    find_part("s3", versitygw_executable)
    rows = run("replay", tmp_path / "replay.json", "--shapes", "1024", "100:lz4")
    for goal in (goals.REPLAY_LIBRDKAFKA, goals.REPLAY_RAW, goals.REPLAY_CPU, goals.REPLAY_S3):
        assert rows[goal.words]["value"] > 0, goal.words
    assert rows[goals.FIRST_RECORD.words]["value"] >= 1
    assert rows[f"{goals.FIRST_RECORD.words}: warm"]["value"] < 50  # no round trip to the store
    assert rows["time to the first record after a cold seek"]["min"] >= 50
    assert rows[f"100 B lz4, raw client, 8 connections, {FETCHPROXY}"]["value"] > 0


@pytest.mark.kafka
@pytest.mark.s3
def test_fan_in_runs(find_part: FindPart[Path], tmp_path: Path) -> None:
    find_part("kafka", kafka_jars)
    find_part("s3", versitygw_executable)
    rows = run("fanin", tmp_path / "fanin.json", "--mib", "8", "--consumers", "6")
    assert 1.0 <= rows[goals.FAN_IN.words]["value"] < 6.0
    assert rows["all consumers together"]["value"] > 0
