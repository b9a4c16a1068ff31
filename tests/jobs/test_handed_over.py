"""Jobs on an archive that `cluster restore` hands over to another cluster while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mirrors import filled, url_of
from planted_archive import TP
from segment_values import segment_of
from stored_archives import PREFIX, config_of

from fetchproxy.archive import stored_archive
from fetchproxy.auditing import moving
from fetchproxy.auditing.mirroring import MirrorOptions
from fetchproxy.cli.keys import rewrap_archive
from fetchproxy.config.schema import Config
from fetchproxy.errors import ArchiveMismatch
from fetchproxy.jobs.merge import MergeOptions, merge_work
from fetchproxy.jobs.mirror import MirrorStores, mirror_work
from fetchproxy.jobs.restore import restore_work
from fetchproxy.jobs.verify import reindex_work
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, SegmentFile
from fetchproxy.storage.archive_identity import (
    LOOK_AGE_MAX_S,
    MIRROR,
    ArchiveIdentity,
    HandedOver,
    encode_identity,
)
from fetchproxy.storage.remote_storage import RemoteStorage

OLD = ArchiveIdentity(None, "old", "store")
NEW = ArchiveIdentity(None, "new", "store", handed_over=HandedOver("old", 1_700_000_000_000))
SEGMENT = segment_of(TP, 1, 0, 9)
Opened = Callable[[Config], AbstractAsyncContextManager[Any]]
# What each job without brokers opens to write. `verify --repair` and `recover-journal` open the
# archive as the last one does.
JOBS: dict[str, Opened] = {
    "merge": lambda config: merge_work(config, MergeOptions()).opened(),
    "reindex": lambda config: reindex_work(config, False).opened(),
    "restore": lambda config: restore_work(config, False, False).opened(),
    "repair": partial(stored_archive, writes=True),
}


def set_identity(folder: Path, identity: ArchiveIdentity) -> None:
    (folder / PREFIX / LAYOUT_OBJECT).write_bytes(encode_identity(identity))


def storage_of(opened: Any) -> RemoteStorage:
    """Some jobs open more than the archive."""
    storage: RemoteStorage
    archive = opened[0]
    storage = archive if isinstance(archive, RemoteStorage) else archive.storage
    return storage


@pytest.mark.parametrize("job", JOBS)
async def test_a_job_does_not_go_on_when_another_cluster_has_the_archive(
    job: str, tmp_path: Path
) -> None:
    await filled(tmp_path)
    set_identity(tmp_path, OLD)
    config = config_of(tmp_path, archive__spool_dir=str(tmp_path / "spool"))
    async with JOBS[job](config) as opened:
        storage = storage_of(opened)
        await storage.rsm.delete_log_segment_data(SEGMENT)  # while it is the owner's
        set_identity(tmp_path, NEW)
        for write in (
            storage.objects.put_segment_metadata(SEGMENT, b""),
            storage.rsm.delete_log_segment_data(SEGMENT),
        ):
            with pytest.raises(ArchiveMismatch, match="changed hands from the cluster old to new"):
                await write
    async with JOBS[job](config) as opened:  # for the new owner
        await storage_of(opened).rsm.delete_log_segment_data(SEGMENT)


async def test_keys_are_not_rewrapped_then(tmp_path: Path) -> None:
    archive = await filled(tmp_path)
    set_identity(tmp_path, OLD)
    packing = archive.storage.rsm.object_key(archive.segments[0], SegmentFile.PACKING)
    (tmp_path / packing).write_bytes(b"not looked at")
    async with stored_archive(config_of(tmp_path), writes=True) as (storage, _):
        set_identity(tmp_path, NEW)
        await asyncio.sleep(LOOK_AGE_MAX_S * 1.01)
        with pytest.raises(ArchiveMismatch, match="changed hands"):
            await rewrap_archive(storage)


async def test_a_mirror_that_has_become_the_archive_is_left_alone(tmp_path: Path) -> None:
    """Another run cuts over, and a restored cluster goes on there, while the first one copies."""
    source, target = tmp_path / "a", tmp_path / "b"
    await filled(source)
    await filled(target)
    set_identity(source, OLD)
    places = MirrorStores(
        config_of(source, archive__spool_dir=str(tmp_path / "spool")), url_of(target)
    )
    set_identity(target, ArchiveIdentity(None, "old", MIRROR))
    work = mirror_work(places, MirrorOptions())
    async with work.opened() as opened:
        await work.run(opened, TP, lambda done, total: None)
        set_identity(target, NEW)
        with pytest.raises(ArchiveMismatch, match="--to is not a mirror any more"):
            await work.run(opened, TP, lambda done, total: None)
        with pytest.raises(ArchiveMismatch, match="--to is not a mirror any more"):
            await moving.copy_archive_wide(opened[0], opened[1])
