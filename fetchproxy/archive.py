"""Opens a process's archive: stores and metadata manager, also for one task of a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.topic_writers import log_writers
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.attached_topics import open_archive
from fetchproxy.storage.continued_topics import ContinuedTopics
from fetchproxy.storage.listings import Unlisted
from fetchproxy.storage.remote_storage import RemoteStorage, open_store
from fetchproxy.tls.reloading import upstream_context

T = TypeVar("T")


def metadata_manager(
    config: Config,
    storage: RemoteStorage,
    cluster: Cluster,
    wall_clock_ms: Callable[[], int],
) -> StoreBackedRemoteLogMetadataManager | TopicBasedRemoteLogMetadataManager:
    """The configured RemoteLogMetadataManager; without a cluster, the store-backed one. The caller
    enters it while `storage` and `cluster` are open.
    """
    if config.metadata.manager == "store" or config.archive_only.enabled:
        archive_only = config.archive_only.enabled
        return StoreBackedRemoteLogMetadataManager(
            storage,
            config.metadata,
            collects=not archive_only,
            serves=archive_only,
            looks_at_ends=True,
            read_max_ms=config.store.metadata_read_max_ms,
        )
    tell = partial(log_writers, cluster, config)
    metadata_log = KafkaMetadataLog(cluster, config.cluster, config.metadata, wall_clock_ms, tell)
    return TopicBasedRemoteLogMetadataManager(
        metadata_log, storage, config.metadata, wall_clock_ms, config.store.metadata_read_max_ms
    )


# An archive that is opened for one task: on the driver for planning, on an executor for the work.
#
# Jobs are plain functions for their callers and coroutines inside. `in_loop` connects the two.


class StoredArchive(NamedTuple):
    """The archive, with the metadata in the store."""

    storage: RemoteStorage
    rlmm: StoreBackedRemoteLogMetadataManager


class ManagedArchive(NamedTuple):
    """The archive, with the configured metadata manager."""

    storage: RemoteStorage
    rlmm: RemoteLogMetadataManager
    cluster: Cluster


def wall_clock_ms() -> int:
    """Epoch milliseconds for stored timestamps, never for durations."""
    return time.time_ns() // 1_000_000


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, even if the caller's thread already runs a loop (in a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)  # a signal ends it at once
    with ThreadPoolExecutor(1, thread_name_prefix="job") as threads:
        return threads.submit(asyncio.run, work).result()


def store_url(config: Config) -> str:
    """Raises ConfigError if `store.url` is not set."""
    if config.store.url is None:
        raise ConfigError("store.url is not set; use --store URL (or FETCHPROXY_STORE_URL)")
    return config.store.url


def for_executors(config: Config) -> Config:
    """The configuration without per-process folders: a host runs several tasks at once."""
    metadata = config.metadata.model_copy(update={"cache_dir": None})
    archive = config.archive.model_copy(update={"local_index_dir": None})
    return config.model_copy(update={"metadata": metadata, "archive": archive})


def open_cluster(config: Config, continued: ContinuedTopics | None = None) -> Cluster:
    """A cluster that the caller enters. `continued`: see `Cluster`. Raises ConfigError."""
    tls = upstream_context(config.cluster, config.tls)
    return Cluster(config.cluster, tls=tls, continued=continued)


@asynccontextmanager
async def stored_archive(
    config: Config, *, writes: bool = False, mends: bool = False
) -> AsyncIterator[StoredArchive]:
    """`writes`: the archive must belong to the configured metadata manager. `mends`: what is
    written can be derived from the segments, so any manager will do. In both cases, no write
    succeeds after the archive has changed hands.

    Raises ConfigError, RemoteStorageError.
    """
    storage = open_archive(config) if writes else open_store(store_url(config), config.store)
    rlmm = StoreBackedRemoteLogMetadataManager(
        storage, config.metadata, read_max_ms=config.store.metadata_read_max_ms
    )
    async with storage, rlmm:
        if writes or mends:
            await storage.identity.follow_owner()
        yield StoredArchive(storage, rlmm)


@asynccontextmanager
async def managed_archive(
    config: Config, *, create: bool = False, must_exist: bool = True
) -> AsyncIterator[ManagedArchive]:
    """`create`, `must_exist`: see `open_archive`.

    Raises ConfigError, RemoteStorageError, ClusterError.
    """
    async with (
        open_archive(config, create=create, must_exist=must_exist) as storage,
        open_cluster(config, storage.objects.continued) as cluster,
        metadata_manager(config, storage, cluster, wall_clock_ms) as rlmm,
    ):
        yield ManagedArchive(storage, rlmm, cluster)


async def stored_partitions(
    config: Config, topic: str | None
) -> tuple[list[TopicIdPartition], Unlisted]:
    """The partitions of `topic` (None: of all) in the store, and the topics whose partitions cannot
    be listed. Raises as `stored_archive`.
    """
    unlisted: Unlisted = {}
    async with stored_archive(config) as archive:
        every = await archive.rlmm.list_partitions(unlisted)
    tps = [tp for tp in every if topic in (None, tp.topic)]
    return tps, {name: error for name, error in unlisted.items() if topic in (None, name)}
