"""What the marks of tests name, by the text of all test modules. Not a test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent


def marked(name: str) -> set[str]:
    """The arguments of all `@pytest.mark.<name>(…)`."""
    return {argument for path in TESTS.rglob("test_*.py") for argument in _of_file(path, name)}


def _of_file(path: Path, name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == f"pytest.mark.{name}":
                    for argument in mark.args:
                        assert isinstance(argument, ast.Constant), f"{path}: {ast.unparse(mark)}"
                        yield str(argument.value)
