"""docs/contribute/flow-control.md: each mechanism has its limit, its test and its metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contribute/flow-control.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| [")
]
SETTINGS = (ROOT / "docs/reference/configuration.md").read_text("utf-8")
METRICS = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
LIMITS = "".join(
    (ROOT / "fetchproxy" / part / "limits.py").read_text("utf-8") for part in ("serving", "reading")
)
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].partition("]")[0].strip("[| "))
def test_a_row_names_what_exists(row: list[str]) -> None:
    mechanism, _, limits, shown_by, metric = row
    link = re.search(r"\[(\w+)\]\((\S+)\)", mechanism)
    assert link
    assert f"class {link[1]}" in (PAGE.parent / link[2]).read_text("utf-8")
    for name in re.findall(r"`([a-z_.0-9]+)`", limits):
        assert f"`{name}`" in SETTINGS or f"    {name}: " in LIMITS, name
    assert re.search(r"\(\.\./\.\./tests/\S+\.py\)", shown_by)
    for target in re.findall(r"`make ([a-z-]+)`", shown_by):
        assert f"\n{target}: " in MAKEFILE, target
    (name,) = re.findall(r"`(\w+)`", metric)
    assert f"`{name}`" in METRICS


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 15
