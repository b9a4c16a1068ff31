"""What all benchmarks share: goals in the table's words, JSON, SVG, exit; and the headline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from benchmarks import __main__ as suite
from benchmarks import goals
from benchmarks.chart import drawing, limit_of
from benchmarks.frame import Outcome, Part, Size, in_turn
from benchmarks.headline import PICTURES, RESULTS, THEMES, bars
from benchmarks.headline import drawing as headline
from benchmarks.report import Row, goal_rows, percentile, ratios, row
from lab.errors import PartMissing


def rows_of(options: argparse.Namespace, console: Console) -> Outcome:
    return Outcome([row("speed <b>", "MB/s", [1.0, 3.0, 2.0])], {"colour": "blue"})


def part(measure=rows_of) -> Part:  # type: ignore[no-untyped-def]
    return Part("tried", "A title", "what it is", [Size("rounds", 5, 1, "of it")], measure)


def test_every_line_of_the_table_has_one_goal() -> None:
    assert len({goal.words for goal in goals.TABLE}) == len(goals.TABLE) == 23
    for goal in goals.TABLE:
        for each in (goal, *goal.also):
            assert (each.at_least is None) != (each.at_most is None), each.words
            if not each.text.endswith("%"):
                assert limit_of(each.text) == (each.at_least or each.at_most), each.words


def test_a_floor_and_a_ceiling_hold_their_limit() -> None:
    floor, ceiling = goals.at_least("f", "x", 1.5), goals.at_most("c", "x", 0.4)
    assert [floor.met_by(each) for each in (1.49, 1.5, 1.6)] == [False, True, True]
    assert [ceiling.met_by(each) for each in (0.39, 0.4, 0.41)] == [True, True, False]


def test_a_line_is_met_only_by_all_that_it_asks_for() -> None:
    line, second = goal_rows(goals.REPLAY_RAW, [1.4, 1.6, 2.0], [1.1, 1.2, 1.3])
    assert (line.name, line.value, line.min, line.max) == (goals.REPLAY_RAW.words, 1.6, 1.4, 2.0)
    assert (line.goal, line.met) == ("≥ 1.5", False)
    assert (second.value, second.met) == (1.2, False)
    assert second.name == f"{goals.REPLAY_RAW.words}: 8 connections"
    assert [each.met for each in goal_rows(goals.REPLAY_RAW, [1.5], [1.5])] == [True, True]
    assert [each.met for each in goal_rows(goals.REPLAY_RAW, [1.4], [1.5])] == [False, True]
    with pytest.raises(ValueError, match="shorter"):
        goal_rows(goals.REPLAY_RAW, [1.5])


def test_percentiles_are_samples() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0, 4.0], 99) == 4.0
    assert percentile([7.0], 50) == 7.0


def test_a_row_says_whether_its_goal_is_met() -> None:
    assert row("r", "x", [0.9, 1.0, 1.2], at_least=1.0).met is True
    assert row("r", "x", [0.9, 0.99, 1.2], at_least=1.0).met is False
    assert row("r", "ms", [0.3, 0.1, 0.2], at_most=0.2).met is True
    assert row("r", "ms", [0.3, 0.1, 0.3], at_most=0.2).met is False
    measured_row = row("r", "ms", [0.3, 0.1, 0.2])
    assert (
        measured_row.value,
        measured_row.min,
        measured_row.max,
        measured_row.goal,
        measured_row.met,
    ) == (0.2, 0.1, 0.3, None, None)


def test_ratios_are_of_the_same_round() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="longer"):
        ratios([1.0], [1.0, 2.0])


def test_everybody_begins_in_turn() -> None:
    assert [in_turn("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_a_part_writes_json_and_a_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "tried.json"
    assert part().main(["--quick", "--results", str(results)]) == 0
    document = json.loads(results.read_text())
    assert document["rows"] == [
        {
            "name": "speed <b>",
            "value": 2.0,
            "unit": "MB/s",
            "goal": None,
            "met": None,
            "min": 1.0,
            "max": 3.0,
        }
    ]
    assert (document["benchmark"], document["colour"], document["rounds"]) == ("tried", "blue", 1)
    assert document["machine"]["cores"] > 0
    assert len(document["date"]) == len("2026-01-01")
    assert ElementTree.fromstring(results.with_suffix(".svg").read_text()).tag.endswith("svg")
    assert "A title" in capsys.readouterr().out


def test_sizes_depend_on_quick_and_can_be_given() -> None:
    assert part().parse([]).rounds == 5
    assert part().parse([]).results.name == "tried.json"
    assert part().parse(["--quick"]).rounds == 1
    assert part().parse(["--quick"]).results is None
    assert part().parse(["--quick", "--rounds", "7"]).rounds == 7


def test_a_part_that_cannot_run_says_so_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    def missing(options: argparse.Namespace, console: Console) -> Outcome:
        raise PartMissing("Java", "there is none", "install it")

    assert part(missing).main(["--quick"]) == 1
    assert "tried cannot be measured here: Java" in capsys.readouterr().out


def test_a_contestant_that_is_not_there_is_named_and_fails_the_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(options: argparse.Namespace, console: Console) -> Outcome:
        return Outcome(rows_of(options, console).rows, lacking=["peer: not to be had"])

    results = tmp_path / "tried.json"
    assert part(lacking).main(["--quick", "--results", str(results)]) == 1
    assert json.loads(results.read_text())["not_compared"] == ["peer: not to be had"]
    assert "tried is not complete: peer: not to be had" in capsys.readouterr().out


def test_every_part_of_the_suite_is_there() -> None:
    assert [suite.part(name).name for name in suite.PARTS] == list(suite.PARTS)
    with pytest.raises(SystemExit):
        suite.main(["no-such-part"])


def figure(name: str, value: float, unit: str, goal: str | None, met: bool | None) -> Row:
    return Row(name, value, unit, goal, met, value / 2, value * 2)


def test_a_chart_has_a_panel_for_each_unit_and_a_bar_for_each_row() -> None:
    rows = [
        figure("one", 1.0, "x", "≥ 1.5", False),
        figure("two", 20.0, "MB/s", None, None),
        figure("three & <more>", 2.0, "x", "≤ 3", True),
        figure("four", -1.0, "x", "flat within 15 %", True),
    ]
    root = ElementTree.fromstring(drawing("a chart", rows))
    space = "{http://www.w3.org/2000/svg}"
    words = [each.text for each in root.iter(f"{space}text")]
    assert words.count("x") == words.count("MB/s") == 1
    assert words.index("three & <more>") < words.index("MB/s") < words.index("two")
    bars = [each for each in root.iter(f"{space}rect") if each.get("fill") != "white"]
    assert len(bars) == len(rows)
    widths = [float(each.get("width", "")) for each in bars]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)  # 1 and 2 of the same unit
    assert widths[2] == 0.0  # a negative one
    fills = [each.get("fill") for each in bars]
    assert len({fills[0], fills[1], fills[3]}) == 3
    assert fills[1] == fills[2]
    # A whisker for each, and the limits of two: a share is not a place on the scale.
    dashed = [e for e in root.iter(f"{space}line") if e.get("stroke-dasharray")]
    assert len(dashed) == 2
    assert len(list(root.iter(f"{space}line"))) == len(rows) + 2


def test_a_chart_of_nothing_but_zeros_is_drawn() -> None:
    assert (
        ElementTree.fromstring(drawing("zeros", [figure("none", 0.0, "", None, None)])) is not None
    )


@pytest.mark.parametrize("name", sorted(THEMES))
def test_the_headline_on_disk_is_what_the_results_say(name: str) -> None:
    written = (PICTURES / f"headline-{name}.svg").read_text(encoding="utf-8")
    assert written == headline(bars(RESULTS), THEMES[name]), "run python -m benchmarks.headline"


def test_each_bar_of_the_headline_is_a_ratio_with_its_figures() -> None:
    headline_bars = bars(RESULTS)
    tree = ElementTree.fromstring(headline(headline_bars, THEMES["light"]))
    texts = [each.text or "" for each in tree.iter("{http://www.w3.org/2000/svg}text")]
    for each in headline_bars:
        assert each.least <= each.value <= each.most
        assert each.words in texts
        assert f"{each.value:.2f} ({each.least:.2f} to {each.most:.2f})" in texts
