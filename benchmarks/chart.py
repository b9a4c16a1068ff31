"""Draws rows of figures as bars in an SVG, one panel for each unit. Pure; knows no benchmark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Protocol

WIDTH = 860
_MARGIN = 20
_BAR = 12
_LINE = 36  # a label, and the bar below it
_HEAD = 34  # height of a panel's heading
_NUMBERS = 210  # width of the column right of the bars
_COLOURS = {True: "#2e8b57", False: "#c0392b", None: "#5b7fa6"}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Figure(Protocol):
    """The drawn part of a Row: `value` as bar, `min` to `max` as whisker, the goal as line."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def unit(self) -> str: ...
    @property
    def goal(self) -> str | None: ...
    @property
    def met(self) -> bool | None: ...
    @property
    def min(self) -> float: ...
    @property
    def max(self) -> float: ...


def drawing(title: str, rows: Sequence[Figure]) -> str:
    """An SVG document. Panels are in the order in which their units first appear."""
    panels: dict[str, list[Figure]] = {}
    for each in rows:
        panels.setdefault(each.unit, []).append(each)
    y = 48.0
    parts = [_text(_MARGIN, 28, title, "font-size='18' font-weight='bold'")]
    for unit, figures in panels.items():
        parts += _panel(unit, figures, y)
        y += _HEAD + _LINE * len(figures)
    size = f"width='{WIDTH}' height='{y:.0f}' viewBox='0 0 {WIDTH} {y:.0f}'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} font-family='sans-serif'>",
        f"<rect width='{WIDTH}' height='{y:.0f}' fill='white'/>",
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def limit_of(goal: str | None) -> float | None:
    """The first number in a goal's text. The goal's line is drawn there."""
    match = _NUMBER.search(goal or "")
    return float(match[0]) if match else None


def _panel(unit: str, figures: Sequence[Figure], top: float) -> list[str]:
    limits = [limit_of(each.goal) if _same_scale(each) else None for each in figures]
    most = max([each.max for each in figures] + [limit or 0.0 for limit in limits] + [1e-9])
    # A negative value, such as an added latency below 0, is drawn as 0.
    scale = (WIDTH - 2 * _MARGIN - _NUMBERS) / most
    parts = [_text(_MARGIN, top + 22, unit or "count", "font-size='14' font-weight='bold'")]
    for number, (figure, limit) in enumerate(zip(figures, limits, strict=True)):
        parts += _bar(figure, limit, scale, top + _HEAD + _LINE * number)
    return parts


def _bar(figure: Figure, limit: float | None, scale: float, y: float) -> list[str]:
    def x(value: float) -> float:
        return _MARGIN + max(value, 0.0) * scale

    top, middle = y + 14, y + 14 + _BAR / 2
    fill = _COLOURS[figure.met]
    end = WIDTH - _MARGIN - _NUMBERS + 10
    numbers = f"{figure.value:.4g} ({figure.min:.4g} to {figure.max:.4g})"
    parts = [
        _text(_MARGIN, y + 9, figure.name, "font-size='11'"),
        f"<rect x='{_MARGIN}' y='{top:.1f}' width='{x(figure.value) - _MARGIN:.1f}' "
        f"height='{_BAR}' fill='{fill}'/>",
        f"<line x1='{x(figure.min):.1f}' x2='{x(figure.max):.1f}' y1='{middle:.1f}' "
        f"y2='{middle:.1f}' stroke='black'/>",
        _text(end, top + 10, numbers, "font-size='11'"),
    ]
    if limit is not None:
        parts.append(
            f"<line x1='{x(limit):.1f}' x2='{x(limit):.1f}' y1='{top - 2:.1f}' "
            f"y2='{top + _BAR + 2:.1f}' stroke='black' stroke-width='2' stroke-dasharray='3 2'/>"
        )
    return parts


def _same_scale(figure: Figure) -> bool:
    """False for a goal such as "flat within 15 %": a share is not a value on the bar's scale."""
    return not (figure.goal or "").rstrip().endswith("%")


def _text(x: float, y: float, words: str, style: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(words)}</text>"
