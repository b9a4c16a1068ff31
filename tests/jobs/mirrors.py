"""Mirrors of planted archives, as the job makes them. Not a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planted_archive import PlantedArchive, batch
from stored_archives import PREFIX, config_of

from fetchproxy.auditing.mirroring import MirrorOptions
from fetchproxy.jobs.mirror import Deleted, Mirrored, delete_moved, mirror
from fetchproxy.jobs.runner import Here
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.segments.object_keys import LAYOUT_OBJECT
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


def planted(folder: Path) -> PlantedArchive:
    return PlantedArchive(FilesystemObjectStore(folder, create=True))  # type: ignore[arg-type]


async def filled(folder: Path, segments: int = 3) -> PlantedArchive:
    """One partition, 20 offsets to a segment."""
    archive = planted(folder)
    for _ in range(segments):
        await more(archive)
    return archive


async def more(archive: PlantedArchive) -> RemoteLogSegmentMetadata:
    base = 20 * len(archive.segments)
    return await archive.add([batch(base), batch(base + 10)])


def mirrored(source: Path, target: Path, *, cut_over: bool = False, **changes: Any) -> Mirrored:
    """`changes`: of MirrorOptions."""
    options = MirrorOptions(**changes)
    return mirror(Here(), config_of(source), url_of(target), options, cut_over=cut_over)


def deleted(source: Path, target: Path, grace_ms: int = 0) -> Deleted:
    config = config_of(source, archive__retention_grace_ms=grace_ms)
    return delete_moved(Here(), config, url_of(target))


def url_of(folder: Path) -> str:
    return (folder / PREFIX).as_uri()


def objects(folder: Path) -> dict[str, bytes]:
    """Of the archive, without what says whose it is and where its copies are."""
    root = folder / PREFIX
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
        and "~" not in path.name
        and path.name != LAYOUT_OBJECT
        and path.parent != root / "mirrors"
    }


def layout(folder: Path) -> str:
    return (folder / PREFIX / LAYOUT_OBJECT).read_text()


def partition(tp: TopicIdPartition, number: int) -> TopicIdPartition:
    return TopicIdPartition(tp.topic_id, tp.topic, number)
