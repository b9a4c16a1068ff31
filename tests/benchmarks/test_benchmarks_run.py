"""Each benchmark runs from end to end in its short form, and has the figures that it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest

from benchmarks import archive, goals, hostile, hostile_connections, outage_figures, workers
from benchmarks.applications import UNPACED
from benchmarks.contestants import BARE_RELAY, FETCHPROXY, KROXYLICIOUS
from benchmarks.tail_latency import FORMS
from lab.kafka_versions import KAFKA_VERSION, kafka_jars, local_tiered_storage_jars
from lab.s3 import versitygw_executable
from lab.spark import kafka_connector
from tests.conftest import FindPart

PROJECT = Path(__file__).parents[2]
FIELDS = {"name", "value", "unit", "goal", "met", "min", "max"}
FIND: dict[str, Callable[[], object]] = {
    "kafka": kafka_jars,
    "s3": versitygw_executable,
    "spark": kafka_connector,
    "tiered storage": lambda: local_tiered_storage_jars(KAFKA_VERSION),
}
MARKS = {"kafka": pytest.mark.kafka, "s3": pytest.mark.s3, "spark": pytest.mark.spark}
PROXY_MIB_MAX = 700  # that of the memory plan's defaults is above 1 GiB
WHO = (hostile.STRANGERS, hostile.OPEN)
# Above the first, and not above the second.
Between = tuple[float, float]
POSITIVE: Between = (0, inf)


@dataclass(frozen=True)
class Short:
    """`python -m benchmarks.NAME --quick ARGUMENTS` on these parts: each row is in its bounds."""

    name: str
    needs: tuple[str, ...]
    arguments: str
    positive: Iterable[str]
    between: dict[str, Between]

    def param(self, *marks: pytest.MarkDecorator) -> object:
        real = [MARKS[part] for part in self.needs if part in MARKS]
        return pytest.param(self, id=self.name, marks=[*real, *marks])


FANIN = Short(
    "fanin",
    ("kafka", "s3"),
    "--mib 8 --consumers 6",
    ["all consumers together"],
    {goals.FAN_IN.words: (0.999, 5.999)},
)
LONGER = [
    Short(
        "cluster",
        ("kafka",),
        "",
        [
            "first record of a group, 12 partitions",
            "cluster restore, 12 partitions",
            "age of the shown recovery point, 12 partitions",
            "restore from 100 segments a partition",
            "restore from 1 segments a partition",
            "archiver with a journal: CPU, 12 partitions",
            "archiver without a journal: requests to the store, 12 partitions",
            "requests that the journal adds, 12 partitions",
        ],
        {},
    ),
    Short(
        "applications",
        ("kafka",),
        "--what crowd",
        [f"4 at once: median: {way}" for way in (UNPACED, FETCHPROXY)],
        {},
    ),
    Short(
        "archive",
        ("kafka", "s3"),
        "",
        [],
        {
            f"{what}, {store}, {shape} records": (least, inf)
            for what, least in (("throughput", 0), ("CPU", 0), ("memory at most", 20))
            for store in (archive.DIRECTORY, archive.S3)
            for shape in (archive.MAIN, *archive.OTHERS)
        },
    ),
    Short(
        "connections",
        ("kafka",),
        "",
        [],
        {
            "idle connections held": (299, 300),
            "sockets of the proxy for each": (1.95, 2.05),
            "idle connections: memory each": (1, inf),
        },
    ),
    Short(
        "hostile",
        ("kafka",),
        "",
        [f"tail p99, {who}, hostile" for who in WHO],
        {f"memory of the proxy, {who}": (0, PROXY_MIB_MAX) for who in WHO},
    ),
    Short(
        "metadata",
        (),
        "--segments 300 --partitions 3",
        ["look-up by partition and offset", "put, 1000 segments in the partition"],
        {"segments": (299, 300)},
    ),
    Short(
        "outage",
        ("kafka", "s3", "tiered storage"),
        "",
        [
            *(f"longest wait while the store is {how}" for how in ("killed", "paused", "slow")),
            "longest wait while the store is corrupt",
            "chunks found corrupt, and not given to anyone",
            "longest turn of the proxy's event loop, within a minute",
            goals.TAIL_BESIDE_REPLAY.words,
            *(f"what they replay {phase}" for phase in outage_figures.REPLAYS),
        ],
        # A pass and more after each of the four faults, over 64 MiB in records of 1 KiB.
        {"archived records read during the faults and after, each checked": (4 * 65_536, inf)},
    ),
    Short(
        "pipeline",
        ("kafka", "spark"),
        "",
        ["100 B, all columns: remotelog", "1024 B, offset: kafka"],
        {"a Python worker's memory, at its most": (20, inf)},
    ),
    Short(
        "replay",
        ("kafka", "s3"),
        "--shapes 1024 100:lz4",
        [
            *(goal.words for goal in (goals.REPLAY_LIBRDKAFKA, goals.REPLAY_RAW)),
            *(goal.words for goal in (goals.REPLAY_CPU, goals.REPLAY_S3)),
            f"100 B lz4, raw client, 8 connections, {FETCHPROXY}",
        ],
        {
            goals.FIRST_RECORD.words: (0.999, inf),
            f"{goals.FIRST_RECORD.words}: warm": (-1, 49.99),  # no round trip to the store
        },
    ),
    Short(
        "tail",
        ("kafka",),
        f"--without {KROXYLICIOUS}",
        [
            "throughput, stock consumer, fetchproxy",
            "CPU of the proxy, unpaused consumer, fetchproxy",
            *(f"latency p50, {form}, {BARE_RELAY}" for form in FORMS),
        ],
        {},
    ),
    Short(
        "workers",
        ("kafka",),
        "",
        [
            goals.WORKERS_TAIL.words,
            f"{goals.WORKERS_TAIL.words}: replay",
            *(f"tail, {who}" for who in (workers.ONE, workers.TWO, workers.BARE_TWO)),
        ],
        # Nobody has more than the two cores that it may have.
        {f"replay, {workers.ONE}: cores that the server used": (0, 1.5)},
    ),
]


@pytest.mark.parametrize(
    "short", [FANIN.param(), *(short.param(pytest.mark.slow) for short in LONGER)]
)
def test_the_benchmark_runs(short: Short, find_part: FindPart[object], tmp_path: Path) -> None:
    for part in short.needs:
        find_part(part, FIND[part])
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", f"benchmarks.{short.name}", "--quick"]
    result = subprocess.run(
        [*command, *short.arguments.split(), "--results", str(results)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(results.read_text(encoding="utf-8"))
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in document["rows"]}
    assert len(rows) == len(document["rows"])
    assert all(set(row) == FIELDS for row in rows.values())
    for name, (above, most) in {**dict.fromkeys(short.positive, POSITIVE), **short.between}.items():
        assert above < rows[name]["value"] <= most, rows[name]
    check_document(short.name, document, rows)


def check_document(name: str, document: dict[str, Any], rows: dict[str, Any]) -> None:
    assert document["machine"]["cores"] > 0
    assert document["not_compared"] == []
    if name == "hostile":
        assert set(document["harm"]) == {each.__name__ for each in hostile_connections.HARMS}
    if name == "replay":
        assert rows["time to the first record after a cold seek"]["min"] >= 50
    if name == "tail":  # measured without Kroxylicious
        assert document["left_out"] == [f"{KROXYLICIOUS}: left out as asked"]
        assert rows[goals.TAIL_LATENCY.words]["goal"] == goals.TAIL_LATENCY.text
        assert goals.TAIL_LATENCY_IN_TURN.words not in rows
