"""Runs the command `fetchproxy` with other limits than it has for everybody.

Limits are no settings (`fetchproxy.app.Limits`), so a trial that needs a small one cannot say
`--set`. `python -m lab.limited '{"serving.half_frame_max_ms": 200}' serve …` is `fetchproxy serve`
with it. `command` and `options` make both of one mapping, in which limits begin with `limits.`;
`section_and_limits` does it for parts that are made without a process.
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
    """What runs `fetchproxy`; its own command and options follow."""
    limits = {key.removeprefix(_MARK): v for key, v in settings.items() if key.startswith(_MARK)}
    if not limits:
        return [sys.executable, "-m", "fetchproxy"]
    return [sys.executable, "-m", "lab.limited", json.dumps(limits)]


def options(settings: Mapping[str, object]) -> list[str]:
    """`--set` for all that are settings."""
    given = [(key, value) for key, value in settings.items() if not key.startswith(_MARK)]
    return [word for key, value in given for word in ("--set", f"{key}={value}")]


def limits_of(changes: Mapping[str, Any]) -> Any:
    """`Limits` with these changed: `part.name`, or a name of its own. Raises TypeError."""
    from fetchproxy.app import LIMITS

    limits = LIMITS
    for key, given in changes.items():
        value = json.loads(given) if isinstance(given, str) else given
        part, _, name = key.rpartition(".")
        changed = replace(getattr(limits, part), **{name: value}) if part else value
        limits = replace(limits, **{part or name: changed})
    return limits


def section_and_limits(section: type[S], limits: type[L], **values: Any) -> tuple[S, L]:
    """A section of the configuration and the limits beside it, from the names of both.

    Values are worked out in the order in which they are written, so a seed draws what it drew when
    all of them were settings. Raises ValidationError for a name that neither has.
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
