"""Checks of what the machine gives: open files, memory, folders and disks."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fetchproxy.config.memory_plan import memory_parts
from fetchproxy.config.schema import Config, MiB
from fetchproxy.doctor.installation import (
    NOTHING,
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
    NotChecked,
    Passed,
)
from fetchproxy.doctor.store import can_create
from fetchproxy.errors import ConfigError, LogDirUnusable
from fetchproxy.runtime.folders import check_own_folder
from fetchproxy.runtime.open_files import clients_that_fit, open_files_for
from fetchproxy.writing.remote_log_manager import open_log_dirs

# The system and others need some of the memory, too.
_MEMORY_SHARE = 0.9
# The default of gateway.connections_max is an upper limit: few proxies have as many.
_CLIENTS_EXPECTED = 1_000


async def _files_suffice(installation: Installation) -> Passed | Sequence[Finding]:
    clients, limit = (
        installation.config.gateway.connections_max,
        installation.machine.open_files_max,
    )
    if "gateway.connections_max" not in installation.loaded.chosen:
        clients = min(clients, _CLIENTS_EXPECTED)
    room = clients_that_fit(limit, clients)
    if room >= clients:
        return NOTHING
    reason = f"gateway.connections_max is {clients}, but {limit} open files allow only {room}"
    return [Finding(reason, {"files": open_files_for(clients)})]


async def _memory_suffices(installation: Installation) -> Passed | Sequence[Finding]:
    machine, plan = installation.machine, sum(memory_parts(installation.config).values())
    if machine.memory_bytes is None:
        raise NotChecked("this system does not say how much memory it has")
    bytes_max = int(machine.memory_bytes * _MEMORY_SHARE)
    words = f"{plan / MiB:.0f} MiB of {machine.memory_bytes / MiB:.0f} MiB"
    if plan <= bytes_max:
        return Passed(f"{words}, without the metadata of segments")
    return [Finding(f"the plan is {words}: {machine.memory_limit}", {"bytes": bytes_max})]


# --- the spool ---


def _spool(installation: Installation) -> Path:
    """Raises NotChecked."""
    if not installation.archives:
        raise DoesNotApply("`archive.topics` is not set")
    return installation.config.archive.spool_dir or Path(tempfile.gettempdir())


def _nearest(folder: Path) -> Path:
    """The folder, or the one above in which it will be made."""
    return next(path for path in (folder, *folder.parents) if path.exists())


async def _spool_can_be_written(installation: Installation) -> Sequence[Finding]:
    folder = _spool(installation)
    words = {"folder": folder}
    try:
        await asyncio.to_thread(_try_to_write, folder)
    except OSError as error:
        return [Finding(f"{folder}: {error.strerror}", words)]
    return NOTHING


def _try_to_write(folder: Path) -> None:
    """Raises OSError."""
    if not folder.exists():
        if not can_create(folder):
            raise OSError(0, f"it cannot be created in {_nearest(folder)}")
        return
    with tempfile.TemporaryFile(prefix="fetchproxy-doctor-", dir=folder) as file:
        file.write(b"\0" * 4096)
        file.flush()
        os.fsync(file.fileno())


async def _spool_has_room(installation: Installation) -> Sequence[Finding]:
    folder, archive = _spool(installation), installation.config.archive
    bytes_min = archive.segment_bytes_max if archive.log_dirs is None else MiB
    free = await asyncio.to_thread(lambda: shutil.disk_usage(_nearest(folder)).free)
    if free >= bytes_min:
        return NOTHING
    reason = f"{folder} has {free / MiB:.0f} MiB free, but one segment takes {bytes_min / MiB:.0f}"
    return [Finding(reason, {"folder": folder})]


async def _spool_has_all_its_room(installation: Installation) -> Sequence[Finding]:
    folder, archive = _spool(installation), installation.config.archive
    if archive.log_dirs is not None:
        raise DoesNotApply("with `archive.log_dirs` the spool takes little space")
    disk = await asyncio.to_thread(lambda: shutil.disk_usage(_nearest(folder)))
    if disk.free >= archive.spool_bytes_max:
        return NOTHING
    reason = (
        f"{folder} has {disk.free / MiB:.0f} MiB free, and archive.spool_bytes_max is "
        f"{archive.spool_bytes_max / MiB:.0f} MiB"
    )
    return [Finding(reason, {"folder": folder, "bytes": int(disk.free * _MEMORY_SHARE)})]


# --- other folders ---


async def _folders_can_be_written(installation: Installation) -> Sequence[Finding]:
    folders = list(_own_folders(installation.config))
    return await asyncio.to_thread(lambda: [f for folder in folders for f in _unusable(*folder)])


def _own_folders(config: Config) -> Iterator[tuple[str, Path]]:
    """The folders that the process writes, and the key that names each."""
    archive_only = config.archive_only
    for key, folder in (
        ("metadata.cache_dir", config.metadata.cache_dir),
        ("archive.local_index_dir", config.archive.local_index_dir),
        ("remote_fetch.disk_cache_dir", config.remote_fetch.disk_cache_dir),
    ):
        if folder is not None:
            yield key, folder
    if archive_only.enabled and archive_only.offsets_file is not None:
        yield "archive_only.offsets_file", archive_only.offsets_file.absolute().parent


def _unusable(key: str, folder: Path) -> Iterator[Finding]:
    words = {"key": key, "folder": folder}
    if folder.exists():
        try:
            check_own_folder(folder, key, folder.stat())
        except ConfigError as error:
            yield Finding(str(error), words)
            return
    try:
        _try_to_write(folder)
    except OSError as error:
        yield Finding(f"{key} = {folder}: {error.strerror}", words)


async def _disk_cache_fits(installation: Installation) -> Sequence[Finding]:
    remote = installation.config.remote_fetch
    folder = remote.disk_cache_dir
    if folder is None:
        raise DoesNotApply("`remote_fetch.disk_cache_dir` is not set")
    # What the cache takes already is not free; so the whole disk counts.
    total = await asyncio.to_thread(lambda: shutil.disk_usage(_nearest(folder)).total)
    if total >= remote.disk_cache_bytes_max:
        return NOTHING
    reason = (
        f"the disk of {folder} has {total / MiB:.0f} MiB, and "
        f"remote_fetch.disk_cache_bytes_max is {remote.disk_cache_bytes_max / MiB:.0f} MiB"
    )
    return [Finding(reason, {"folder": folder, "bytes": int(total * _MEMORY_SHARE)})]


async def _log_dirs_can_be_read(installation: Installation) -> Sequence[Finding]:
    archive = installation.config.archive
    if archive.log_dirs is None:
        raise DoesNotApply("`archive.log_dirs` is not set")
    try:
        await asyncio.to_thread(open_log_dirs, archive)
    except LogDirUnusable as error:
        return [Finding(str(error))]
    return NOTHING


RESOURCE_CHECKS: Mapping[str, CheckFunction] = {
    "FP0501": _files_suffice,
    "FP0502": _memory_suffices,
    "FP0503": _spool_can_be_written,
    "FP0504": _spool_has_room,
    "FP0505": _spool_has_all_its_room,
    "FP0506": _folders_can_be_written,
    "FP0507": _disk_cache_fits,
    "FP0508": _log_dirs_can_be_read,
}
