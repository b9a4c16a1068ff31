"""docs/operate/doctor.md is what the checks say, with a heading for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fetchproxy.doctor.catalogue import CHECKS, PAGE
from fetchproxy.doctor.document import main

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated_from_the_checks(tmp_path: Path) -> None:
    main([str(tmp_path / "doctor.md")])
    generated = (tmp_path / "doctor.md").read_text(encoding="utf-8")
    assert generated == (ROOT / PAGE).read_text(encoding="utf-8"), (
        "run python -m fetchproxy.doctor.document"
    )


def test_code_and_page_have_the_same_ids() -> None:
    headings = re.findall(r"^### (.+)$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(CHECKS)


@pytest.mark.parametrize("id", CHECKS)
def test_a_check_has_all_its_words(id: str) -> None:
    check = CHECKS[id]
    assert re.fullmatch(r"FP\d{4}", id)
    assert check.why.endswith(".")
    assert not check.remedy.endswith(".")
    assert check.holds[0].islower() or check.holds[0] == "`" or check.holds.startswith("TLS")
