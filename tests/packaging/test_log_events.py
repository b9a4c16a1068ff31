"""docs/reference/log-events.md has each event that the log may have above debug."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from compose_file import ROOT

from fetchproxy.observability.health import Kind

PAGE = ROOT / "docs" / "reference" / "log-events.md"
NAME = re.compile(r"`([a-z0-9]+(?:_[a-z0-9]+)+|stopping)`")
LEVELS = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}


def rows() -> Iterator[tuple[str, str]]:
    """(event, level as the page has it)."""
    for line in PAGE.read_text("utf-8").splitlines():
        cells = line.strip("| ").split(" | ")
        if line.startswith("| `") and cells[1].partition(",")[0] in LEVELS:
            yield from ((event, cells[1]) for event in NAME.findall(cells[0]))


def logged() -> Iterator[tuple[str, str]]:
    """(event, level) of each call of a logger with a constant name."""
    for path in (ROOT / "fetchproxy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) in ("log", "self.log", "self._log")
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and node.func.attr in LEVELS
            ):
                yield str(node.args[0].value), LEVELS[node.func.attr]


ROWS = dict(rows())
LOGGED = sorted(set(logged()))
SOURCE = "\n".join(path.read_text("utf-8") for path in (ROOT / "fetchproxy").rglob("*.py"))


@pytest.mark.parametrize(("event", "level"), LOGGED)
def test_an_event_of_the_log_is_on_the_page_with_its_level(event: str, level: str) -> None:
    assert level in ROWS[event].split(", ")


@pytest.mark.parametrize("event", ROWS)
def test_an_event_of_the_page_is_logged(event: str) -> None:
    assert f'"{event}"' in SOURCE or event in set(Kind)


def test_there_are_events() -> None:
    assert len(LOGGED) > 100
