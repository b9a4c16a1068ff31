"""The README's chart is drawn from the results that are in the repository."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.headline import PICTURES, RESULTS, THEMES, bars, drawing


@pytest.mark.parametrize("name", sorted(THEMES))
def test_the_chart_on_disk_is_what_the_results_say(name: str) -> None:
    written = (PICTURES / f"headline-{name}.svg").read_text(encoding="utf-8")
    assert written == drawing(bars(RESULTS), THEMES[name]), "run python -m benchmarks.headline"


def test_each_bar_is_a_ratio_with_its_figures() -> None:
    shown = bars(RESULTS)
    tree = ElementTree.fromstring(drawing(shown, THEMES["light"]))
    texts = [each.text or "" for each in tree.iter("{http://www.w3.org/2000/svg}text")]
    for each in shown:
        assert each.least <= each.value <= each.most
        assert each.words in texts
        assert f"{each.value:.2f} ({each.least:.2f} to {each.most:.2f})" in texts
