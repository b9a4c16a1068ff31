"""Each client, with each reset policy, over what is archived, lost, archived again and live.

Every record that is there comes once and in order; no policy is ever asked, no error told, and
nobody reads on for ever or stops before the end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gap_readers import (
    AIOKAFKA_WAIT_S,
    GAP_READERS,
    STOP_S,
    Ask,
    GapReader,
    read_until_stopped,
    runs,
)
from gap_stack import (
    ACCUMULATED,
    ARCHIVE_ONLY,
    ARCHIVE_ONLY_STOP,
    ARCHIVING,
    END,
    FIRST_KEPT,
    FIRST_LOST,
    MIDDLE,
    SERVE,
    SERVE_STOP,
    GapStack,
)
from matrix_client import as_client

pytestmark = pytest.mark.kafka

FindPart = Callable[[str, Callable[[], object]], object]
PLACES = ((SERVE, MIDDLE), (SERVE, END), (ARCHIVING, ACCUMULATED), (ARCHIVE_ONLY, MIDDLE))
# What make test has time for.
FAST = {
    ("confluent-kafka", "earliest"),
    ("confluent-kafka", "latest"),
    ("kafka-go", "earliest"),
}

ALL = [
    pytest.param(
        reader,
        policy,
        mode,
        topic,
        id=f"{mode}-{topic}-{reader.client.name}-{policy}",
        marks=[] if (reader.client.name, policy) in FAST else pytest.mark.slow,
    )
    for mode, topic in PLACES
    for reader in GAP_READERS
    for policy in reader.policies
]


@pytest.mark.parametrize(("reader", "policy", "mode", "topic"), ALL)
def test_a_reader_crosses_the_gap(
    find_part: FindPart, gap_stack: GapStack, reader: GapReader, policy: str, mode: str, topic: str
) -> None:
    find_part(reader.client.part, reader.client.find)
    case = gap_stack.case(mode, topic)
    expected = as_client(reader.client, case.expected)
    if reader.stores_last and policy != "earliest":
        expected = expected[1:]
    count = len(case.expected)
    lines = reader.read(Ask(case.bootstrap, case.broker, topic, count, policy))
    assert runs(lines) == runs(expected)
    assert lines == expected


STOPS = [
    pytest.param(
        name,
        policy,
        mode,
        topic,
        id=f"{mode}-{topic}-{name}-{policy}",
        marks=[] if (name, policy) == ("confluent-kafka", "earliest") else pytest.mark.slow,
    )
    for mode, topic in ((SERVE_STOP, MIDDLE), (SERVE_STOP, END), (ARCHIVE_ONLY_STOP, MIDDLE))
    for name in ("confluent-kafka", "kafka-python", "aiokafka")
    for policy in ("earliest", "latest", "error" if name == "confluent-kafka" else "none")
]


@pytest.mark.parametrize(("name", "policy", "mode", "topic"), STOPS)
def test_where_gaps_are_errors_a_reader_stops_in_front_of_it(
    gap_stack: GapStack, name: str, policy: str, mode: str, topic: str
) -> None:
    case = gap_stack.case(mode, topic)
    ask = Ask(case.bootstrap, case.broker, topic, FIRST_LOST, policy)
    lines = read_until_stopped(name, ask)
    assert runs(lines) == [(0, FIRST_LOST - 1)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [SERVE_STOP, ARCHIVE_ONLY_STOP])
@pytest.mark.parametrize("name", ["kcat", "franz-go", "kafka-go", "sarama", "kafkajs"])
def test_where_gaps_are_errors_a_program_is_told_so(
    gap_stack: GapStack, name: str, mode: str
) -> None:
    case = gap_stack.case(mode, MIDDLE)
    reader = next(reader for reader in GAP_READERS if reader.client.name == name)
    ask = Ask(case.bootstrap, case.broker, MIDDLE, len(case.expected), "earliest")
    with pytest.raises(AssertionError, match="validat"):  # as each words INVALID_RECORD
        reader.read(ask)


@pytest.mark.parametrize("mode", [SERVE_STOP, ARCHIVE_ONLY_STOP])
def test_who_asks_again_at_a_gap_is_answered_at_its_own_deadline(
    gap_stack: GapStack, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """aiokafka does for ever, and tells the application nothing."""
    case = gap_stack.case(mode, MIDDLE)
    ask = Ask(case.bootstrap, case.broker, MIDDLE, FIRST_LOST, "earliest")
    assert runs(read_until_stopped("aiokafka", ask)) == [(0, FIRST_LOST - 1)]
    warnings_logged = [
        each for each in caplog.records if "while fetching data" in each.getMessage()
    ]
    assert 1 <= len(warnings_logged) <= 2 * STOP_S / AIOKAFKA_WAIT_S


def test_the_loss_is_told_once(gap_stack: GapStack) -> None:
    case = gap_stack.case(SERVE, MIDDLE)
    confluent = next(r for r in GAP_READERS if r.client.name == "confluent-kafka")
    for policy in confluent.policies[:2]:
        ask = Ask(case.bootstrap, case.broker, MIDDLE, len(case.expected), policy)
        assert len(confluent.read(ask)) == len(case.expected)
    skips_logged = gap_stack.proxies[SERVE].logged("lost_offsets_skipped")
    of_topic = [line for line in skips_logged if line["topic"] == MIDDLE]
    assert [line["last_lost_offset"] for line in of_topic] == [FIRST_KEPT - 1]
    assert of_topic[0]["first_lost_offset"] >= FIRST_LOST


def test_runs_show_a_second_pass_and_a_hole() -> None:
    """What the matrix compares with would find what it looks for."""

    def lines(*offsets: int) -> list[tuple[int, int, str, str]]:
        return [(0, offset, "k", "v") for offset in offsets]

    assert runs(lines(0, 1, 2, 5, 6)) == [(0, 2), (5, 6)]
    assert runs(lines(0, 1, 0, 1, 2)) == [(0, 1), (0, 2)]
    assert runs(lines(0, 0, 1)) == [(0, 0), (0, 1)]
    assert runs([]) == []
