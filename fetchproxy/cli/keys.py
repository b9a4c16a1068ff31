"""`fetchproxy keys`: key rings for `store.encryption_keys`, and the keys that an archive uses."""

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
from fetchproxy.cli.running import EXIT_FAULTS, run_to_end, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError, DamagedObject, ObjectNotFound
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.loop import for_each
from fetchproxy.storage.ciphers import KEY_BYTES
from fetchproxy.storage.key_rings import (
    NO_KEYS,
    SETTING,
    changing,
    read_keys,
    write_keys,
)
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager, open_store

PARTITIONS_AT_ONCE = 4

app = typer.Typer(
    help="Make and change key rings, and the keys that an archive uses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Ring = Annotated[Path, typer.Argument(metavar="FILE", help="The key ring.")]


@app.command()
def generate(file: Ring) -> None:
    """Make a key ring with one key, readable by its owner alone.

    Keep a copy of it apart from the archive: what it has encrypted is lost without it.

    Exit codes: 0; 2 there is such a file already, or it cannot be made.
    """
    with users_errors():
        key_id = _new_id()
        write_keys(file, NO_KEYS.with_new(key_id, os.urandom(KEY_BYTES)), new=True)
    typer.echo(f"{file}: key {key_id}")


@app.command()
def rotate(file: Ring) -> None:
    """Add a key, which encrypts new segments from now on; the others still open theirs.

    Running processes see it at once where they see the file. Give it to those first that only read.

    Exit codes: 0; 2 the file is no key ring, or cannot be changed.
    """
    with users_errors(), changing(file):
        key_id = _new_id()
        write_keys(file, read_keys(file).with_new(key_id, os.urandom(KEY_BYTES)), new=False)
    typer.echo(f"{file}: key {key_id}")


@app.command("list")
def list_keys(file: Ring) -> None:
    """Print the ids of the keys, and which is the active one. Never a key.

    Exit codes: 0; 2 the file is no key ring.
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
    """Encrypt the data key of each segment with the active key; the segments stay as they are.

    May be ended at any time and repeated, beside archivers and readers. Afterwards an old key opens
    nothing any more that is in the store, and can go from the key ring; --dry-run says what each
    key opens now.

    Exit codes: 0; 1 some could not be opened; 2 the configuration, or the store does not answer;
    130 interrupted.
    """
    with users_errors():
        config = options.read_config(context)
        if config.store.encryption_keys is None:
            raise ConfigError(f"{SETTING} is not set")
    _say(run_to_end(_rewrap(config, topic, dry_run)), dry_run)


async def _rewrap(config: Config, topic: str | None, dry_run: bool) -> RewrapReport:
    async with open_store(store_url(config), config.store) as rsm:
        if not rsm.packed.encrypts:
            raise ConfigError(f"{SETTING}: the key ring has no active key")
        return await rewrap_archive(rsm, topic=topic, dry_run=dry_run)


@dataclass(slots=True)
class RewrapReport:
    rewrapped: int = 0
    keys: Counter[str] = field(default_factory=Counter)  # of how many segments each was, before
    faults: list[str] = field(default_factory=list)  # what could not be opened, and why


# One small object of each segment is replaced, whole or not at all, and stays true with either key:
# archivers and readers notice nothing, and a next run goes on where one ended. It looks at objects:
# a segment whose metadata are lost keeps its key, too.
async def rewrap_archive(
    rsm: RemoteStorageManager, *, topic: str | None = None, dry_run: bool = False
) -> RewrapReport:
    """Raises RemoteStorageError."""
    report = RewrapReport()

    async def rewrap(tip: TopicIdPartition) -> None:
        async for segment in rsm.list_packed(tip):
            try:
                found = await rsm.packed.rewrap(segment, dry_run=dry_run)
            except ObjectNotFound:
                continue  # deleted since it was listed
            except DamagedObject as error:
                report.faults.append(str(error))
                continue
            if found.key_id:
                report.keys[found.key_id] += 1
                report.rewrapped += found.done

    tips = [tip for tip in await rsm.list_partitions() if topic is None or tip.topic == topic]
    await for_each(tips, rewrap, PARTITIONS_AT_ONCE)
    report.faults.sort()
    return report


def _say(report: RewrapReport, dry_run: bool) -> None:
    for fault in report.faults:
        typer.echo(f"not opened: {fault}")
    for key_id, segments in sorted(report.keys.items()):
        typer.echo(f"{'has' if dry_run else 'had'} {count(segments, 'data key')}: {key_id}")
    what = "to be encrypted anew" if dry_run else "encrypted anew"
    typer.echo(f"{what}: {count(report.rewrapped, 'data key')}")
    if report.faults:
        raise typer.Exit(EXIT_FAULTS)


def _new_id() -> str:
    today = datetime.fromtimestamp(wall_clock_ms() / 1000, UTC).date()
    return f"{today.isoformat()}-{os.urandom(2).hex()}"
