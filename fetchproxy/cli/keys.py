"""`fetchproxy keys`: manages key rings for `store.encryption_keys`, and an archive's data keys."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fetchproxy.archive import store_url, wall_clock_ms
from fetchproxy.cli import options
from fetchproxy.cli.jobs import count
from fetchproxy.cli.running import EXIT_FAULTS, run_to_end, safe_one_line, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError, DamagedObject, ObjectNotFound, RemoteStorageError
from fetchproxy.metadata.journal_tables import read_table
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.storage.ciphers import KEY_BYTES
from fetchproxy.storage.key_rings import (
    NO_KEYS,
    SETTING,
    changing,
    read_keys,
    write_keys,
)
from fetchproxy.storage.listings import Unlisted
from fetchproxy.storage.remote_storage import RemoteStorage, open_store

_PARTITIONS_AT_ONCE = 4

app = typer.Typer(
    help="Create and change key rings, and re-encrypt the data keys of an archive.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Ring = Annotated[Path, typer.Argument(metavar="FILE", help="Key ring file.")]


@app.command()
def generate(file: Ring) -> None:
    """Create a key ring with one key. Only the file's owner can read it.

    Keep a copy away from the archive: without the key ring, the encrypted data is lost.

    Exit codes: 0 success; 2 the file exists already, or it cannot be created.
    """
    with users_errors():
        key_id = _new_id()
        write_keys(file, NO_KEYS.with_new(key_id, os.urandom(KEY_BYTES)), new=True)
    typer.echo(f"{file}: key {key_id}")


@app.command()
def rotate(file: Ring) -> None:
    """Add a key that encrypts new segments from now on. Older keys still decrypt older segments.

    Running processes that can see the file use the key at once. If processes have their own copies
    of the file, update those that only read first.

    Exit codes: 0 success; 2 the file is not a key ring, or cannot be changed.
    """
    with users_errors(), changing(file):
        key_id = _new_id()
        write_keys(file, read_keys(file).with_new(key_id, os.urandom(KEY_BYTES)), new=False)
    typer.echo(f"{file}: key {key_id}")


@app.command("list")
def list_keys(file: Ring) -> None:
    """Print the ids of the keys and mark the active one. Keys themselves are never printed.

    Exit codes: 0 success; 2 the file is not a key ring.
    """
    with users_errors():
        keys = read_keys(file)
    for key_id in keys.keys:
        typer.echo(f"{key_id}{'  active' if key_id == keys.active else ''}")


@app.command()
@options.shares("store")
def rewrap(
    context: typer.Context, topic: options.Topic = None, dry_run: options.DryRun = False
) -> None:
    """Encrypt the data key of each segment with the active key; segment data does not change.

    You can run the command while archivers and readers work, and interrupt and repeat it. It also
    checks the copies that `fetchproxy mirror` has made; the next run of `mirror` brings the new
    data keys there. --dry-run shows how many data keys each key encrypts now, in the archive and in
    each copy. You can remove a key from the key ring when it encrypts none. The objects of the
    journal (archive.recovery_point_ms) count too; the archiver deletes them by itself.

    Exit codes: 0 success; 1 some data keys could not be opened, or a copy could not be read; 2 the
    configuration is wrong, or the store does not respond; 130 interrupted.
    """
    with users_errors():
        config = options.read_config(context)
        if config.store.encryption_keys is None:
            raise ConfigError(f"{SETTING} is not set")
    _print_report(run_to_end(_rewrap(config, topic, dry_run)), dry_run)


async def _rewrap(config: Config, topic: str | None, dry_run: bool) -> RewrapReport:
    async with open_store(store_url(config), config.store) as storage:
        if not storage.packed.encrypts:
            raise ConfigError(f"{SETTING}: the key ring has no active key")
        await storage.identity.follow_owner()
        report = await rewrap_archive(storage, topic=topic, dry_run=dry_run)
        for url, key in await storage.objects.list_mirrors():
            report.copies.append(await _look_at_copy(config, url, key, topic))
        return report


async def _look_at_copy(config: Config, url: str, key: str, topic: str | None) -> CopyReport:
    """`key`: the key of the object that notes the copy."""
    copy = CopyReport(url, key)
    try:
        async with open_store(url, config.store) as storage:
            copy.report = await rewrap_archive(storage, topic=topic, dry_run=True)
    except (ConfigError, RemoteStorageError, OSError) as error:
        copy.unread = str(error)
    return copy


@dataclass(slots=True)
class CopyReport:
    """`note_key`: the key of the object that notes the copy. `unread`: why it could not be read."""

    url: str
    note_key: str
    report: RewrapReport | None = None
    unread: str = ""


@dataclass(slots=True)
class RewrapReport:
    rewrapped: int = 0
    keys: Counter[str] = field(default_factory=Counter)  # segments by key id, before this run
    # Objects of archivers' journals by key id. They stay as they are: an archiver uses the active
    # key from its next object on, and deletes those whose records are in finished segments.
    journals: Counter[str] = field(default_factory=Counter)
    # Data keys that could not be opened, and folders that could not be listed, with reasons.
    faults: list[str] = field(default_factory=list)
    copies: list[CopyReport] = field(default_factory=list)


# One small object of each segment is replaced atomically and is valid with the old and the new key.
# So archivers and readers notice nothing, and the next run continues where a run was interrupted.
# It lists objects, so it also rewraps the key of a segment whose metadata are lost.
async def rewrap_archive(
    storage: RemoteStorage, *, topic: str | None = None, dry_run: bool = False
) -> RewrapReport:
    """Raises RemoteStorageError."""
    report = RewrapReport()

    async def rewrap(tp: TopicIdPartition) -> None:
        try:
            await rewrap_each(tp)
        except RemoteStorageError as error:
            if not error.may_be_of_object:
                raise
            report.faults.append(str(error))  # one folder that its disk does not give out

    async def rewrap_each(tp: TopicIdPartition) -> None:
        async for segment in storage.objects.list_packed(tp):
            await storage.identity.check_owner()
            try:
                segment_report = await storage.packed.rewrap(segment, dry_run=dry_run)
            except ObjectNotFound:
                continue  # deleted since it was listed
            except DamagedObject as error:
                report.faults.append(str(error))
                continue
            if segment_report.key_id:
                report.keys[segment_report.key_id] += 1
                report.rewrapped += segment_report.done

    unlisted: Unlisted = {}
    listed = await storage.objects.list_partitions(unlisted=unlisted)
    report.faults += [str(error) for name, error in unlisted.items() if topic in (None, name)]
    tps = [tp for tp in listed if topic in (None, tp.topic)]
    await for_each(tps, rewrap, _PARTITIONS_AT_ONCE)
    await _count_journals(storage, report)
    report.faults.sort()
    return report


async def _count_journals(storage: RemoteStorage, report: RewrapReport) -> None:
    """Raises RemoteStorageError."""
    async for journal, number, stored in storage.objects.list_journals():
        try:
            table = await read_table(storage.objects, journal, number, stored)
        except DamagedObject as error:
            report.faults.append(str(error))
            continue
        if table is not None and table.key is not None:
            report.journals[table.key.key_id] += 1


def _print_report(report: RewrapReport, dry_run: bool) -> None:
    for fault in report.faults:
        typer.echo(f"not opened: {safe_one_line(fault)}")
    for key_id, segments in sorted(report.keys.items()):
        verb = "has" if dry_run else "had"
        typer.echo(f"{verb} {count(segments, 'data key')}: {safe_one_line(key_id)}")
    for key_id, objects in sorted(report.journals.items()):
        typer.echo(
            f"has {count(objects, 'object')} of the journal, which the archiver deletes by itself: "
            f"{safe_one_line(key_id)}"
        )
    verb = "to be re-encrypted" if dry_run else "encrypted anew"
    typer.echo(f"{verb}: {count(report.rewrapped, 'data key')}")
    for copy in report.copies:
        _print_copy(copy)
    if report.faults or any(copy.report is None or copy.report.faults for copy in report.copies):
        raise typer.Exit(EXIT_FAULTS)


def _print_copy(copy: CopyReport) -> None:
    if copy.report is None:
        typer.echo(
            f"not known: which keys the copy at {safe_one_line(copy.url)} needs: "
            f"{safe_one_line(copy.unread)}. If that copy is gone for good, delete the object "
            f"{copy.note_key}"
        )
        return
    for fault in copy.report.faults:
        typer.echo(f"not opened in the copy at {safe_one_line(copy.url)}: {safe_one_line(fault)}")
    for key_id, segments in sorted(copy.report.keys.items()):
        typer.echo(
            f"the copy at {safe_one_line(copy.url)} has {count(segments, 'data key')}: "
            f"{safe_one_line(key_id)}"
        )


def _new_id() -> str:
    today = datetime.fromtimestamp(wall_clock_ms() / 1000, UTC).date()
    return f"{today.isoformat()}-{os.urandom(2).hex()}"
