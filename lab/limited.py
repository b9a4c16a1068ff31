"""Runs the command `fetchproxy` with limits other than the product's fixed ones.

Limits are not settings (`fetchproxy.app.Limits`), so a test that needs a small limit cannot use
`--set`. `python -m lab.limited '{"serving.half_frame_max_ms": 200}' serve …` runs `fetchproxy
serve` with that limit. `command` and `options` split one mapping into both: keys of limits begin
with `limits.`. `section_and_limits` does the same for parts that are made without a process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

_MARK = "limits."

S = TypeVar("S")
L = TypeVar("L")


def command(settings: Mapping[str, object]) -> list[str]:
    """The command line that runs `fetchproxy`, up to its subcommand."""
    limits = {key.removeprefix(_MARK): v for key, v in settings.items() if key.startswith(_MARK)}
    if not limits:
        return [sys.executable, "-m", "fetchproxy"]
    return [sys.executable, "-m", "lab.limited", json.dumps(limits)]


def options(settings: Mapping[str, object]) -> list[str]:
    """`--set` arguments for all keys that are settings."""
    options_given = [(key, value) for key, value in settings.items() if not key.startswith(_MARK)]
    return [word for key, value in options_given for word in ("--set", f"{key}={value}")]


def limits_of(changes: Mapping[str, Any]) -> Any:
    """`Limits` with the changes: keys are `part.name` or a field of `Limits`. Raises TypeError."""
    from fetchproxy.app import LIMITS

    limits = LIMITS
    for key, raw_limits in changes.items():
        value = json.loads(raw_limits) if isinstance(raw_limits, str) else raw_limits
        part, _, name = key.rpartition(".")
        changed = replace(getattr(limits, part), **{name: value}) if part else value
        limits = replace(limits, **{part or name: changed})
    return limits


def section_and_limits(section: type[S], limits: type[L], **values: Any) -> tuple[S, L]:
    """A section of the configuration and its limits, from values for both.

    Values are evaluated in the order in which they are written, so a random seed gives the same
    values as when all of them were settings. Raises ValidationError for a name that neither has.
    """
    names = {each.name for each in fields(limits)}  # type: ignore[arg-type]
    of_limits = {name: value for name, value in values.items() if name in names}
    of_section = {name: value for name, value in values.items() if name not in names}
    return section(**of_section), limits(**of_limits)


def main() -> None:
    from fetchproxy.cli.main import app

    app(args=sys.argv[2:], prog_name="fetchproxy", obj=limits_of(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
