"""`fetchproxy bundle`: what a running process tells about itself, in one zip, for a bug report.

Everything comes from its console, which masks secrets. Each text is masked once more here. A part
that cannot be had is named in the bundle, and the rest is written.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fetchproxy import __version__
from fetchproxy.archive import wall_clock_ms
from fetchproxy.cli.console_client import ConsoleClient, ConsoleUrl, TokenFile, json_text
from fetchproxy.cli.running import run_to_end, users_errors
from fetchproxy.config.values import mask_text
from fetchproxy.errors import ConfigError

BundleFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        envvar="FETCHPROXY_BUNDLE_OUT",
        metavar="FILE",
        help="The zip file. Default: a name with the current time, in this folder.",
    ),
]
BundlePartitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        metavar="TOPIC:N",
        help="Include the segments of this partition; may be repeated.",
    ),
]
MetricsInterval = Annotated[
    float,
    typer.Option(
        "--interval",
        envvar="FETCHPROXY_BUNDLE_INTERVAL",
        min=0,
        max=600,
        metavar="SECONDS",
        help="Time between the two copies of the metrics.",
    ),
]
_README = """\
A bundle about one process of fetchproxy, made at {at}.
It holds: versions, settings, limits and clocks (process.json), the last minutes of its log
(log.jsonl), its status, conditions, topics, readers and groups, its metrics at two instants, and
the segments of the partitions that were named.
It holds no records, and secrets are masked. It does hold names: of topics, partitions, clients,
users, groups, hosts and addresses. Read it before you give it to others.

Console: {console}
Made by: fetchproxy {version}, Python {python}, {system}
Clock of the process minus the clock of this machine: {ahead} ms (to the time of one request)
Clock of the store minus the clock of the process: see store_clock_ahead_ms in process.json.
Kafka's protocol does not tell the clocks of the brokers.

{parts}
"""


def bundle(
    console_url: ConsoleUrl = None,
    token_file: TokenFile = None,
    partition: BundlePartitions = None,
    out: BundleFile = None,
    interval_s: MetricsInterval = 10.0,
) -> None:
    """Collect what a running process says about itself in a zip file, for a bug report.

    README.txt in it lists the contents: no records and no secrets, but names of topics and clients.
    Log and settings are included only if you run this on the process's machine or with
    --token-file.

    Exit codes: 0 written, even if a part is missing; 2 the console does not respond, or the file
    cannot be written.
    """
    with users_errors():
        if console_url is None:
            raise ConfigError("use --console URL: `bundle` reads from a running process")
        client = ConsoleClient(console_url, token_file)
        places = [place_of(text) for text in partition or ()]
    now_ms = wall_clock_ms()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ms / 1000))
    target = out or Path(f"fetchproxy-bundle-{stamp}.zip")
    parts, readme = run_to_end(_collect(client, mask_text(console_url), places, interval_s))
    with users_errors():
        write(target, {"README.txt": readme, **parts})
    typer.echo(readme.partition("\n\n")[0])
    typer.echo(f"written to {target}")


def place_of(text: str) -> tuple[str, int]:
    """`orders:0` → ("orders", 0). Raises ConfigError."""
    topic, colon, number = text.rpartition(":")
    if not (topic and colon and number.isascii() and number.isdigit()):
        raise ConfigError(f"--partition {text}: expected TOPIC:NUMBER, such as orders:0")
    return topic, int(number)


async def _collect(
    client: ConsoleClient, console: str, places: list[tuple[str, int]], interval_s: float
) -> tuple[dict[str, str], str]:
    """All parts by their names in the zip, and the README. Raises ConfigError."""
    await asyncio.to_thread(client.get, "/healthz")  # else there is nothing to tell
    contents: dict[str, str] = {}
    lines: list[str] = []

    async def add(name: str, ask: Callable[[], str]) -> None:
        try:
            contents[name] = mask_text(await asyncio.to_thread(ask))
            lines.append(f"{name}")
        except ConfigError as error:
            lines.append(f"{name}: missing: {mask_text(str(error))}")

    def listed(path: str) -> Callable[[], str]:
        return lambda: json_text(client.rows(path))

    asked_ms = wall_clock_ms()
    await add("process.json", listed("/api/process"))
    responded_ms = wall_clock_ms()
    await add("metrics-1.txt", lambda: client.get("/metrics").decode(errors="replace"))
    await add("log.jsonl", lambda: log_lines(client.rows("/api/log")))
    await add("status.json", lambda: json_text(client.json("/api/status", rows_max="1000")))
    for name in ("conditions", "topics", "readers", "groups"):
        await add(f"{name}.json", listed(f"/api/{name}"))
    for topic, number in places:
        path = f"/api/topics/{quote(topic, safe='')}/partitions/{number}/segments"
        await add(f"segments/{file_name(topic)}-{number}.json", listed(path))
    await asyncio.sleep(interval_s)
    await add("metrics-2.txt", lambda: client.get("/metrics").decode(errors="replace"))
    readme = _README.format(
        at=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(asked_ms / 1000)),
        console=console,
        version=__version__,
        python=platform.python_version(),
        system=platform.platform(),
        ahead=_clock_ahead_ms(contents.get("process.json"), (asked_ms + responded_ms) // 2),
        parts="\n".join(lines),
    )
    return contents, readme


def _clock_ahead_ms(process: str | None, here_ms: int) -> int | str:
    """How far the clock of the process is ahead of ours."""
    try:
        return int(json.loads(process or "[]")[0]["clock_ms"]) - here_ms
    except (ValueError, LookupError, TypeError):
        return "not known"


def log_lines(rows: list[Any]) -> str:
    """The oldest first, as in a log."""
    return "".join(f"{row['line']}\n" for row in reversed(rows))


def file_name(topic: str) -> str:
    """A topic's name is a legal file name; what a user has typed may be none."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in topic)


def write(target: Path, parts: dict[str, str]) -> None:
    """Only this user may read it. Raises ConfigError, also if there is such a file."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{target} exists: use another --out") from error
    except OSError as error:
        raise ConfigError(f"{target}: cannot write: {error.strerror}") from error
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive_file,
        ):
            for name, text in parts.items():
                archive_file.writestr(name, text.encode(errors="replace"))
    except OSError as error:
        raise ConfigError(f"{target}: cannot write: {error.strerror}") from error
