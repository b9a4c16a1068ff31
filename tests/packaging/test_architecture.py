"""docs/contribute/architecture.md draws the layers that import-linter holds."""

from __future__ import annotations

import tomllib

from compose_file import ROOT

PAGE = (ROOT / "docs" / "contribute/architecture.md").read_text(encoding="utf-8")


def test_the_layers_are_drawn_as_the_contract_has_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(each["layers"] for each in contracts["contracts"] if each["type"] == "layers")
    drawn = PAGE.partition("```\n")[2].partition("\n```")[0].splitlines()
    assert [line.partition("  ")[0] for line in drawn] == layers
