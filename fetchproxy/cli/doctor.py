"""`fetchproxy doctor`: finds out what is wrong with an installation, and says what mends it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fetchproxy.archive import wall_clock_ms
from fetchproxy.cli import options
from fetchproxy.cli.console_client import ConsoleClient
from fetchproxy.cli.running import EXIT_USER_ERROR, run_to_end, safe_one_line, users_errors
from fetchproxy.config.load import Loaded, load
from fetchproxy.config.schema import LogConfig
from fetchproxy.config.values import DURATION, HostPort, is_any_address, parse_host_port
from fetchproxy.doctor.catalogue import CHECKS, Category
from fetchproxy.doctor.installation import Installation, NotChecked
from fetchproxy.doctor.machine import read_machine
from fetchproxy.doctor.report import examination_json, examination_text
from fetchproxy.doctor.runner import Examination, examine, unusable
from fetchproxy.doctor.running_process import settings_in_force
from fetchproxy.errors import ConfigError
from fetchproxy.observability.logs import configure_logging

_PAUSE_S = 2.0

Before = Annotated[
    bool,
    typer.Option(
        "--before",
        help="Check before the first start: the ports have to be free. Without it, doctor "
        "connects to the running proxy at every address that it advertises.",
    ),
]
WaitFor = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Retry until nothing is fatal, for at most this long, such as 2m.",
    ),
]
Present = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The configuration file in use now: also print what a change to --config would do. "
        "Without it, the process at the console is asked.",
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        help="Skip a check (FP0404) or a category (store); may be repeated.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", envvar="FETCHPROXY_JSON", help="Print the result as JSON.")
]
PlainText = Annotated[bool, typer.Option("--plain", help="Print ASCII only.")]


@options.shares("bootstrap", "store", "listen", "advertise", "archive", "console", "archive_only")
def doctor(
    context: typer.Context,
    before: Before = False,
    wait: WaitFor = None,
    present: Present = None,
    skip: Skip = None,
    json: AsJson = False,
    plain: PlainText = False,
) -> None:
    """Check the settings, brokers, topics, store, addresses, certificates, keys and the machine.

    For each problem it prints the cause, the command that fixes it, and where
    docs/operate/doctor.md explains it. It writes a probe object and removes it; otherwise it
    changes nothing.

    Exit codes: 0 nothing was found; 1 only warnings; 2 something is fatal, or the command line is
    wrong; 130 interrupted.
    """
    with users_errors():
        left_out = _left_out(skip or [])
        wait_ms = 0 if wait is None else _duration_ms(wait)
    configure_logging(LogConfig(level="error"), sys.stderr)
    examination = run_to_end(_until_nothing_is_fatal(context, left_out, wait_ms / 1000))
    _print(examination, json, plain)
    raise typer.Exit(examination.exit_code)


async def _until_nothing_is_fatal(
    context: typer.Context, skip: frozenset[str], wait_s: float
) -> Examination:
    """The last examination. Each reads the settings anew."""
    clock = asyncio.get_running_loop().time
    ends_at = clock() + wait_s
    while True:
        examination = await _examine_once(context, skip)
        if examination.exit_code < EXIT_USER_ERROR or clock() + _PAUSE_S > ends_at:
            return examination
        fatal = ", ".join(result.id for result in examination.results if result.is_fatal)
        typer.echo(f"fatal: {fatal}; trying again for {ends_at - clock():.0f} s", err=True)
        await asyncio.sleep(_PAUSE_S)


async def _examine_once(context: typer.Context, skip: frozenset[str]) -> Examination:
    file = context.params["config_file"]
    try:
        loaded = options.read_settings(context, file)
        present = await _present(context, file, loaded)
    except ConfigError as error:
        return unusable(error)
    installation = Installation(
        loaded=loaded,
        machine=await asyncio.to_thread(read_machine),
        wall_clock_ms=wall_clock_ms,
        before=context.params["before"],
        present=present,
        file=file,
    )
    return await examine(installation, skip)


async def _present(context: typer.Context, file: Path | None, new_config: Loaded) -> Loaded | None:
    """The settings of the process that runs now, if `--config` names a file: as the process tells
    them, else those of its own file. None: nobody knows. Raises ConfigError.
    """
    running: Path | None = context.params["present"]
    is_given = options.is_given(context, "config_file")
    config_path = os.environ.get("FETCHPROXY_CONFIG")
    if running is None and config_path and is_given:
        running = Path(config_path)
    file_config = None if running in (None, file) else load(running, os.environ)
    if not is_given or context.params["before"]:
        return file_config
    candidates = [
        config
        for config in (file_config, new_config)
        if config and config.config.console.listen is not None
    ]
    return (
        await asyncio.to_thread(_ask_console_of, candidates[0], new_config) if candidates else None
    ) or file_config


def _ask_console_of(running: Loaded, new_config: Loaded) -> Loaded | None:
    """The settings in force in the process at the console of `running`.

    None: it does not tell them, for example because it does not run.
    """
    console = running.config.console
    assert console.listen is not None  # see `_present`
    address = parse_host_port(console.listen)
    host = "127.0.0.1" if is_any_address(address.host) else address.host
    try:
        client = ConsoleClient(str(HostPort(host, address.port)), console.token_file)
        return settings_in_force(client.rows("/api/process"), new_config)
    except (ConfigError, NotChecked) as error:
        typer.echo(f"the running process is not compared: {safe_one_line(str(error))}", err=True)
        return None


def _left_out(skip: list[str]) -> frozenset[str]:
    """Raises ConfigError."""
    all_ids = {*CHECKS, *Category}
    for name in skip:
        if name not in all_ids:
            names = ", ".join(f"'{category}'" for category in Category)
            raise ConfigError(f"--skip {name!r}: expected the id of a check, or one of {names}")
    return frozenset(skip)


def _duration_ms(text: str) -> int:
    """Raises ConfigError."""
    try:
        return int(str(DURATION.read(text)))
    except ValueError:
        raise ConfigError(f"--wait {text!r}: expected {DURATION.expected}") from None


def _print(examination: Examination, as_json_text: bool, plain: bool) -> None:
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    plain = plain or encoding != "utf8"
    text = (
        examination_json(examination)
        if as_json_text
        else examination_text(examination, plain=plain)
    )
    if plain:
        text = text.encode("ascii", "backslashreplace").decode()
    typer.echo(text, nl=False)
