"""Asks the console of a running process (`--console URL`), and shows rows as tables.

Whatever a server sends is only text to show: it is bounded, and made harmless to the terminal.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from fetchproxy.config.values import harmless, secret_from
from fetchproxy.errors import ConfigError, system_error_in_words

RESPONSE_BYTES_MAX = 64 * 1024 * 1024
_WAIT_MAX_S = 30.0
_PAGE = 1_000
_ERROR_CHARS_MAX = 300
_FILE_COLUMNS = 10_000

ConsoleUrl = Annotated[
    str | None,
    typer.Option(
        "--console",
        envvar="FETCHPROXY_ASK",
        metavar="URL",
        help="Console of the running process: http://HOST:PORT or HOST:PORT.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="FETCHPROXY_CONSOLE_TOKEN_FILE",
        metavar="FILE",
        help="File with the token of that console (console.token_file).",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", envvar="FETCHPROXY_JSON", help="Print JSON, for programs."),
]
JsonRow = Mapping[str, Any]


class ConsoleClient:
    """`url`: http://host:port or host:port. Raises ConfigError for another form, and from each
    method if the console does not answer as it should.
    """

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError("--console: expected http://HOST:PORT, without a user")
        try:
            self._port = parts.port
        except ValueError as error:
            raise ConfigError(f"--console: {error}") from error
        self._scheme, self._host = parts.scheme, parts.hostname
        self._path = parts.path.rstrip("/")
        self._token = secret_from(token_file, "console.token_file")

    def get(self, path: str, **query: str) -> bytes:
        """The body of a response with status 200."""
        return self.send("GET", path, **query)

    def send(self, method: str, path: str, **query: str) -> bytes:
        """As `get`."""
        kind = http.client.HTTPSConnection if self._scheme == "https" else None
        connect = kind or http.client.HTTPConnection
        connection = connect(self._host, self._port, timeout=_WAIT_MAX_S)
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        target = self._path + path + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(method, target, headers=headers)
            response = connection.getresponse()
            body = response.read(RESPONSE_BYTES_MAX + 1)
        except OSError as error:
            reason = system_error_in_words(error)
            raise ConfigError(f"the console at {self._host} does not respond: {reason}") from error
        except http.client.HTTPException as error:
            raise ConfigError(f"the console at {self._host} does not respond: {error}") from error
        finally:
            connection.close()
        if len(body) > RESPONSE_BYTES_MAX:
            raise ConfigError(f"{path}: the response has more than {RESPONSE_BYTES_MAX} bytes")
        if response.status != HTTPStatus.OK:
            raise ConfigError(_refusal(path, response.status, body))
        return body

    def json(self, path: str, **query: str) -> Any:
        body = self.get(path, **query)
        try:
            return json.loads(body)
        except ValueError as error:
            raise ConfigError(f"{path}: the response is not JSON; is this a console?") from error

    def rows(self, path: str, rows_max: int | None = None) -> list[JsonRow]:
        """All rows of a list, or the first `rows_max`."""
        all_rows: list[JsonRow] = []
        after: str | None = ""
        while after is not None and (rows_max is None or len(all_rows) < rows_max):
            limit = _PAGE if rows_max is None else min(_PAGE, rows_max - len(all_rows))
            page = self.json(path, limit=str(limit), after=after)
            try:
                all_rows += page["items"]
                after = page["next"]
            except (KeyError, TypeError) as error:
                raise ConfigError(
                    f"{path}: the response is not a page; is this a console?"
                ) from error
        return all_rows

    def partitions(self, topic: str) -> list[JsonRow]:
        return self.rows(f"/api/topics/{quote(topic, safe='')}/partitions")


def _refusal(path: str, status: int, body: bytes) -> str:
    text = harmless(body[:_ERROR_CHARS_MAX].decode(errors="replace").strip())
    hint = "; give --token-file" if status == HTTPStatus.UNAUTHORIZED else ""
    return f"{path}: the console returned {status}: {text}{hint}"


# -- tables ---------------------------------------------------------------------------------------


def table(rows: Iterable[JsonRow], columns: Sequence[tuple[str, str]]) -> Table:
    """`columns`: title and key. Keys that end in `_bytes` are shown as sizes."""
    grid = Table(box=None, pad_edge=False)
    all_rows = list(rows)
    for title, key in columns:
        numbers = any(isinstance(row.get(key), int | float) for row in all_rows)
        grid.add_column(title, justify="right" if numbers else "left", overflow="fold")
    for row in all_rows:
        grid.add_row(*(cell(key, row.get(key)) for _, key in columns))
    return grid


def cell(key: str, value: object) -> Text:
    """As plain text: no markup, nothing that a terminal obeys. What is not known is a dash."""
    if value is None or value == "":
        return Text("–")
    if isinstance(value, int) and "bytes" in key:
        return Text(decimal(value))
    if isinstance(value, float):
        return Text(f"{value:,.4f}".rstrip("0").rstrip(".") if "usd" in key else f"{value:,.1f}")
    return Text(f"{value:,}" if isinstance(value, int) else harmless(str(value)))


def print_rows(rows: Sequence[JsonRow], columns: Sequence[tuple[str, str]], *, json: bool) -> None:
    """On stdout, as a table or as JSON."""
    if json:
        typer.echo(json_text(rows))
    else:
        terminal().print(table(rows, columns))


def terminal() -> Console:
    """For stdout. A line that goes to a file or to a program is not folded."""
    return Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS)


def json_text(value: object) -> str:
    """For programs: letters beyond ASCII are escaped, so that nothing reaches a terminal."""
    return json.dumps(value, indent=1)
