"""The pictures in README and docs: there, small, and the same in light and dark."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from compose_file import ROOT

PICTURES = ROOT / "docs" / "pictures"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BYTES_MAX = 300_000
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def test_each_picture_is_there_and_shown() -> None:
    shown = set()
    for page in PAGES:
        for target in re.findall(
            r'(?:src|srcset)="([^"]+)"|!\[[^]]*\]\(([^)]+)\)', page.read_text()
        ):
            file = (page.parent / "".join(target)).resolve()
            assert file.is_file(), f"{page.name}: {target}"
            shown.add(file)
    assert shown == {path.resolve() for path in PICTURES.iterdir()}


@pytest.mark.parametrize("name", ["overview", "headline"])
def test_light_and_dark_differ_in_their_colours_alone(name: str) -> None:
    light, dark = ((PICTURES / f"{name}-{kind}.svg").read_text() for kind in ("light", "dark"))
    assert ElementTree.fromstring(light).tag.endswith("svg")
    assert light != dark
    assert STYLE.sub("", light) == STYLE.sub("", dark)


def test_pictures_are_small() -> None:
    for path in PICTURES.iterdir():
        assert path.stat().st_size < BYTES_MAX, path.name
