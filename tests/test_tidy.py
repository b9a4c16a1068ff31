"""House rules that no linter knows, over every file of the product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocol", "fetchproxy", "pyspark_remotelog")
FUNCTION_LINES_MAX = 70
NAMES_THAT_SAY_NOTHING = {"common", "helper", "helpers", "misc", "util", "utils"}
PYTHON_OUTSIDE = ("tests", "lab", "demo", "benchmarks", "chaos")

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """(name and line, length in lines) of every function, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{node.name}, line {node.lineno}", node.end_lineno - node.lineno + 1


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 50
    assert any(list(functions(path)) for path in SOURCES)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_begins_with_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), (
        "one paragraph: what this is for, and what it must not do"
    )


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_function_is_longer_than_a_page(path: Path) -> None:
    long = [(name, lines) for name, lines in functions(path) if lines > FUNCTION_LINES_MAX]
    assert not long


def test_every_module_is_called_after_what_it_does() -> None:
    everywhere = [*SOURCES, *(p for d in PYTHON_OUTSIDE for p in (ROOT / d).rglob("*.py"))]
    parts = {part for path in everywhere for part in Path(name_of(path)).with_suffix("").parts}
    assert not parts & NAMES_THAT_SAY_NOTHING


def test_nothing_is_left_for_later_in_a_comment() -> None:
    # Put together here, or this very file would be found.
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
    roots = [ROOT / name for name in (*PACKAGES, *PYTHON_OUTSIDE, "docs")]
    files = [path for root in roots for path in root.rglob("*") if path.suffix in (".py", ".md")]
    places = [
        f"{name_of(path)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert not places


def test_nothing_is_left_of_a_merge() -> None:
    mark = re.compile(r"^(<{7}|>{7})( |$)", re.MULTILINE)
    roots = [ROOT / name for name in (*PACKAGES, *PYTHON_OUTSIDE, "docs")]
    files = [path for root in roots for path in root.rglob("*") if path.suffix in (".py", ".md")]
    assert not [
        name_of(path)
        for path in [*files, ROOT / "README.md", ROOT / "CHANGELOG.md"]
        if mark.search(path.read_text(encoding="utf-8"))
    ]


def test_only_print_tools_print() -> None:
    """The product logs; what a command shows goes through typer or rich."""
    allowed = {
        "fetchproxy/config/document.py",
        "fetchproxy/doctor/document.py",
        "fetchproxy/observability/document.py",
    }
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print" or name_of(path) in allowed, name_of(path)


def imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Of our own modules, wherever the line stands: also for type checkers alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if modules.get(name, path) != path)


def module_of(path: Path) -> str:
    name = ".".join(Path(name_of(path)).with_suffix("").parts).removesuffix(".__init__")
    return name.removeprefix("protocol.")  # the folder, in which the package has its own name


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also inside a package, and where only the type checker reads the import."""
    modules = {module_of(path): path for path in SOURCES}
    graph = {module: set(imports(path, modules)) for module, path in modules.items()}
    assert sum(map(len, graph.values())) > len(modules)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))
