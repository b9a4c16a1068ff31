"""The job `mirror`: copies an archive to another store, or moves it there.

`auditing.mirroring` decides which objects are copied, in which order, and how they are checked.
`auditing.moving` decides which place is the archive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import structlog

from fetchproxy.archive import for_executors, in_loop, store_url, wall_clock_ms
from fetchproxy.auditing import moving
from fetchproxy.auditing.mirroring import (
    MirroredPartition,
    MirrorOptions,
    MirrorSide,
    PartitionMirror,
    open_side,
)
from fetchproxy.config.schema import Config
from fetchproxy.errors import ArchiveMismatch, ConfigError, FetchProxyError, StorageDenied
from fetchproxy.jobs.runner import ItemFailure, Report, Runner, StoreWork, not_done, not_listed
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.archive_identity import ArchiveIdentity
from fetchproxy.storage.listings import Unlisted
from fetchproxy.storage.stores.registry import is_within, same_place, without_secrets
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.spool import Spool

log = structlog.get_logger(__name__)

T = TypeVar("T")
OnMirrored = Callable[[MirroredPartition], None]
MirrorResources = tuple[MirrorSide, MirrorSide, Spool, CopyPace]


@dataclass(frozen=True, slots=True)
class MirrorStores:
    """The store of the archive, `config.store.url`, and that of its copy, `to`."""

    config: Config
    to: str

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[MirrorSide, MirrorSide]]:
        config = self.config
        async with (
            open_side(store_url(config), config) as source,
            open_side(self.to, config, create=True) as target,
        ):
            yield source, target

    def run(self, work: Callable[[MirrorSide, MirrorSide], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on both stores. Raises as `work`."""

        async def done() -> T:
            async with self.opened() as (source, target):
                return await work(source, target)

        return in_loop(done())


@dataclass(slots=True)
class Mirrored:
    """`not_at_source`: partitions that only the copy has. `cut_over`: the copy is now the archive.
    `refused`: why a requested cut-over was not done.
    """

    partitions: tuple[MirroredPartition, ...] = ()
    failures: tuple[ItemFailure, ...] = ()
    not_at_source: tuple[TopicIdPartition, ...] = ()
    cut_over: bool = False
    refused: str | None = None

    @property
    def is_complete(self) -> bool:
        return not self.failures and not any(partition.source_lost for partition in self.partitions)

    @property
    def has_faults(self) -> bool:
        return any(partition.faults for partition in self.partitions)


def mirror(
    runner: Runner,
    config: Config,
    to: str,
    options: MirrorOptions,
    *,
    cut_over: bool = False,
    on_result: OnMirrored = lambda mirrored: None,
) -> Mirrored:
    """Copy the objects that the copy lacks. `cut_over`: then make the copy the archive, if it is
    complete and no archiver is active at the old place.

    Raises ConfigError, ArchiveMismatch, RemoteStorageError, PipelineFailed.
    """
    if same_place(store_url(config), to):
        raise ConfigError("--from and --to are the same place")
    for inside, inner, outer in (
        ("--to is inside --from", to, store_url(config)),
        ("--from is inside --to", store_url(config), to),
    ):
        if is_within(inner, outer):
            raise ConfigError(f"{inside}: choose a folder or prefix beside it")
    stores = MirrorStores(for_executors(config), to)
    identity = stores.run(partial(_begin_mirror, to))
    if identity is None:
        if not cut_over:
            raise ArchiveMismatch("the archive at --from has already moved to --to")
        return Mirrored(cut_over=True)
    if identity.moved is not None and not cut_over:
        raise ArchiveMismatch(
            "the archive at --from is being moved to --to: finish the move with --cut-over"
        )
    options = replace(options, opens_segments=cut_over)
    outcome = _copy_once(runner, stores, options, on_result)
    return _cut_over(runner, stores, options, identity, outcome) if cut_over else outcome


