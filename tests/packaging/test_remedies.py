"""Each condition has a remedy that a test has tried: it causes the condition and ends it so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fetchproxy.observability.health import Kind, Level

TESTS = Path(__file__).parent.parent
MARK = "pytest.mark.remedy"


def tried(path: Path) -> Iterator[str]:
    """The kinds that the marks of a file's tests name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARK:
                    for argument in mark.args:
                        assert isinstance(argument, ast.Constant), f"{path}: {ast.unparse(mark)}"
                        yield str(argument.value)


TRIED = {kind for path in TESTS.rglob("test_*.py") for kind in tried(path)}


@pytest.mark.parametrize("kind", Kind)
def test_a_test_causes_the_condition_and_does_what_its_remedy_says(kind: Kind) -> None:
    """Mark that test: `@pytest.mark.remedy("kind")`."""
    if kind.meaning.level is not Level.ON_RECORD:  # nobody has to act
        assert kind in TRIED


def test_marks_name_real_kinds() -> None:
    assert not TRIED - set(Kind)
