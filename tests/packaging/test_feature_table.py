"""The table of features against the product: nothing is missing, and each row has tests."""

from __future__ import annotations

import ast
import re

import pytest
from compose_file import ROOT

from fetchproxy.cli.main import COMMANDS
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.serving.gateway.apis.table import SPECIAL
from fetchproxy.storage.stores.registry import parse_store_url
from lab.compatibility import api_name

PAGE = (ROOT / "docs/contribute/features.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| feature | set by | tests |")[2].partition("\n\n")[0]
ROWS = [line.split("|")[1:4] for line in TABLE.splitlines() if line.startswith("| ")]
NAMED = re.findall(r"`([^`]+)`", TABLE)
TESTS = re.findall(r"\]\(\.\./\.\./(tests/[^)]+)\)", TABLE)


def test_each_row_has_tests() -> None:
    assert len(ROWS) > 15
    for feature, _, tests in ROWS:
        assert "](../../tests/" in tests, feature


@pytest.mark.parametrize("test", TESTS)
def test_a_test_that_is_named_is_one_that_pytest_collects(test: str) -> None:
    path = ROOT / test
    assert path.match("tests/*/test_*.py")
    defined = [
        each.name
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    assert any(name.startswith(("test_", "Test")) for name in defined)


def test_no_command_is_missing() -> None:
    assert {name.split()[1] for name in NAMED if name.startswith("fetchproxy ")} == set(COMMANDS)


def test_no_section_of_the_configuration_is_missing() -> None:
    cells = " ".join(set_by for _, set_by, _ in ROWS)
    sections = {name for name in re.findall(r"`([^`]+)`", cells) if " " not in name}
    assert sections == set(Config.model_fields)


def test_no_scheme_of_a_store_is_missing() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_store_url("nosuch://place")
    known = set(str(refused.value).partition("known: ")[2].split(", "))
    assert len(known) > 2
    assert {name.removesuffix("://") for name in NAMED if name.endswith("://")} == known


def test_no_api_that_the_proxy_looks_into_is_missing() -> None:
    features = " ".join(feature for feature, _, _ in ROWS)
    for key in SPECIAL:
        assert re.search(rf"\b{api_name(key)}\b", features), api_name(key)