async def _begin_mirror(to: str, source: MirrorSide, target: MirrorSide) -> ArchiveIdentity | None:
    """The archive's identity. None: the archive has moved already.

    The archive notes the copy, because `keys rewrap` has to know which copies need old keys.
    """
    identity = await moving.begin_mirror(source, target, to)
    if identity.moved is not None and await moving.is_cut_over(target):
        return None
    try:
        await source.objects.note_mirror(without_secrets(to))
    except StorageDenied as error:
        log.warning(
            "mirror_not_noted",
            error=str(error),
            hint="keep the old keys after fetchproxy keys rewrap, because the copy may need them",
        )
    return identity


@dataclass(frozen=True, slots=True)
class _Partitions:
    """`in_archive`: each with the reason why the copy's store cannot hold its topic, or None."""

    in_archive: dict[TopicIdPartition, str | None]
    in_copy: list[TopicIdPartition]
    unlisted: Unlisted  # in one of the stores

    @property
    def fit(self) -> list[TopicIdPartition]:
        return [tp for tp, fault in self.in_archive.items() if fault is None]

    @property
    def failures(self) -> list[ItemFailure]:
        unfit = [
            ItemFailure(str(tp), f"--to cannot hold this topic: {fault}", False)
            for tp, fault in self.in_archive.items()
            if fault is not None
        ]
        return [*unfit, *not_listed(self.unlisted)]


def _copy_once(
    runner: Runner, stores: MirrorStores, options: MirrorOptions, on_result: OnMirrored
) -> Mirrored:
    async def list_both(source: MirrorSide, target: MirrorSide) -> _Partitions:
        unlisted: Unlisted = {}
        source_topics = await source.objects.list_partitions(unlisted=unlisted)
        faults = {tp: target.objects.name_fault(tp.topic, tp.topic_id) for tp in source_topics}
        target_topics = await target.objects.list_partitions(unlisted=unlisted)
        return _Partitions(faults, target_topics, unlisted)

    partitions = stores.run(list_both)
    # The topics go first: then readers of the copy wait for a topic instead of not knowing it.
    stores.run(moving.copy_archive_wide)
    outcome = runner.each(partitions.fit, mirror_work(stores, options), on_result)
    failed_segments = [segment for partition in outcome.results for segment in partition.failed]
    failed_objects = stores.run(moving.copy_archive_wide)
    not_at_source = tuple(
        sorted(
            t
            for t in set(partitions.in_copy) - set(partitions.in_archive)
            if t.topic not in partitions.unlisted
        )
    )
    failures = (*partitions.failures, *outcome.failures, *not_done(failed_segments))
    failures += tuple(ItemFailure(key, str(why), why.retriable) for key, why in failed_objects)
    return Mirrored(outcome.results, failures, not_at_source)


def _cut_over(
    runner: Runner,
    stores: MirrorStores,
    options: MirrorOptions,
    identity: ArchiveIdentity,
    outcome: Mirrored,
) -> Mirrored:
    """Moves the archive to the copy. After any error, the archive stays at the old place."""
    refusal = _refusal(outcome, options)
    if refusal is not None:
        if identity.moved is not None:
            stores.run(lambda source, target: moving.undo_move(source, identity))
        outcome.refused = refusal
        return outcome
    identity_moved = stores.run(partial(_mark_moved, identity, stores.to))
    try:
        last = _copy_once(
            runner, stores, replace(options, compare=False), on_result=lambda mirrored: None
        )
        refusal = _refusal(last, options)
        if refusal is None:
            stores.run(lambda source, target: _hand_over(source, target, identity_moved))
    except FetchProxyError:
        stores.run(lambda source, target: moving.undo_move(source, identity_moved))
        raise
    if refusal is not None:
        stores.run(lambda source, target: moving.undo_move(source, identity_moved))
    _add_first_run(outcome.partitions, last.partitions)
    last.cut_over, last.refused = refusal is None, refusal
    return last


def _refusal(outcome: Mirrored, options: MirrorOptions) -> str | None:
    if not outcome.is_complete:
        return "not everything was copied"
    if outcome.has_faults and not options.with_damaged:
        return (
            "the archive has faults; repair them (`fetchproxy verify --repair`), or add "
            "--with-damaged to move it with its faults"
        )
    return None


