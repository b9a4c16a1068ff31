"""The pictures in README and docs: there, small, readable, and the same in light and dark."""

from __future__ import annotations

import re
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from compose_file import ROOT

from demo.dark_pictures import DIAGRAMS, dark
from fetchproxy.config.load import all_keys
from fetchproxy.model import RemoteLogSegmentState
from fetchproxy.serving.gateway.fetch_conversation import FetchState

PICTURES = ROOT / "docs" / "pictures"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BYTES_MAX = 300_000
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
SVG = "{http://www.w3.org/2000/svg}"
TEXT_PX_MIN = 12
COLUMN_PX = 700  # of a page of the site
# Of a wide font, such as DejaVu Sans; the font's size is 1.
CHARACTER_WIDTH, BOLD_WIDTH, ABOVE, BELOW = 0.58, 0.64, 0.75, 0.2


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)


def drawing(name: str) -> ElementTree.Element:
    return ElementTree.parse(PICTURES / f"{name}-light.svg").getroot()


def sizes(name: str) -> dict[str, float]:
    """The font size of each class, and of all others under ""."""
    style = STYLE.search((PICTURES / f"{name}-light.svg").read_text(encoding="utf-8"))
    assert style is not None
    rules = re.findall(r"^\s*([^{\n]+) \{[^}]*font-size: ([\d.]+)px", style[0], re.MULTILINE)
    return {
        selector.strip().removeprefix(".").replace("text", ""): float(size)
        for selectors, size in rules
        for selector in selectors.split(",")
    }


def box(text: ElementTree.Element, size_of: dict[str, float]) -> Box:
    """About where an upright text is."""
    kinds = (text.get("class") or "").split()
    size = next((size_of[kind] for kind in reversed(kinds) if kind in size_of), size_of.get("", 0))
    bold = {"name", "state"} & set(kinds)
    width = len(text.text or "") * size * (BOLD_WIDTH if bold else CHARACTER_WIDTH)
    x, y = float(text.get("x", 0)), float(text.get("y", 0))
    left_edge = x if "left" in kinds else x - width / 2
    return Box(left_edge, y - ABOVE * size, left_edge + width, y + BELOW * size)


def words(name: str) -> str:
    svg = drawing(name)
    return "\n".join([svg.get("aria-label") or "", *(t.text or "" for t in svg.iter(f"{SVG}text"))])


def test_each_picture_is_there_and_shown() -> None:
    shown_files = set()
    for page in PAGES:
        for target in re.findall(
            r'(?:src|srcset)="([^"]+)"|!\[[^]]*\]\(([^)]+)\)', page.read_text()
        ):
            file = (page.parent / "".join(target)).resolve()
            assert file.is_file(), f"{page.name}: {target}"
            if file.suffix != ".js":  # a page may have a calculator, too
                shown_files.add(file)
    assert shown_files == {path.resolve() for path in PICTURES.iterdir()}


def test_each_picture_is_described_for_those_who_do_not_see_it() -> None:
    for page in PAGES:
        for image in re.findall(r"<img [^>]*>", page.read_text(encoding="utf-8")):
            assert re.search(r'alt="[^"]{20,}"', image), f"{page.name}: {image}"
    for name in DIAGRAMS:
        assert drawing(name).get("aria-label")


@pytest.mark.parametrize("name", [*DIAGRAMS, "headline"])
def test_light_and_dark_differ_in_their_colours_alone(name: str) -> None:
    light, dark = ((PICTURES / f"{name}-{kind}.svg").read_text() for kind in ("light", "dark"))
    assert ElementTree.fromstring(light).tag.endswith("svg")
    assert light != dark
    assert STYLE.sub("", light) == STYLE.sub("", dark)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_dark_diagrams_are_made_from_the_light_ones(name: str) -> None:
    """If not: `python -m demo.dark_pictures`."""
    light = (PICTURES / f"{name}-light.svg").read_text(encoding="utf-8")
    assert (PICTURES / f"{name}-dark.svg").read_text(encoding="utf-8") == dark(light)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_no_text_of_a_diagram_covers_another_or_is_cut_off(name: str) -> None:
    svg, size_of = drawing(name), sizes(name)
    upright = [text for text in svg.iter(f"{SVG}text") if text.get("transform") is None]
    boxes = [(text.text, box(text, size_of)) for text in upright]
    for (one, its_box), (other, others_box) in combinations(boxes, 2):
        assert not its_box.overlaps(others_box), f"{one!r} and {other!r}"
    width, height = float(svg.get("width", 0)), float(svg.get("height", 0))
    for text, (left_edge, top, right, bottom) in boxes:
        assert min(left_edge, top) >= 0, text
        assert right <= width, text
        assert bottom <= height, text


@pytest.mark.parametrize("name", DIAGRAMS)
def test_texts_of_a_diagram_are_large_enough(name: str) -> None:
    assert min(sizes(name).values()) >= TEXT_PX_MIN
    if name != "overview":  # drawn for the README, which is wider
        scale = COLUMN_PX / float(drawing(name).get("width", 0))
        assert min(sizes(name).values()) * scale >= TEXT_PX_MIN


def test_diagrams_name_what_exists() -> None:
    states = {state.name for state in RemoteLogSegmentState}
    assert set(re.findall(r"[A-Z]+_SEGMENT_[A-Z]+", words("segment"))) == states
    named = set(re.findall(r"\b[A-Z]{4,}\b", words("fetch")))
    assert named == {state.name for state in FetchState} - {"IDLE", "READING", "PACED"}
    for name in DIAGRAMS:
        keys = set(re.findall(r"\b[a-z_]+\.[a-z_]+\b", words(name))) - {"bootstrap.servers"}
        assert keys <= set(all_keys()), name  # without the key of Kafka's clients


def test_pictures_are_small() -> None:
    for path in PICTURES.iterdir():
        assert path.stat().st_size < BYTES_MAX, path.name
