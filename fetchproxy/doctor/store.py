"""Checks of the store, by a probe object of doctor's own that it removes again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from uuid import uuid4

from fetchproxy.archive import metadata_manager, store_url
from fetchproxy.doctor.installation import (
    NOTHING,
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
    NotChecked,
    Passed,
    from_brokers,
    from_store,
)
from fetchproxy.doctor.topics import CLOCK_DIFFERS_MAX_MS
from fetchproxy.errors import (
    ArchiveMissing,
    ClusterError,
    ObjectNotFound,
    RemoteStorageError,
)
from fetchproxy.model import ByteRange
from fetchproxy.storage.archive_identity import check_listings, read_identity
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.locations import FileLocation
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.storage.stores.registry import parse_store_url
from fetchproxy.storage.stores.retries import tried_once
from fetchproxy.writing.own_archive import OwnArchive

# Not all bytes alike, so that a wrong range shows.
_PROBE = bytes(range(256)) * 16
_RANGE = ByteRange(300, 2_000)
_LATENCY_READS = 5
_LATENCY_MAX_MS = 1_000
_CLEAN_UP_MAX_S = 5.0


async def _responds(installation: Installation) -> Passed | Sequence[Finding]:
    storage = await _open_storage(installation)
    with tried_once():
        identity = await read_identity(storage.store, installation.prefix)
    return NOTHING if identity is not None else Passed("there is no archive yet")


def _is_to_be_made(url: str) -> bool:
    """Whether the folder is absent, and the first write can make it. Blocks for the disk."""
    location = parse_store_url(url)
    if not isinstance(location, FileLocation) or location.root.exists():
        return False
    return can_create(location.root)


async def _open_storage(installation: Installation) -> RemoteStorage:
    """Raises NotChecked while only a write could make the store's folder."""
    storage = await installation.storage()
    if installation.archives and await asyncio.to_thread(
        _is_to_be_made, store_url(installation.config)
    ):
        raise NotChecked("its folder does not exist yet; the first archiver creates it")
    return storage