async def _mark_moved(
    identity: ArchiveIdentity, to: str, source: MirrorSide, target: MirrorSide
) -> ArchiveIdentity:
    if identity.moved is not None:
        return identity  # marked by an interrupted run
    await moving.check_nobody_archives(source)
    return await moving.mark_moved(source, identity, to, wall_clock_ms())


async def _hand_over(
    source: MirrorSide, target: MirrorSide, identity_moved: ArchiveIdentity
) -> None:
    await moving.check_nobody_archives(source)
    await moving.hand_over(source, target, identity_moved)


def _add_first_run(first: Iterable[MirroredPartition], last: Iterable[MirroredPartition]) -> None:
    """Add the counts and faults of the first run to those of the last run."""
    before = {partition.tp: partition for partition in first}
    for partition in last:
        if (earlier := before.get(partition.tp)) is not None:
            partition.copied += earlier.copied
            partition.bytes_copied += earlier.bytes_copied
            partition.removed += earlier.removed
            partition.overtaken += earlier.overtaken
            partition.faults = list(dict.fromkeys([*earlier.faults, *partition.faults]))


def mirror_work(
    stores: MirrorStores, options: MirrorOptions
) -> StoreWork[MirrorResources, TopicIdPartition, MirroredPartition]:
    """Fails with RemoteStorageError, OSError (the spool's disk)."""
    open_sides = partial(_open_mirror, stores, options)
    work = partial(_mirror_partition, options)
    return StoreWork("mirror", open_sides, work, size=lambda partition: partition.size_bytes)


@asynccontextmanager
async def _open_mirror(
    stores: MirrorStores, options: MirrorOptions
) -> AsyncIterator[MirrorResources]:
    async with stores.opened() as (source, target), Spool(stores.config.archive.spool_dir) as spool:
        yield source, target, spool, CopyPace(lambda: options.bytes_per_s)


async def _mirror_partition(
    options: MirrorOptions, sides: MirrorResources, tp: TopicIdPartition, on_progress: Report
) -> MirroredPartition:
    source, target, spool, pace = sides
    await moving.check_is_mirror(target)
    return await PartitionMirror(source, target, tp, spool, pace, options, on_progress).run()


@dataclass(frozen=True, slots=True)
class Deleted:
    """`wait_ms`: how long readers may still use the old place. If above 0, nothing was deleted."""

    partitions: tuple[moving.DeletedPartition, ...] = ()
    failures: tuple[ItemFailure, ...] = ()
    wait_ms: int = 0

    @property
    def is_complete(self) -> bool:
        return not self.failures and not any(partition.remaining for partition in self.partitions)


def delete_moved(runner: Runner, config: Config, to: str) -> Deleted:
    """Delete the old archive after it has moved to `to` and `archive.retention_grace_ms` have
    passed since. Raises ArchiveMismatch, RemoteStorageError, PipelineFailed.
    """
    stores = MirrorStores(for_executors(config), to)
    since_ms = stores.run(partial(_moved_at_ms, to))
    wait_ms = since_ms + config.archive.retention_grace_ms - wall_clock_ms()
    if wait_ms > 0:
        return Deleted(wait_ms=wait_ms)

    async def partitions(source: MirrorSide, target: MirrorSide) -> list[TopicIdPartition]:
        return await source.objects.list_partitions()

    work = StoreWork(
        "mirror",
        stores.opened,
        moving.delete_moved_partition,
        size=lambda partition: partition.size_bytes,
    )
    outcome = runner.each(stores.run(partitions), work)
    unread = not_done(condition for partition in outcome.results for condition in partition.unread)
    deleted = Deleted(outcome.results, (*outcome.failures, *unread))
    if deleted.is_complete:
        stores.run(lambda source, target: moving.delete_archive_wide(source))
    return deleted


async def _moved_at_ms(to: str, source: MirrorSide, target: MirrorSide) -> int:
    identity = await moving.begin_mirror(source, target, to)
    if identity.moved is None or not await moving.is_cut_over(target):
        raise ArchiveMismatch("the archive at --from has not moved to --to")
    return identity.moved.at_ms
