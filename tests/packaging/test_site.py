"""The documentation as a site: its navigation has each page once, and its pages fit the builder.

`make docs` builds it; here nothing is installed and nothing is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_file import ROOT

DOCS = ROOT / "docs"
# Without the builder's own types, such as `!!python/object/apply`.
SITE: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), yaml.BaseLoader)
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
LEFT_OUT = "upstream/"  # reports for other projects
DECISION = re.compile(r"adr/\d{4}-.*\.md")  # the list of decisions names each of them


def in_navigation(entry: object) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for below in entry.values():
            yield from in_navigation(below)
    elif isinstance(entry, list):
        for below in entry:
            yield from in_navigation(below)


def outside_of_code(page: str) -> Iterator[tuple[str, str]]:
    """Each line with the line before it."""
    in_fence, before = False, ""
    for line in (DOCS / page).read_text("utf-8").splitlines():
        in_fence ^= line.lstrip().startswith("```")
        if not in_fence:
            yield before, line
        before = line


def test_the_navigation_has_each_page_once() -> None:
    named = list(in_navigation(SITE["nav"]))
    assert len(named) == len(set(named))
    expected = [p for p in PAGES if not p.startswith(LEFT_OUT) and not DECISION.fullmatch(p)]
    assert sorted(named) == expected


def test_what_is_left_out_is_what_the_builder_leaves_out() -> None:
    assert f"/{LEFT_OUT}" in SITE["exclude_docs"].split()
    assert SITE["not_in_nav"].split() == ["/adr/[0-9]*.md"]


def test_the_site_loads_nothing_from_other_hosts() -> None:
    assert SITE["theme"]["font"] == "false"
    for name in (*SITE["extra_css"], *SITE["extra_javascript"]):
        assert (DOCS / name).is_file(), f"{name} is not a file of this site"
        assert "://" not in (DOCS / name).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title_and_no_heading_twice(page: str) -> None:
    lines = [line for _, line in outside_of_code(page)]
    assert [line for line in lines if line.startswith("# ")] == [lines[0]]
    headings = [line.lstrip("#").strip().lower() for line in lines if re.match(r"#+ ", line)]
    assert len(headings) == len(set(headings)), "two headings would have one anchor"


@pytest.mark.parametrize("page", PAGES)
def test_an_element_of_a_page_has_no_headings_anchor(page: str) -> None:
    """A script that looks for its element would find the heading, which comes first."""
    lines = [line for _, line in outside_of_code(page)]
    anchors = {re.sub(r"[^\w\- ]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
               for line in lines if re.match(r"#+ ", line)}  # fmt: skip
    assert not anchors & set(re.findall(r'id="([^"]+)"', "\n".join(lines)))


@pytest.mark.parametrize("page", PAGES)
def test_what_belongs_to_an_item_is_indented_by_four(page: str) -> None:
    """GitHub takes two spaces, too; the builder ends the list there."""
    for before, line in outside_of_code(page):
        nested = re.match(r" {1,3}([-*]|\d+\.) ", line)
        continued = not before.strip() and re.match(r" {1,3}\S", line)
        assert not nested, line
        assert not continued, line


@pytest.mark.parametrize("page", PAGES)
def test_a_page_needs_no_diagrams_of_another_host(page: str) -> None:
    assert "```mermaid" not in (DOCS / page).read_text("utf-8")


def test_the_lock_is_of_what_is_asked_for() -> None:
    lines = (ROOT / "requirements/docs.in").read_text("utf-8").splitlines()
    locked = (ROOT / "requirements/docs.txt").read_text("utf-8")
    for line in lines:
        name = re.split(r"[<>=]", line)[0]
        assert re.search(rf"^{name}==\S+ \\$", locked, re.MULTILINE), name
    assert (ROOT / SITE["hooks"][0]).is_file()


def test_a_path_of_the_site_exists() -> None:
    assert Path(ROOT / SITE["docs_dir"]).is_dir()
