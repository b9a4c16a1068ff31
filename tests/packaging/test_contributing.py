"""docs/contribute/index.md against the repository: its table of test folders is whole."""

from __future__ import annotations

import re

from compose_file import ROOT

PAGE = (ROOT / "docs" / "contribute/index.md").read_text(encoding="utf-8")


def test_each_folder_of_tests_has_its_row() -> None:
    named = re.findall(r"^\| `(tests/\w+)` \|", PAGE, re.MULTILINE)
    there = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").iterdir())
        if path.is_dir() and any(path.rglob("test_*.py"))
    ]
    assert named == there


def test_commands_name_modules_that_are_there() -> None:
    for module in re.findall(r"python -m (\w+(?:\.\w+)*)", PAGE):
        place = ROOT / module.replace(".", "/")
        assert module == "pytest" or place.is_dir() or place.with_suffix(".py").is_file(), module
    for test in re.findall(r"pytest (tests/\S+\.py)", PAGE):
        assert (ROOT / test).is_file(), test