def can_create(folder: Path) -> bool:
    """Whether this user can make the folder, or write in it. Blocks for the disk."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


async def _is_our_own(installation: Installation) -> Sequence[Finding]:
    storage = await _open_storage(installation)
    identity, objects = storage.identity, storage.objects
    with tried_once():
        stored_identity = await identity.look()
    if installation.config.archive_only.enabled:
        return NOTHING
    cluster = await installation.cluster()
    cluster_id = await from_brokers(cluster.cluster_id())
    if stored_identity is not None:
        stored_identity.check_is_of_cluster(cluster_id)
        await from_store(objects.renew_continued_topics())
        cluster.continued.add(objects.continued.log_ids)
    if installation.config.metadata.manager == "topic":  # whose manager would make its topic
        return NOTHING
    rlmm = metadata_manager(installation.config, storage, cluster, installation.wall_clock_ms)
    own_archive = OwnArchive(
        installation.config, storage, rlmm, cluster, uuid4, archives=installation.archives
    )
    try:
        with tried_once():
            async with rlmm:
                await own_archive.examine()
    except ArchiveMissing:
        return NOTHING  # the next check says so
    except ClusterError as error:
        raise NotChecked(f"the brokers did not list their topics ({error})") from error
    return NOTHING


async def _is_there(installation: Installation) -> Sequence[Finding]:
    storage = await _open_storage(installation)
    if installation.archives:
        raise DoesNotApply("the first archiver creates it")
    if await from_store(read_identity(storage.store, installation.prefix)) is not None:
        return NOTHING
    return [Finding(f"there is no archive at {installation.words()['store']}")]


# --- what needs the right to write ---


@asynccontextmanager
async def _probe(
    installation: Installation, name: str = "probe"
) -> AsyncIterator[tuple[ObjectStore, str]]:
    """The store, and the key of an object that is removed afterwards. Raises NotChecked for a
    process that only reads.
    """
    if not installation.archives:
        raise DoesNotApply("a process that does not archive only reads")
    store = (await _open_storage(installation)).store
    key = f"{installation.prefix}doctor.{installation.id}/{name}"  # no topic's name
    try:
        with tried_once():
            yield store, key
    finally:
        # The check of deletions says if this fails.
        with suppress(RemoteStorageError, TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_MAX_S):
                await store.delete(key)


async def _can_be_written(installation: Installation) -> Sequence[Finding]:
    async with _probe(installation) as (store, key):
        await store.put(key, _PROBE)
        content = await store.get(key)
    same = content == _PROBE
    return (
        NOTHING
        if same
        else [Finding(f"{len(content)} bytes came back, not the ones that were written")]
    )


async def _ranges_are_exact(installation: Installation) -> Sequence[Finding]:
    async with _probe(installation) as (store, key):
        await store.put(key, _PROBE)
        content = await store.get_range(key, _RANGE)
    if content == _PROBE[_RANGE.start : _RANGE.end]:
        return NOTHING
    return [
        Finding(f"a read of {_RANGE.length} bytes returned {len(content)} bytes, or the wrong ones")
    ]


async def _listings_are_complete(installation: Installation) -> Sequence[Finding]:
    async with _probe(installation) as (store, _):
        await check_listings(store, installation.prefix)
    return NOTHING


async def _keeps_what_is_there(installation: Installation) -> Sequence[Finding]:
    async with _probe(installation, "new") as (store, key):
        first = await store.put_new(key, _PROBE)
        second = await store.put_new(key, b"another")
        content = await store.get(key)
    if first and not second and content == _PROBE:
        return NOTHING
    return [Finding("the second of two conditional writes replaced the first")]


async def _can_be_deleted(installation: Installation) -> Sequence[Finding]:
    async with _probe(installation) as (store, key):
        await store.put(key, _PROBE)
        await store.delete(key)
        try:
            await store.get(key)
        except ObjectNotFound:
            return NOTHING
    return [Finding("the object is still there after its deletion was confirmed")]


# --- what the store tells ---


async def _clocks_agree(installation: Installation) -> Sequence[Finding]:
    store = (await _open_storage(installation)).store
    before_ms = installation.wall_clock_ms()
    stores_ms = await from_store(store.clock_ms(installation.prefix))
    if stores_ms is None:
        raise DoesNotApply("this store does not report its time")
    after_ms = installation.wall_clock_ms()
    # The response says a time between the two, in whole seconds.
    ahead_ms = before_ms - stores_ms if before_ms > stores_ms else min(after_ms - stores_ms, 0)
    if abs(ahead_ms) <= CLOCK_DIFFERS_MAX_MS:
        return NOTHING
    side = "ahead of" if ahead_ms > 0 else "behind"
    return [Finding(f"this machine's clock is {abs(ahead_ms) // 1000} s {side} the store's")]


async def _is_fast(installation: Installation) -> Passed | Sequence[Finding]:
    store = (await _open_storage(installation)).store
    clock = asyncio.get_running_loop().time
    times_ms: list[float] = []
    for _ in range(_LATENCY_READS):
        begun_at = clock()
        await from_store(read_identity(store, installation.prefix))
        times_ms.append((clock() - begun_at) * 1000)
        if sum(times_ms) > _LATENCY_READS * _LATENCY_MAX_MS:
            break
    middle = median(times_ms)
    if middle <= _LATENCY_MAX_MS:
        return Passed(f"{middle:.0f} ms")
    return [Finding(f"a small read takes {middle:.0f} ms (the median of {len(times_ms)})")]


async def _hazards(installation: Installation, loses: bool) -> Sequence[Finding]:
    store = (await _open_storage(installation)).store
    hazards = await from_store(store.hazards(installation.prefix))
    return [
        Finding(hazard.what, {"remedy": f"`{hazard.remedy}`"})
        for hazard in hazards
        if hazard.loses is loses
    ]


async def _no_rule_deletes(installation: Installation) -> Sequence[Finding]:
    return await _hazards(installation, True)


async def _nothing_keeps(installation: Installation) -> Sequence[Finding]:
    return await _hazards(installation, False)


STORE_CHECKS: Mapping[str, CheckFunction] = {
    "FP0201": _responds,
    "FP0202": _is_our_own,
    "FP0203": _is_there,
    "FP0204": _can_be_written,
    "FP0205": _ranges_are_exact,
    "FP0206": _listings_are_complete,
    "FP0207": _keeps_what_is_there,
    "FP0208": _can_be_deleted,
    "FP0209": _clocks_agree,
    "FP0210": _is_fast,
    "FP0211": _no_rule_deletes,
    "FP0212": _nothing_keeps,
}
