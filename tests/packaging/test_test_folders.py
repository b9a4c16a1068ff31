"""Each folder of tests has a README that says in ten lines what it proves, and with what parts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_file import ROOT

TESTS = ROOT / "tests"
FOLDERS = sorted({path.parent for path in TESTS.rglob("test_*.py")} - {TESTS})
LINES_MAX = 10
PARTS = ("kafka", "s3", "gcs", "azure", "hdfs", "spark")


def marks(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark":
            yield node.attr


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_a_folder_says_what_it_proves_and_with_which_real_parts(folder: Path) -> None:
    heading, _, text = (folder / "README.md").read_text(encoding="utf-8").partition("\n")
    assert heading == f"# {folder.relative_to(ROOT).as_posix()}"
    first, _, _ = text.partition("\n## ")
    assert len([line for line in first.splitlines() if line]) <= LINES_MAX
    proves, _, parts = first.partition("\n\nReal parts: ")
    assert proves.strip()
    needs = {mark for module in folder.glob("test_*.py") for mark in marks(module)}
    assert set(re.findall(r"`(\w+)`", parts)) == needs & {*PARTS}
