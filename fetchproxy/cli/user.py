"""`fetchproxy user`: prints one user's lines for `archive_only.users_file`."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from fetchproxy.cli.running import users_errors
from fetchproxy.errors import ConfigError
from fetchproxy.serving.archive_only.logins import (
    HASHES,
    ITERATIONS_MADE,
    credential_of,
    parse_users,
)

_SALT_BYTES = 24

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="PATTERN",
        help="Topics that the user may read: a whole name, a prefix and *, or * for all; may be "
        "repeated.",
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="PATTERN", help="Consumer groups, in the form of --topic."),
]


def user(user_name: Name, topic_patterns: _Topics = None, group_patterns: Groups = None) -> None:
    """Print the lines of a user for the file that `archive_only.users_file` names.

    On a terminal, the command asks for the password; otherwise it reads the first line of stdin.
    The printed lines contain salted hashes (SCRAM-SHA-256, SCRAM-SHA-512), not the password.

    Exit codes: 0 success; 2 the name, a pattern or the password cannot be used.
    """
    with users_errors():
        lines = user_lines(user_name, _password(), topic_patterns or [], group_patterns or [])
    typer.echo(lines, nl=False)


def user_lines(name: str, password: str, topics: list[str], groups: list[str]) -> str:
    """Raises ConfigError."""
    if not password:
        raise ConfigError("the password is empty")
    lines = [f"[{_quoted(name)}]", f"topics = {_quoted(topics)}", f"groups = {_quoted(groups)}"]
    for mechanism in HASHES:
        salt = os.urandom(_SALT_BYTES)
        credential = credential_of(mechanism, password.encode(), salt, ITERATIONS_MADE)
        lines.append(f"{mechanism} = {_quoted(credential.text())}")
    text = "\n".join([*lines, ""])
    try:
        parse_users(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return text


def _password() -> str:
    if sys.stdin.isatty():
        response: str = typer.prompt(
            "Password", hide_input=True, confirmation_prompt=True, err=True
        )
        return response
    return sys.stdin.readline().rstrip("\r\n")


def _quoted(value: object) -> str:
    """As JSON: its strings and lists of strings are valid TOML."""
    return json.dumps(value, ensure_ascii=False)
