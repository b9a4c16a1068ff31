"""The README's chart: `python -m benchmarks.headline` draws it from benchmarks/results.

The chart has only ratios of speeds, so one axis serves all: fetchproxy is faster right of the line.
It shows missed goals as well as met ones. A test compares the files with the results.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks import goals

RESULTS = Path(__file__).parent / "results"
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

# (part, name of the row in its results, label in the chart)
_BARS = (
    ("tail", "throughput, unpaused consumer, fetchproxy / direct",
     "Tail: a consumer through the proxy, vs. directly"),
    ("replay", goals.REPLAY_LIBRDKAFKA.words, "Replay from a folder, vs. Kafka's tiered storage"),
    ("replay", goals.REPLAY_S3.words, "Replay from S3, 50 ms away, vs. raw range reads"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Theme:
    text: str
    more: str
    bar: str
    grid: str


THEMES = {
    "light": Theme(text="#1f2328", more="#59636e", bar="#0969da", grid="#d1d9e0"),
    "dark": Theme(text="#f0f6fc", more="#9198a1", bar="#4493f8", grid="#3d444d"),
}
_TITLE = "Speed of fetchproxy, vs. what one would use instead"
_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
_WIDTH, _LEFT_X, _RIGHT, _TOP, _ROW, _BAR = 900, 390, 170, 64, 30, 14


@dataclass(frozen=True, slots=True)
class Bar:
    words: str
    value: float
    least: float
    most: float


def bars(results: Path) -> list[Bar]:
    """Raises KeyError if a row is not in the results."""
    rows_of_bars = []
    for part, name, words in _BARS:
        document = json.loads((results / f"{part}.json").read_text(encoding="utf-8"))
        rows = {row["name"]: row for row in document["rows"]}
        rows_of_bars.append(Bar(words, rows[name]["value"], rows[name]["min"], rows[name]["max"]))
    return rows_of_bars


def drawing(bars_drawn: list[Bar], theme: Theme) -> str:
    """An SVG without a background."""
    height = _TOP + _ROW * len(bars_drawn) + 30
    last = max(each.most for each in bars_drawn)
    scale = (_WIDTH - _LEFT_X - _RIGHT) / last

    def x(value: float) -> float:
        return _LEFT_X + value * scale

    bottom = _TOP + _ROW * len(bars_drawn)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_TITLE}">',
        f"<style>text {{ font-family: {_FONT}; font-size: 13px; fill: {theme.text}; }}",
        f".more {{ fill: {theme.more}; }} .bar {{ fill: {theme.bar}; }}",
        f".grid {{ stroke: {theme.grid}; }} .one {{ stroke: {theme.text}; stroke-width: 1.5; }}",
        f".range {{ stroke: {theme.text}; opacity: 0.6; }} .end {{ text-anchor: end; }}",
        ".middle { text-anchor: middle; } .title { font-size: 16px; font-weight: 600; }</style>",
        f'<text class="title" x="20" y="26">{_TITLE}</text>',
        f'<text class="more end" x="{_WIDTH - 10}" y="26">bar: median; line: slowest to fastest '
        "round</text>",
        f'<text class="more middle" x="{x(1):.1f}" y="{_TOP - 8}">equal</text>',
        f'<text class="more end" x="{_WIDTH - 10}" y="{_TOP - 8}">right of it: fetchproxy is '
        "faster</text>",
    ]
    for mark in range(int(last) + 1):
        kind = "one" if mark == 1 else "grid"
        at = f"{x(mark):.1f}"
        lines += [
            f'<line class="{kind}" x1="{at}" x2="{at}" y1="{_TOP}" y2="{bottom}"/>',
            f'<text class="more middle" x="{at}" y="{bottom + 18}">{mark} ×</text>',
        ]
    for number, each in enumerate(bars_drawn):
        lines += _row(each, _TOP + _ROW * number, x(each.value), x(each.least), x(each.most))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(bar: Bar, top: float, end: float, least: float, most: float) -> list[str]:
    middle = top + _ROW / 2
    y = f'y1="{middle:.0f}" y2="{middle:.0f}"'
    numbers = f"{bar.value:.2f} ({bar.least:.2f} to {bar.most:.2f})"
    return [
        f'<text class="end" x="{_LEFT_X - 10}" y="{middle + 5:.0f}">{escape(bar.words)}</text>',
        f'<rect class="bar" x="{_LEFT_X}" y="{middle - _BAR / 2:.0f}" width="{end - _LEFT_X:.1f}" '
        f'height="{_BAR}" rx="2"/>',
        f'<line class="range" x1="{least:.1f}" x2="{most:.1f}" {y}/>',
        f'<text class="more end" x="{_WIDTH - 10}" y="{middle + 5:.0f}">{numbers}</text>',
    ]


def main() -> None:
    for name, theme in THEMES.items():
        file = PICTURES / f"headline-{name}.svg"
        file.write_text(drawing(bars(RESULTS), theme), encoding="utf-8")
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
