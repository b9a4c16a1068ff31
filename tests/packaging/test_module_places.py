"""Documents that name a module by its place: it is there, and so is the name behind the dot."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from compose_file import ROOT

DOCUMENTS = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
FILE = re.compile(r"`([\w./]+/\w+\.py)`")
PLACE = re.compile(r"(?<![\w./])([a-z_]+(?:/[a-z_]+)+)(?:\.(\w+))?")
CHECKLIST = tomllib.loads((ROOT / "docs/reference/compatibility/checklist.toml").read_text("utf-8"))
RESPONSES = [entry.get("answer", "") for entry in (*CHECKLIST["proxy"], *CHECKLIST["tiered"])]
KIP_PAGE = ROOT / "docs" / "contribute/kip-405.md"
KIP_MODULES = re.findall(
    r"\[([\w/]+)\]\(\.\./\.\./(fetchproxy/[\w/]+)\.py\)", KIP_PAGE.read_text("utf-8")
)


def module_of(place: str) -> Path | None:
    """In the repository or in the package, as a file or as a folder."""
    places = [root / place for root in (ROOT, ROOT / "fetchproxy")]
    files = [*places, *(path.with_name(path.name + ".py") for path in places)]
    return next((path for path in files if path.exists()), None)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_python_file_that_a_page_names_is_there(path: Path) -> None:
    for place in FILE.findall(path.read_text(encoding="utf-8")):
        assert module_of(place), place


def test_the_checklist_names_places_that_are_there() -> None:
    named = [
        match for response in RESPONSES for match in PLACE.findall(response.replace(".py", ""))
    ]
    assert len(named) > 30
    for place, name in named:
        module = module_of(place)
        assert module, place
        assert not name or re.search(rf"(def|class) {name}\b", module.read_text("utf-8")), name


@pytest.mark.parametrize(("label", "module"), KIP_MODULES, ids=lambda text: text.split("/")[-1])
def test_a_module_of_the_kips_page_imports_under_its_label(label: str, module: str) -> None:
    assert importlib.import_module(module.replace("/", "."))
    assert module.endswith(f"/{label}")


def test_each_row_of_the_kips_page_names_a_module() -> None:
    rows = [line for line in KIP_PAGE.read_text("utf-8").splitlines() if "](../../" in line]
    assert len(rows) > 20
    assert all(re.search(r"\]\(\.\./\.\./fetchproxy/[\w/]+\.py\)", row) for row in rows)
