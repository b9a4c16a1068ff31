"""Draws the dark pictures of the docs: `python -m demo.dark_pictures`.

The light picture is the source. The dark one differs in its colours alone, so nothing is drawn or
said twice. A test compares the files.
"""

from __future__ import annotations

import re
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
DIAGRAMS = ("overview", "fetch", "segment", "topologies")

_DARK = {
    "#1f2328": "#f0f6fc",  # text
    "#59636e": "#9198a1",  # lines and what is said in addition
    "#f6f8fa": "#151b23",  # what is not fetchproxy's
    "#8c959f": "#656c76",
    "#ddf4ff": "#0c2d4d",  # fetchproxy
    "#0969da": "#4493f8",
    "#ffffff": "#0d1117",  # a part of fetchproxy
    "#fff8c5": "#2e2a1f",  # the store
    "#9a6700": "#d29922",
}


def dark(light: str) -> str:
    """The picture in dark colours. Raises KeyError for a colour that has no dark one."""
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: _DARK[colour[0]], light)


def main() -> None:
    for name in DIAGRAMS:
        light = (PICTURES / f"{name}-light.svg").read_text(encoding="utf-8")
        file = PICTURES / f"{name}-dark.svg"
        file.write_text(dark(light), encoding="utf-8")
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
