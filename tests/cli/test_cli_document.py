"""docs/reference/commands.md is what the commands' own help says."""

from __future__ import annotations

from pathlib import Path

from fetchproxy.cli.document import main
from fetchproxy.cli.main import COMMANDS

PAGE = Path(__file__).parents[2] / "docs/reference/commands.md"


def test_the_page_on_disk_is_the_generated_one(tmp_path: Path) -> None:
    main([str(tmp_path / "commands.md")])
    generated = (tmp_path / "commands.md").read_text(encoding="utf-8")
    on_disk = PAGE.read_text(encoding="utf-8")
    assert on_disk == generated, "run python -m fetchproxy.cli.document"


def test_each_command_has_its_section() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## fetchproxy {name}\n" in page
        assert f"(#fetchproxy-{name})" in page
