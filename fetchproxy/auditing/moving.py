"""Decides which of two places is the archive, during and after a copy from one to the other.

Archivers may write to at most one of them. The copy stays marked as a mirror until the archive has
been marked as moved and everything written until then is copied (docs/adr/0057).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fetchproxy.auditing.completeness import CompletenessCheck
from fetchproxy.auditing.mirroring import (
    MIRROR_RANGE_BYTES,
    MirrorSide,
    by_segment,
    opening_error,
    put_if_other,
    same_objects,
)
from fetchproxy.auditing.segment_verifier import SegmentVerifier
from fetchproxy.auditing.verify import metadata_faults
from fetchproxy.errors import (
    ArchiveMismatch,
    ArchiveMissing,
    DamagedObject,
    ObjectNotFound,
)
from fetchproxy.metadata.archiver_positions import HEARTBEAT_INTERVAL_S
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition, Kind, of_object
from fetchproxy.segments.object_keys import (
    LAYOUT_OBJECT,
    SegmentFile,
    archive_wide_folders,
    archivers_folder,
    is_partition_object_key,
    own_folders,
    parse_segment_key,
    parse_topic_folder,
    topic_cluster_key,
)
from fetchproxy.segments.transaction_check import TxnCheck
from fetchproxy.storage.archive_identity import (
    CREATION_SETTLE_S,
    MIRROR,
    ArchiveIdentity,
    Moved,
    encode_identity,
    read_identity,
)
from fetchproxy.storage.stores.object_store import StoredObject
from fetchproxy.storage.stores.registry import same_place
from fetchproxy.storage.stores.retries import each_object_alone

# An archiver at work changes its object in each beat.
HEARD_WITHIN_S = 3 * HEARTBEAT_INTERVAL_S
NotCopied = list[tuple[str, DamagedObject]]


async def begin_mirror(source: MirrorSide, target: MirrorSide, to: str) -> ArchiveIdentity:
    """The archive's identity. The target is then marked as a mirror of the archive, or is already
    the archive itself. Raises ArchiveMissing, ArchiveMismatch, RemoteStorageError.
    """
    identity = await read_identity(source.store, source.prefix)
    if identity is None:
        raise ArchiveMissing("there is no archive at --from")
    if identity.is_mirror:
        raise ArchiveMismatch("--from is itself a mirror: use the URL of its archive")
    if identity.moved is not None and not same_place(identity.moved.to, to):
        raise ArchiveMismatch(f"the archive at --from has moved to {identity.moved.to}")
    target_identity = await read_identity(target.store, target.prefix)
    if target_identity is None:
        target_identity = await _make_mirror(target, identity)
    if target_identity.is_mirror and _was_of_earlier_owner(target_identity, identity):
        content = encode_identity(replace(target_identity, cluster_id=identity.cluster_id))
        await target.store.put(target.prefix + LAYOUT_OBJECT, content)
        target_identity = replace(target_identity, cluster_id=identity.cluster_id)
    if _differ(identity.generation, target_identity.generation) or _differ(
        identity.cluster_id, target_identity.cluster_id
    ):
        raise ArchiveMismatch("--to has another archive, or a mirror of another one")
    if not target_identity.is_mirror and identity.moved is None:
        raise ArchiveMismatch(
            "--to is not a mirror but an archive that archivers may write to: use an empty place"
        )
    return identity


def _was_of_earlier_owner(mirror: ArchiveIdentity, archive: ArchiveIdentity) -> bool:
    """Whether the archive has been handed over to another cluster since the mirror was made."""
    same = archive.generation is not None and mirror.generation == archive.generation
    return same and archive.handed_over is not None and mirror.cluster_id != archive.cluster_id


def _differ(one: object, other: object) -> bool:
    return None not in (one, other) and one != other


async def _make_mirror(target: MirrorSide, identity: ArchiveIdentity) -> ArchiveIdentity:
    async for name in target.store.list_folders(target.prefix):
        if parse_topic_folder(name) is not None:
            raise ArchiveMismatch(
                f"--to has objects of an archive ({name}/) and no {LAYOUT_OBJECT}: use an empty "
                "place"
            )
    content = encode_identity(ArchiveIdentity(identity.generation, identity.cluster_id, MIRROR))
    await target.store.put_new(target.prefix + LAYOUT_OBJECT, content)
    made = await read_identity(target.store, target.prefix)
    if made is None:
        raise ArchiveMissing(f"{LAYOUT_OBJECT} was written to --to, but is not there")
    return made


async def is_cut_over(target: MirrorSide) -> bool:
    target_identity = await read_identity(target.store, target.prefix)
    return target_identity is not None and not target_identity.is_mirror


async def check_is_mirror(target: MirrorSide) -> None:
    """Before objects are written or deleted there. Another run may have made it the archive, and a
    restored cluster may go on in it. Raises ArchiveMismatch, RemoteStorageError.
    """
    identity = await read_identity(target.store, target.prefix)
    if identity is None or not identity.is_mirror:
        raise ArchiveMismatch(
            "--to is not a mirror any more: it was made the archive, or removed, while this "
            "command ran"
        )


async def copy_archive_wide(source: MirrorSide, target: MirrorSide) -> NotCopied:
    """Copy the objects that belong to no partition. Returns those that the archive's store does not
    give out. Raises ArchiveMismatch, RemoteStorageError.
    """
    await check_is_mirror(target)
    with each_object_alone():
        not_copied = await _copy(source, target, await _topic_objects(source))
        for folder in archive_wide_folders(""):
            not_copied += await _copy_folder(source, target, folder)
    return not_copied


async def _copy_folder(source: MirrorSide, target: MirrorSide, folder: str) -> NotCopied:
    source_objects = await source.objects_below(source.prefix + folder)
    copied_objects = await target.objects_below(target.prefix + folder)
    not_copied = await _copy(source, target, source_objects)
    for relative_key in copied_objects.keys() - source_objects.keys():
        await target.store.delete(target.prefix + relative_key)
    return not_copied


async def _copy(source: MirrorSide, target: MirrorSide, relative_keys: Iterable[str]) -> NotCopied:
    not_copied: NotCopied = []
    for relative_key in relative_keys:
        try:
            content = await source.store.get(source.prefix + relative_key)
        except ObjectNotFound:
            continue  # the topic's cluster was never recorded, or the object was deleted
        except DamagedObject as error:  # not given out, or larger than any object of its kind
            not_copied.append((source.prefix + relative_key, error))
            continue
        await put_if_other(target, relative_key, content)
    return not_copied


async def _topic_objects(side: MirrorSide) -> list[str]:
    names = [name async for name in side.store.list_folders(side.prefix)]
    topics = [topic for name in names if (topic := parse_topic_folder(name)) is not None]
    return [topic_cluster_key("", *topic) for topic in topics]


async def check_nobody_archives(source: MirrorSide) -> None:
    """Raises ArchiveMismatch if an archiver is active. It takes HEARD_WITHIN_S to find out."""
    folder = archivers_folder(source.prefix)
    before = await source.objects_below(folder)
    await asyncio.sleep(HEARD_WITHIN_S)
    after = await source.objects_below(folder)
    active_archivers = [
        relative_key for relative_key in after if before.get(relative_key) != after[relative_key]
    ]
    if active_archivers:
        keys = ", ".join(sorted(active_archivers))
        raise ArchiveMismatch(
            f"an archiver is still running at --from ({keys}): stop it, and run this again"
        )


async def mark_moved(
    source: MirrorSide, identity: ArchiveIdentity, to: str, now_ms: int
) -> ArchiveIdentity:
    """Mark the archive as moved: no archiver starts there, and a running one ends in a minute."""
    moved_identity = replace(identity, manager=None, moved=Moved(to, now_ms, identity.manager))
    await source.store.put(source.prefix + LAYOUT_OBJECT, encode_identity(moved_identity))
    await asyncio.sleep(CREATION_SETTLE_S)
    return await _check_marked(source, moved_identity)


async def undo_move(side: MirrorSide, moved_identity: ArchiveIdentity) -> None:
    """Mark `side` as the archive again, with its generation and manager."""
    assert moved_identity.moved is not None
    identity = replace(moved_identity, manager=moved_identity.moved.manager, moved=None)
    await side.store.put(side.prefix + LAYOUT_OBJECT, encode_identity(identity))


async def hand_over(
    source: MirrorSide, target: MirrorSide, moved_identity: ArchiveIdentity
) -> None:
    """Mark the target as the archive, with the same identity. It knows the other copies, too."""
    await _check_marked(source, moved_identity)
    assert moved_identity.moved is not None
    for url, _ in await source.objects.list_mirrors():
        if not same_place(url, moved_identity.moved.to):
            await target.objects.note_mirror(url)
    await undo_move(target, moved_identity)


async def _check_marked(source: MirrorSide, moved_identity: ArchiveIdentity) -> ArchiveIdentity:
    if await read_identity(source.store, source.prefix) != moved_identity:
        raise ArchiveMismatch(
            f"another process has written the {LAYOUT_OBJECT} of --from: stop it, and run this "
            "again"
        )
    return moved_identity


# Deletion of the objects that a moved archive has left behind. A segment is deleted only if the new
# place has the same log and can read it, or has deleted it since by its retention, as its records
# show.


@dataclass(slots=True)
class DeletedPartition:
    """`remaining`: objects that are not deleted. `faults`: why the whole partition is not deleted.
    `unread`: objects that could not be compared.
    """

    tp: TopicIdPartition
    objects: int = 0
    size_bytes: int = 0
    remaining: list[str] = field(default_factory=list)
    faults: list[Condition] = field(default_factory=list)
    unread: list[Condition] = field(default_factory=list)


async def delete_moved_partition(
    sides: tuple[MirrorSide, MirrorSide],
    tp: TopicIdPartition,
    on_progress: Callable[[int, int], None],
) -> DeletedPartition:
    """`sides`: the old place, the new place. May be repeated. Raises RemoteStorageError."""
    with each_object_alone():
        return await _delete_moved(sides, tp, on_progress)


async def _delete_moved(
    sides: tuple[MirrorSide, MirrorSide],
    tp: TopicIdPartition,
    on_progress: Callable[[int, int], None],
) -> DeletedPartition:
    (source, target), result = sides, DeletedPartition(tp)
    for removal in (
        await metadata_faults(target.storage, target.rlmm, tp),
        await CompletenessCheck(target.objects, target.rlmm, tp).check(),
    ):
        result.faults += removal.faults
        result.unread += removal.unread
    source_objects = await source.partition_objects(tp)
    if result.faults or result.unread:
        result.remaining += sorted(source_objects)
        return result
    copied_objects = await target.partition_objects(tp)
    total = sum(stored_object.size_bytes for stored_object in source_objects.values())
    for files in by_segment(source_objects).values():
        segment = dict(files.values())
        try:
            may_go = await _may_be_deleted(source, target, segment, copied_objects)
        except DamagedObject as error:
            may_go = False
            key = source.prefix + min(segment)
            result.unread.append(
                of_object(Kind.OBJECT_NOT_READABLE, tp, key, str(error), retriable=True)
            )
        if not may_go:
            result.remaining += sorted(segment)
            continue
        # Delete the metadata first, so no reader looks for the other objects.
        for relative_key in sorted(
            segment, key=lambda p: not p.endswith(f".{SegmentFile.METADATA}")
        ):
            await source.store.delete(source.prefix + relative_key)
            result.objects += 1
            result.size_bytes += segment[relative_key].size_bytes
        on_progress(result.size_bytes, total)
    if not result.remaining:
        for relative_key in source_objects:
            if is_partition_object_key("", relative_key):
                await source.store.delete(source.prefix + relative_key)
                result.objects += 1
    return result


async def _may_be_deleted(
    source: MirrorSide,
    target: MirrorSide,
    segment: Mapping[str, StoredObject],
    copied_objects: Mapping[str, StoredObject],
) -> bool:
    deletable = [
        relative_key
        for relative_key in segment
        if relative_key.endswith(f".{SegmentFile.METADATA}")
    ]
    if not deletable:
        return _is_leftover(target, segment)
    if deletable[0] not in copied_objects:
        return True  # the new place has no faults, so it has deleted this segment
    others = [
        relative_key
        for relative_key in segment
        if relative_key not in deletable
        and not await same_objects(
            source.store, source.prefix + relative_key, target.store, target.prefix + relative_key
        )
    ]
    return await _is_readable(target, deletable[0], others)


async def _is_readable(target: MirrorSide, log_key: str, others: Sequence[str]) -> bool:
    """Whether the segment can be read at the new place. Raises DamagedObject if its key is missing.

    `others`: objects that are not the same as at the old place. Since the cut-over the new place
    may have replaced small ones (`keys rewrap`, `verify --repair`): then everything is checked.
    """
    key = parse_segment_key("", log_key)
    assert key is not None
    segments = target.rlmm.list_remote_log_segments(key.segment_id.topic_id_partition)
    same_id = [segment for segment in segments if segment.segment_id == key.segment_id]
    if not same_id or any(relative_key.endswith(f".{SegmentFile.LOG}") for relative_key in others):
        return False
    if not others:
        error = await opening_error(target, same_id[0])
        if isinstance(error, DamagedObject):
            raise error
        return error is None
    verifier = SegmentVerifier(
        target.rsm, same_id[0], TxnCheck(), MIRROR_RANGE_BYTES, lambda read: None
    )
    await verifier.verify(continues=False)
    return not verifier.faults and not verifier.unread


def _is_leftover(target: MirrorSide, segment: Mapping[str, StoredObject]) -> bool:
    """True: leftovers of a crash. A log without metadata is worthless only if its base offset was
    deleted or is in another segment.
    """
    for relative_key in segment:
        key = parse_segment_key("", relative_key)
        if key is not None and key.file is SegmentFile.LOG:
            view = target.rlmm.view(key.segment_id.topic_id_partition)
            offset = key.base_offset
            return view is not None and (offset < view.raised_log_start or view.covers(offset))
    return True


async def delete_archive_wide(source: MirrorSide) -> None:
    """Run after all partitions are deleted. The object that marks the archive is deleted last."""
    for relative_key in await _topic_objects(source):
        await source.store.delete(source.prefix + relative_key)
    for folder in (*archive_wide_folders(source.prefix), *own_folders(source.prefix)):
        for relative_key in await source.objects_below(folder):
            await source.store.delete(source.prefix + relative_key)
    await source.store.delete(source.prefix + LAYOUT_OBJECT)
