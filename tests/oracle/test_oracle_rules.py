"""The oracle can fail: every kind of wrong response, and none of the right ones, is a mismatch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from oracle_log import Names, ReferenceLog, build_batch, filter_aborted, normal_form, with_place
from oracle_rules import Findings, Part, PartitionAsk, compare_parts, explained
from oracle_world import TwinTopic

A, B = "p1", "p2"


def names(producers: tuple[int, int] = (7, 8), epochs: tuple[int, int] = (0, 2)) -> Names:
    return Names({producers[0]: A, producers[1]: B}, list(epochs))


def data(offset: int, count: int = 3, epoch: int = 0, producer: int = -1) -> bytes:
    who = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    made = build_batch(0, [5] * count, [b"v%d" % offset] * count, who, transactional=producer >= 0)
    return with_place(made, offset, epoch)


@pytest.fixture
def topic() -> TwinTopic:
    """0-2 plain, 3-5 and 6-8 of p1 (aborted at 9), 10-12 plain; trimmed below 10."""
    made = TwinTopic("t", 0, log=ReferenceLog(), names=(names(), names()))
    raw = data(0) + data(3, producer=7) + data(6, producer=7)
    made.log.append(normal_form(raw, made.names[0])[0])
    marker = made.log.batches[-1]._replace(
        base_offset=9, last_offset=9, attributes=0x30, rest="abort"
    )
    made.log.append([marker])
    made.log.begin(A, 3)
    made.log.finish(A, 9, aborted=True)
    made.log.append(normal_form(data(10), made.names[0])[0])
    made.log.archived = made.log.local_start = 10
    made.note_marks()
    return made


def right(topic: TwinTopic, offset: int, count: int, isolation: int = 0) -> Part:
    batches = topic.log.from_offset(offset)[:count]
    aborted = sorted(topic.log.aborted_between(offset, batches[-1].last_offset))
    marks = (topic.log.end, topic.log.last_stable, topic.log.log_start)
    return Part(0, marks, aborted if isolation else None, batches, 0, 100 * count, ())


def differences(topic: TwinTopic, request: PartitionAsk, kafka: Part, proxy: Part) -> list[str]:
    findings = Findings(reasons={})
    compare_parts(findings, topic, request, kafka, proxy)
    return [mismatch.id for mismatch in findings.unexplained]


ARCHIVED = PartitionAsk(0, 1, 1 << 20)


def test_equal_answers_are_equal(topic: TwinTopic) -> None:
    for offset, isolation in ((0, 0), (4, 1), (10, 0)):
        part = right(topic, offset, 1, isolation)
        assert not differences(topic, PartitionAsk(offset, isolation, 1 << 20), part, part)


def test_an_archived_answer_may_be_shorter(topic: TwinTopic) -> None:
    longer, shorter = right(topic, 0, 3, 1), right(topic, 0, 1, 1)
    assert differences(topic, ARCHIVED, longer, shorter) == ["fetch-archived-length"]
    assert "fetch.archived.nothing from fetchproxy" in differences(
        topic, ARCHIVED, longer, dataclasses.replace(shorter, batches=[], size_bytes=0)
    )


def test_a_missing_batch_is_found(topic: TwinTopic) -> None:
    part = right(topic, 0, 3, 1)
    wrong = dataclasses.replace(part, batches=[part.batches[0], part.batches[2]])
    assert differences(topic, ARCHIVED, part, wrong) == [
        "fetch.archived.records of fetchproxy",
        "fetch-archived-length",
    ]


def test_another_byte_or_epoch_is_found(topic: TwinTopic) -> None:
    for raw in (data(0, 2), data(0, epoch=2), data(0, producer=8), data(1)):
        batches, _ = normal_form(raw, topic.names[1])
        assert batches != topic.log.from_offset(0)[:1]
        wrong = dataclasses.replace(right(topic, 0, 1), batches=batches)
        assert differences(topic, PartitionAsk(0, 0, 1 << 20), right(topic, 0, 1), wrong)


@pytest.mark.parametrize("aborted", [[], [(B, 3)], [(A, 3), (A, 3)], [(A, 3), (B, 4)]])
def test_a_wrong_aborted_list_is_found(topic: TwinTopic, aborted: list[tuple[str, int]]) -> None:
    part = right(topic, 0, 3, 1)
    difference_kinds = differences(
        topic, ARCHIVED, part, dataclasses.replace(part, aborted=aborted)
    )
    assert "fetch.archived.aborted list of fetchproxy" in difference_kinds


def test_kafka_may_list_more_and_fetchproxy_may_not(topic: TwinTopic) -> None:
    part = right(topic, 0, 1, 1)
    more = dataclasses.replace(part, aborted=[(A, 3)])
    assert differences(topic, ARCHIVED, more, part) == ["fetch-archived-aborted-superset"]
    assert differences(topic, ARCHIVED, part, more)


def test_data_above_the_lso_is_found(topic: TwinTopic) -> None:
    topic.log.begin(B, 6)
    part = right(topic, 0, 3, 1)
    assert "fetch.archived.above LSO from fetchproxy" in differences(topic, ARCHIVED, part, part)


def test_too_many_bytes_are_found(topic: TwinTopic) -> None:
    part = right(topic, 0, 3, 1)
    difference_kinds = differences(topic, PartitionAsk(0, 1, 299), part, part)
    assert "fetch.archived.too large from fetchproxy" in difference_kinds
    assert not differences(
        topic, PartitionAsk(0, 1, 1), right(topic, 0, 1, 1), right(topic, 0, 1, 1)
    )


def test_marks_that_never_were_are_found(topic: TwinTopic) -> None:
    part = right(topic, 0, 1)
    stale, wrong = (12, 13, 0), (14, 13, 0)
    topic.marks.insert(0, (topic.marks[0][0], (*stale, 0)))
    request = PartitionAsk(0, 0, 1 << 20)
    old = dataclasses.replace(part, marks=stale)
    assert differences(topic, request, part, old) == ["fetch-archived-stale-marks"]
    never = dataclasses.replace(part, marks=wrong)
    assert differences(topic, request, part, never) == ["fetch.archived.high watermark"]


def test_a_log_start_of_the_tail_is_the_archives_or_the_brokers_own(topic: TwinTopic) -> None:
    part, request = right(topic, 10, 1), PartitionAsk(10, 0, 1 << 20)
    never = (13, 13, 4)
    for late in ((13, 13, 10), (13, 13, -1)):
        difference_kinds = differences(topic, request, part, dataclasses.replace(part, marks=late))
        assert difference_kinds == ["fetch-tail-log-start-late"]
    difference_kinds = differences(topic, request, part, dataclasses.replace(part, marks=never))
    assert difference_kinds == ["fetch.local.log start"]


@pytest.mark.parametrize(
    "field", ["error", "marks", "aborted", "batches", "partial_bytes", "others"]
)
def test_local_answers_must_be_equal_in_every_field(topic: TwinTopic, field: str) -> None:
    wrong = {"error": 6, "marks": (13, 13, 1), "aborted": [], "batches": [], "partial_bytes": 9}
    part = right(topic, 10, 1)
    other = dataclasses.replace(part, **{field: {**wrong, "others": (1,)}[field]})
    assert differences(topic, PartitionAsk(10, 0, 1 << 20), part, other)


def test_numbers_that_differ_between_brokers_are_one_name(topic: TwinTopic) -> None:
    here, there = names((7, 8), (0, 2)), names((70, 80), (1, 9))
    a, _ = normal_form(data(3, epoch=2, producer=8), here)
    b, rest = normal_form(data(3, epoch=9, producer=80) + b"partial", there)
    assert (a, rest) == (b, b"partial")
    assert a[0].producer == B
    assert a[0].epoch == 1


def test_a_bad_crc_is_found() -> None:
    raw = bytearray(data(0))
    raw[-1] ^= 1
    with pytest.raises(AssertionError, match="CRC"):
        normal_form(bytes(raw), names())


def test_the_filter_of_aborted_records_goes_by_markers(topic: TwinTopic) -> None:
    batches = topic.log.batches
    assert filter_aborted(batches, [(A, 3)]) == [(0, 2), (10, 12)]
    assert filter_aborted(batches, []) == [(0, 2), (3, 5), (6, 8), (10, 12)]
    assert filter_aborted(batches, [(A, 3)]) == topic.log.committed_data(batches)


def test_only_listed_differences_are_explained(topic: TwinTopic) -> None:
    findings = Findings()
    findings.add("fetch-archived-length", 2, 1)
    findings.add("fetch.local.records", [], ["x"])
    assert list(findings.counted) == ["fetch-archived-length"]
    assert [mismatch.id for mismatch in findings.unexplained] == ["fetch.local.records"]


def test_what_is_listed_can_be_met() -> None:
    """An id in the page's data that no rule gives would explain nothing."""
    rules = "".join(p.read_text() for p in Path(__file__).parent.glob("or*.py"))
    assert explained()
    for id in explained():
        assert f'"{id}"' in rules, id
