"""`fetchproxy index`: looks into index files of the archive, one entry a line. Needs no store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table

from fetchproxy.cli.running import EXIT_FAULTS, EXIT_USER_ERROR
from fetchproxy.errors import CorruptSegment
from fetchproxy.segments.remote_log_index import RemoteLogIndex, read_entry
from fetchproxy.storage.index_files import (
    OFFSET_ENTRY_BYTES,
    OFFSET_INDEX,
    TIME_ENTRY_BYTES,
    TIME_INDEX,
    RemoteOffsetIndex,
    RemoteTimeIndex,
)

app = typer.Typer(
    help="Look into index files of the archive.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Row = dict[str, int | str]
_UNBROKEN = 10_000  # characters
_BASE_OFFSET = re.compile(r"([0-9]{20})[.-]")

File = Annotated[
    Path,
    typer.Argument(
        help="a local .remoteLogIndex, .remoteOffsetIndex or .remoteTimeIndex file, or a copy of a "
        "segment's .index object",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", help="show so many entries at most", min=0, metavar="N")
]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object a line, for programs")]


@app.callback()
def _index() -> None:
    """A group, though it has one command."""


@app.command()
def show(file: File, limit: Limit = None, as_json: AsJson = False) -> None:
    """Print the entries of an index file.

    A damaged entry ends it with exit code 1, named by its number and its byte.
    """
    rows = islice(_reader(file)(file.read_bytes(), file), limit)
    damage = _print_json(rows) if as_json else _print_table(rows)
    if damage is not None:
        typer.echo(f"fetchproxy: {file}: {damage}", err=True)
        raise typer.Exit(EXIT_FAULTS)


def _reader(file: Path) -> Callable[[bytes, Path], Iterator[Row]]:
    suffix = file.suffix.removeprefix(".")
    return {OFFSET_INDEX: _offset_rows, TIME_INDEX: _time_rows}.get(suffix, _log_rows)


def _log_rows(raw: bytes, _: Path) -> Iterator[Row]:
    """Of one segment after another. Raises CorruptSegment, naming entry and byte."""
    number = at = 0
    while at < len(raw):
        index, end, error = RemoteLogIndex.take(raw, at)
        for _span in index.spans():
            entry = read_entry(raw, at)
            yield {
                "entry": number,
                "byte": at,
                "first_offset": entry.span.first_offset,
                "last_offset": entry.span.last_offset,
                "first_timestamp": _time(entry.span.first_timestamp_ms),
                "last_timestamp": _time(entry.span.max_timestamp_ms),
                "length": entry.span.length,
                "rdi": entry.rdi,
            }
            number += 1
            at += entry.size_bytes
        if error is not None and not _begins_segment(raw, end, index):
            raise CorruptSegment(f"entry {number} at byte {end}: {error}")


def _begins_segment(raw: bytes, at: int, before: RemoteLogIndex) -> bool:
    """Whether the entries of another segment follow those of `before`, as they should."""
    try:
        entry = read_entry(raw, at)
    except CorruptSegment:
        return False
    return len(before) > 0 and entry.span.position == 0 and entry.object_key != before.object_key


def _offset_rows(raw: bytes, file: Path) -> Iterator[Row]:
    base, index = _base_offset(file), RemoteOffsetIndex(raw, _base_offset(file))
    for i in range(len(index)):
        row = {"entry": i, "byte": i * OFFSET_ENTRY_BYTES}
        if index.offset(i) < base or index.position(i) < 0 or (i and not _rises(index, i)):
            raise CorruptSegment(
                f"entry {i} at byte {row['byte']}: offset {index.offset(i)} at byte "
                f"{index.position(i)} of the remoteLogIndex does not follow what is before it"
            )
        yield {**row, "first_offset": index.offset(i), "position": index.position(i)}
    _check_whole(raw, OFFSET_ENTRY_BYTES)


def _rises(index: RemoteOffsetIndex, i: int) -> bool:
    return index.offset(i) > index.offset(i - 1) and index.position(i) > index.position(i - 1)


def _time_rows(raw: bytes, file: Path) -> Iterator[Row]:
    base, index = _base_offset(file), RemoteTimeIndex(raw, _base_offset(file))
    for i in range(len(index)):
        row: Row = {"entry": i, "byte": i * TIME_ENTRY_BYTES}
        timestamp_ms, offset = index.timestamp_ms(i), index.offset(i)
        before = (index.timestamp_ms(i - 1), index.offset(i - 1)) if i else None
        if offset < base or (before and not (timestamp_ms > before[0] and offset > before[1])):
            raise CorruptSegment(
                f"entry {i} at byte {row['byte']}: timestamp {timestamp_ms} at offset {offset} "
                "does not follow what is before it"
            )
        yield {**row, "timestamp": _time(timestamp_ms), "first_offset": offset}
    _check_whole(raw, TIME_ENTRY_BYTES)


def _check_whole(raw: bytes, entry_bytes: int) -> None:
    left = len(raw) % entry_bytes
    if left:
        whole = len(raw) // entry_bytes
        raise CorruptSegment(
            f"entry {whole} at byte {whole * entry_bytes}: cut after {left} of {entry_bytes} bytes"
        )


def _base_offset(file: Path) -> int:
    """Relative offsets are from the one in the file's name."""
    match = _BASE_OFFSET.match(file.name)
    if match is None:
        typer.echo(f"fetchproxy: {file.name} does not begin with a 20-digit base offset", err=True)
        raise typer.Exit(EXIT_USER_ERROR)
    return int(match[1])


def _time(timestamp_ms: int) -> str:
    """ISO 8601; as a number where there is no such day, as with the -1 of records without one."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return str(timestamp_ms) if timestamp_ms < 0 else moment.isoformat(timespec="milliseconds")


def _print_json(rows: Iterator[Row]) -> CorruptSegment | None:
    try:
        for row in rows:
            typer.echo(json.dumps(row))
    except CorruptSegment as error:
        return error
    return None


def _print_table(rows: Iterator[Row]) -> CorruptSegment | None:
    table, damage = Table(box=None, pad_edge=False), None
    try:
        for row in rows:
            if not table.columns:
                for name, value in row.items():
                    justify: JustifyMethod = "right" if isinstance(value, int) else "left"
                    table.add_column(name.replace("_", " "), justify=justify, overflow="fold")
            table.add_row(*(str(value) for value in row.values()))
    except CorruptSegment as error:
        damage = error
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNBROKEN)  # an entry stays on its line
    console.print(table if table.columns else "no entries")
    return damage
