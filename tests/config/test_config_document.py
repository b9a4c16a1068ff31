"""docs/reference/configuration.md is what the declared keys say."""

from __future__ import annotations

from pathlib import Path

from fetchproxy.config.document import document, main, meaning_of
from fetchproxy.config.load import all_keys

DOCS = Path(__file__).parents[2] / "docs/reference"


def test_the_file_on_disk_is_the_generated_one(tmp_path: Path) -> None:
    main([str(tmp_path / "configuration.md")])
    generated = (tmp_path / "configuration.md").read_text(encoding="utf-8")
    on_disk = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert on_disk == generated, "run python -m fetchproxy.config.document"


def test_each_key_is_described() -> None:
    text = document()
    for key in all_keys().values():
        assert meaning_of(key), key.dotted
        assert f"`{key.variable}`" in text
