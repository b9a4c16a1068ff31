"""Names say what they hold, in the product as in tests, benchmarks and the lab.

A past participle or a pronoun says only that something was asked or found, or whose it is. A reader
then has to look for its value: `said = await proxy.fetch()` is a response.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("fetchproxy", "protocol", "pyspark_remotelog")
FILES = sorted(
    path
    for top in (*PRODUCT, "tests", "benchmarks", "chaos", "demo", "examples", "lab", "rehearsal")
    for path in (ROOT / top).rglob("*.py")
)
NAMELESS = frozenset(
    word
    for line in (
        "asked found given got held kept left looked said seen sent shown told wanted",
        "mine ours own theirs",
    )
    for word in line.split()
)
NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs
# In the product, this is what remains of a count or of bytes.
IN_PRODUCT = NAMELESS - {"left"}
# By file: the name, and why it stays.
STAYS = {
    "fetchproxy/sizing/estimate.py": {"kept": "a field of what `sizing --json` prints"},
    "tests/packaging/test_pictures.py": {"left": "a side of a box, beside `right` and `top`"},
}


def names_bound_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Of variables, parameters, attributes, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield (node.id if isinstance(node, ast.Name) else node.attr), node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, NAMED) and node.name:
            yield node.name, node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_name_says_what_it_holds(path: Path) -> None:
    bound = list(names_bound_in(ast.parse(path.read_text("utf-8"))))
    is_product = path.relative_to(ROOT).parts[0] in PRODUCT
    words = IN_PRODUCT if is_product else NAMELESS
    nameless = {name: line for name, line in bound if name.strip("_").lower() in words}
    stays = STAYS.get(str(path.relative_to(ROOT)), {})
    assert {name: line for name, line in nameless.items() if name not in stays} == {}
    assert stays.keys() <= nameless.keys(), "a reason that is no longer needed"
