"""docs/contribute/kip-405.md: what it says stands in a module does stand there."""

from __future__ import annotations

import re

import pytest
from compose_file import ROOT

PAGE = ROOT / "docs" / "contribute/kip-405.md"
ROWS = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
NAME = re.compile(r"\b(?:[A-Z][a-z0-9]*){2,}\b|\b[a-z]+_[a-z_]+\b")


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0].strip()[:40])
def test_a_name_stands_where_the_page_says(row: list[str]) -> None:
    kip, here, where = row
    modules = [PAGE.parent / target for target in re.findall(r"\]\(([^)]+)\)", where)]
    assert modules
    source = "\n".join(module.read_text() for module in modules)
    names = NAME.findall(kip if here.strip().startswith("the same") else here)
    for name in names:
        if not name.isupper() and name != "DelayedOperationPurgatory":  # abbreviations; Kafka's own
            assert name in source, name


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 20
