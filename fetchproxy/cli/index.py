"""`fetchproxy index`: prints the archive's index files, one entry a line. Needs no store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Annotated

import typer
from rich.console import JustifyMethod
from rich.table import Table

from fetchproxy.cli.console_client import terminal
from fetchproxy.cli.running import EXIT_FAULTS, EXIT_USER_ERROR, safe_one_line
from fetchproxy.errors import CorruptSegment
from fetchproxy.segments.remote_log_index import RemoteLogIndex, read_entry
from fetchproxy.storage.index_files import OFFSET_ENTRY, OFFSET_INDEX, TIME_ENTRY, TIME_INDEX

app = typer.Typer(
    help="Print index files of the archive.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Row = dict[str, int | str]
_BASE_OFFSET = re.compile(r"([0-9]{20})[.-]")

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Local .remoteLogIndex, .remoteOffsetIndex or .remoteTimeIndex file, or a copy of a "
        "segment's .index object.",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", help="Print at most N entries.", min=0, metavar="N")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, for programs.")
]


@app.callback()
def _index() -> None:
    """Makes typer treat `index` as a group although it has only one command."""


@app.command()
def show(file: File, limit: Limit = None, as_json: AsJson = False) -> None:
    """Print the entries of an index file.

    If an entry is damaged, the command stops with exit code 1 and names the entry's number and
    byte.
    """
    damage: list[CorruptSegment] = []
    rows = islice(_rows_before_damage(_reader(file)(file.read_bytes(), file), damage), limit)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
    else:
        _print_table(rows)
    for error in damage:
        typer.echo(f"fetchproxy: {file}: {safe_one_line(str(error))}", err=True)
        raise typer.Exit(EXIT_FAULTS)


def _rows_before_damage(rows: Iterator[Row], damage: list[CorruptSegment]) -> Iterator[Row]:
    """The rows before the first damaged entry. Adds the error, if any, to `damage`."""
    try:
        yield from rows
    except CorruptSegment as error:
        damage.append(error)


def _reader(file: Path) -> Callable[[bytes, Path], Iterator[Row]]:
    suffix = file.suffix.removeprefix(".")
    return {OFFSET_INDEX: _offset_rows, TIME_INDEX: _time_rows}.get(suffix, _log_rows)


def _log_rows(raw: bytes, _: Path) -> Iterator[Row]:
    """The entries of one segment after another. Raises CorruptSegment with entry and byte."""
    number = position = 0
    while position < len(raw):
        index, end, error = RemoteLogIndex.take(raw, position)
        for _span in index.spans():
            entry = read_entry(raw, position)
            yield {
                "entry": number,
                "byte": position,
                "first_offset": entry.span.first_offset,
                "last_offset": entry.span.last_offset,
                "first_timestamp": _time(entry.span.first_timestamp_ms),
                "last_timestamp": _time(entry.span.max_timestamp_ms),
                "length": entry.span.length,
                "rdi": entry.rdi,
            }
            number += 1
            position += entry.size_bytes
        if error is not None and not _begins_segment(raw, end, index):
            raise CorruptSegment(f"entry {number} at byte {end}: {error}")


def _begins_segment(raw: bytes, position: int, before: RemoteLogIndex) -> bool:
    """True: at `position` the entries of another segment begin, after the segment of `before`."""
    try:
        entry = read_entry(raw, position)
    except CorruptSegment:
        return False
    return len(before) > 0 and entry.span.position == 0 and entry.object_key != before.object_key


def _offset_rows(raw: bytes, file: Path) -> Iterator[Row]:
    base = _base_offset(file)

    def row(relative: int, position: int) -> str:
        return f"offset {base + relative} at byte {position} of the remoteLogIndex"

    for i, byte, relative, position in _rising(raw, OFFSET_ENTRY, (-1, -1), row):
        yield {"entry": i, "byte": byte, "first_offset": base + relative, "position": position}


def _time_rows(raw: bytes, file: Path) -> Iterator[Row]:
    base = _base_offset(file)

    def row(timestamp_ms: int, relative: int) -> str:
        return f"timestamp {timestamp_ms} at offset {base + relative}"

    for i, byte, timestamp_ms, relative in _rising(raw, TIME_ENTRY, (-(2**63) - 1, -1), row):
        time, offset = _time(timestamp_ms), base + relative
        yield {"entry": i, "byte": byte, "timestamp": time, "first_offset": offset}


def _rising(
    raw: bytes, entry: Struct, before: tuple[int, int], row: Callable[[int, int], str]
) -> Iterator[tuple[int, int, int, int]]:
    """Number, byte and two values of each entry; both values rise. Raises CorruptSegment."""
    for position in range(0, len(raw), entry.size):
        number, left = position // entry.size, len(raw) - position
        if left < entry.size:
            raise CorruptSegment(
                f"entry {number} at byte {position}: cut after {left} of {entry.size} bytes"
            )
        one, other = entry.unpack_from(raw, position)
        if not (one > before[0] and other > before[1]):
            raise CorruptSegment(
                f"entry {number} at byte {position}: {row(one, other)} is not above the entry "
                "before it"
            )
        before = one, other
        yield number, position, one, other


def _base_offset(file: Path) -> int:
    """The base offset in the file's name; the file's offsets are relative to it."""
    match = _BASE_OFFSET.match(file.name)
    if match is None:
        typer.echo(f"fetchproxy: {file.name} does not begin with a 20-digit base offset", err=True)
        raise typer.Exit(EXIT_USER_ERROR)
    return int(match[1])


def _time(timestamp_ms: int) -> str:
    """ISO 8601, or the number if it is not a valid date, such as -1 for no timestamp."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return str(timestamp_ms) if timestamp_ms < 0 else moment.isoformat(timespec="milliseconds")


def _print_table(rows: Iterator[Row]) -> None:
    table = Table(box=None, pad_edge=False)
    for row in rows:
        if not table.columns:
            for name, value in row.items():
                justify: JustifyMethod = "right" if isinstance(value, int) else "left"
                table.add_column(name.replace("_", " "), justify=justify, overflow="fold")
        table.add_row(*(str(value) for value in row.values()))
    terminal().print(table if table.columns else "no entries")
