"""The hostile benchmark: what it sends is what it says, and a short form runs from end to end."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fetchproxy_protocol.apis import MalformedMessage
from fetchproxy_protocol.fetch import parse_fetch_request
from fetchproxy_protocol.headers import peek_request_header
from fetchproxy_protocol.primitives import INT32

from benchmarks import hostile_connections as harm
from benchmarks.goals import TAIL_BESIDE_HOSTILE
from benchmarks.hostile import CALM, ELSEWHERE, HOSTILE, OPEN, STRANGERS, Measured, rows_of
from fetchproxy.config.schema import GatewayConfig
from fetchproxy.serving.limits import ServingLimits
from lab.kafka_versions import kafka_jars
from tests.conftest import FindPart

PROJECT = Path(__file__).parents[2]
PROXY_MIB_MAX = 700  # that of the memory plan's defaults is above 1 GiB


def whole(pieces: harm.Pieces) -> bytes:
    sent = b"".join(pieces)
    assert INT32.unpack_from(sent)[0] == len(sent) - 4
    assert len(sent) - 4 <= ServingLimits.held_request_bytes_max, "it is not read at all"
    return sent


def test_ten_thousand_partitions_are_a_legal_fetch() -> None:
    sent = whole(harm.ten_thousand_partitions())
    body_at = peek_request_header(sent, 4).body_position - 4
    assert len(parse_fetch_request(sent[4:], body_at).partitions) == 10_000


@pytest.mark.parametrize("each", [harm.many_partitions, harm.tagged_partitions])
def test_others_are_refused_when_they_are_read(each: object) -> None:
    assert callable(each)
    sent = whole(each())
    body_at = peek_request_header(sent, 4).body_position - 4
    with pytest.raises(MalformedMessage):
        parse_fetch_request(sent[4:], body_at)


def test_a_header_that_does_not_end_has_the_size_of_a_legal_frame() -> None:
    first = next(harm.endless_header())
    assert INT32.unpack_from(first)[0] <= GatewayConfig().frame_bytes_max


def test_the_goal_is_about_who_has_no_credentials() -> None:
    measured = Measured()
    for listener, how in itertools.product((STRANGERS, OPEN), (CALM, ELSEWHERE, HOSTILE)):
        slower = {STRANGERS: 1.2, OPEN: 3.0}[listener] if how == HOSTILE else 1.0
        measured.memory_mib[listener] = [(100.0 if listener == OPEN else 80.0, 200.0)] * 2
        measured.latencies[listener, how] = [[slower] * 100, [2 * slower] * 100]
    rows = {row.name: row for row in rows_of(measured)}
    assert rows["the same harm to a listener that only closes : without"].value == 1.0
    assert rows["harm to the proxy : to a listener that only closes"].value == pytest.approx(1.2)
    assert rows[TAIL_BESIDE_HOSTILE.words].value == pytest.approx(1.2)
    assert TAIL_BESIDE_HOSTILE.met_by(rows[TAIL_BESIDE_HOSTILE.words].value)
    assert rows[f"{TAIL_BESIDE_HOSTILE.words}: most memory of the proxy : its plan"].value == 0.5
    assert rows[f"the same, {OPEN}: what they send is parsed"].value == pytest.approx(3.0)


@pytest.mark.slow
@pytest.mark.kafka
def test_a_short_form_runs_and_the_proxy_stands_it(find_part: FindPart, tmp_path: Path) -> None:
    find_part("kafka", kafka_jars)
    results = tmp_path / "hostile.json"
    command = [sys.executable, "-m", "benchmarks.hostile", "--quick", "--results", str(results)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(results.read_text())
    assert set(told["harm"]) == {each.__name__ for each in harm.HARMS}
    rows = {each["name"]: each["value"] for each in told["rows"]}
    for listener in (STRANGERS, OPEN):
        assert rows[f"tail p99, {listener}, hostile"] > 0
        assert rows[f"memory of the proxy, {listener}"] <= PROXY_MIB_MAX
