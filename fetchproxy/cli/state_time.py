"""The option --at of the commands that read a kept state of the cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from fetchproxy.errors import ConfigError

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        envvar="FETCHPROXY_CLUSTER_AT",
        metavar="TIME",
        help="The state at this time: 2026-11-30T07:00 (UTC, or with an offset), or milliseconds "
        "since 1970. Default: the newest.",
    ),
]


def epoch_ms(text: str) -> int:
    """Raises ConfigError."""
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--at {text}: expected a time such as 2026-11-30T07:00, or milliseconds since 1970"
        ) from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1000)
