"""Charts as SVG, in text. Pure: no scripts, no fonts, nothing that a page would have to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 12, 12, 28
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """`tip` is shown where the pointer rests."""

    label: str
    value: float
    tip: str
    ahead: bool = False  # a forecast


def bar_chart(title: str, bars: Sequence[Bar], ticks: Sequence[tuple[float, str]]) -> str:
    """Bars side by side; `ticks` are (value, text) of the scale, the last one at its top."""
    top = max([value for value, _ in ticks] + [bar.value for bar in bars] + [1e-9])
    inner_width, inner_height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    step = inner_width / max(len(bars), 1)
    parts = [
        f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(title)}</title>",
    ]
    for value, text in ticks:
        y = _TOP + inner_height * (1 - value / top)
        ends = f'x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'<line class="grid" {ends}/>')
        parts.append(f'<text class="scale" x="{_LEFT - 6}" y="{y + 4:.1f}">{escape(text)}</text>')
    named_every = max(1, -(-len(bars) // 8))
    for i, bar in enumerate(bars):
        height = inner_height * bar.value / top
        x, y = _LEFT + i * step, _TOP + inner_height - height
        kind = "ahead" if bar.ahead else "bar"
        parts.append(
            f'<rect class="{kind}" x="{x + step * 0.1:.1f}" y="{y:.1f}" '
            f'width="{step * 0.8:.1f}" height="{height:.1f}">'
            f"<title>{escape(bar.tip)}</title></rect>"
        )
        if i % named_every == 0:
            middle = x + step / 2
            parts.append(
                f'<text class="label" x="{middle:.1f}" y="{HEIGHT - 8}">{escape(bar.label)}</text>'
            )
    return "".join([*parts, "</svg>"])


def round_ticks(top: float, base: int = 1000) -> list[float]:
    """A few round numbers from 0 up to at least `top`; `base` as bytes are counted."""
    if top <= 0:
        return [0.0, 1.0]
    step = 1.0
    while step * base <= top / _TICKS:
        step *= base
    for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if step * factor * _TICKS >= top:
            step *= factor
            break
    return [step * i for i in range(_TICKS + 1)]
