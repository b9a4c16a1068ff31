"""Names in the product: the glossary's words, one meaning each, and the order within a file."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for top in ("fetchproxy", "protocol", "pyspark_remotelog")
    for path in (ROOT / top).rglob("*.py")
)

# Words for which docs/glossary.md has another.
BANISHED = frozenset(
    word
    for line in (
        "tip tips answer answers answered answering withheld judgement judgements verdict verdicts",
        "concern concerns appetite edges gathers gathered gathering crossing",
        "breathe standalone",
    )
    for word in line.split()
)
# What was asked or said is a request, a topic, a text, and what is ours has an owner: the name
# says which.
NAMELESS = frozenset(
    ["asked", "held", "looked", "said", "shown", "told", "wanted", "own", "ours", "theirs", "mine"]
)
# Names that users have in their files, commands and dashboards.
PUBLIC = frozenset(
    field.target.id
    for module in ("config/schema.py", "serving/limits.py")
    for node in ast.walk(ast.parse((ROOT / "fetchproxy" / module).read_text("utf-8")))
    if isinstance(node, ast.ClassDef)
    for field in node.body
    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
)

# A top-level name that two modules define, and why it may.
TWICE = {
    "log": "structlog's own custom: one logger a module",
    "app": "Typer's own custom: one application a group of commands",
    **dict.fromkeys(("T", "K", "V", "P", "R"), "a type variable"),
    **dict.fromkeys(
        ("archive", "backfill", "merge", "mirror", "reindex", "report", "resolve", "restore"),
        "the command, and the job that it runs",
    ),
    **dict.fromkeys(("read_archive", "serve", "verify"), "the command, and what it runs"),
    "AsJson": "the option --json, with a text of each command's own",
    **dict.fromkeys(
        ("API", "APIS", "expect", "partitions_in", "patch", "results_in", "topics_in"),
        "each module of an API has it, for the tables that list APIs",
    ),
    "write_request": "each module of an API has it",
    **dict.fromkeys(("document", "main"), "of the programs that write a page of the docs"),
    "table": "of the programs that write a page of the docs",
}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def words_of(name: str) -> set[str]:
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+", name)
    return {word.lower() for word in words}


def identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.arg, ast.keyword)):
            yield node.arg or ""
        elif isinstance(node, Definition):
            yield node.name


def assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def used_by(node: ast.stmt) -> set[str]:
    """The names in an assignment's value; an annotation is not evaluated."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return {part.id for part in ast.walk(value) if isinstance(part, ast.Name)} if value else set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_are_words_of_the_glossary(path: Path) -> None:
    banished = Counter(
        name
        for name in identifiers(parsed(path))
        if name not in PUBLIC and words_of(name) & BANISHED
    )
    assert not banished
    assert not {
        node.id
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Name) and node.id.strip("_").lower() in NAMELESS
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_constants_stand_before_the_first_definition(path: Path) -> None:
    """Unless they are made by what the file defines."""
    defined: set[str] = set()
    late = []
    for node in parsed(path).body:
        if isinstance(node, Definition):
            defined.add(node.name)
        elif names := assigned(node):
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            used = (
                {part.id for part in ast.walk(value) if isinstance(part, ast.Name)}
                if value
                else set()
            )
            if defined and not used & defined:
                late += names
            elif used & defined:
                defined.update(names)
    assert not late


def test_a_top_level_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in parsed(path).body:
            names = [node.name] if isinstance(node, Definition) else assigned(node)
            for name in set(names):
                places[name].append(str(path.relative_to(ROOT)))
    twice = {
        name: where
        for name, where in places.items()
        if len(where) > 1 and not name.startswith("_") and name not in TWICE
    }
    assert not twice
    assert all(len(places[name]) > 1 for name in TWICE), "a reason that is no longer needed"
