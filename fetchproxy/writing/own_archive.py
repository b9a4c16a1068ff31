"""Checks that the archive at `store.url` exists and belongs to this cluster and configuration."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from uuid import UUID

import structlog

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.config.schema import Config
from fetchproxy.errors import (
    ArchiveMismatch,
    ArchiveMissing,
    ClusterError,
    ConfigError,
    RemoteStorageError,
)
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.storage.archive_identity import AT_ONCE_S, ArchiveIdentity, OwnIdentity
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.archive_health import mirror_in_words
from fetchproxy.writing.deletion.retention import effective_retention
from fetchproxy.writing.discovery import matching_topics, partitions_of

# A marker file beside the spool records each place where this machine's archivers have seen an
# archive. It tells a missing mount, or an emptied bucket, from a place where an archive is yet to
# begin. A machine that loses the files loses only that warning. The spool's disk may hang, so the
# three functions of the marker run on a thread.

log = structlog.get_logger(__name__)

_NAME_START = "fetchproxy-archive-seen-"
# The listener waits at most this time (s), because clients wait for it. If the check takes longer,
# `run` ends it.
AT_START_MAX_S = 3.0
_RETRY_PAUSE_S = 1.0
# Time (s) within which the writer notices a lost archive. Each check is one small read.
ARCHIVE_LOOK_INTERVAL_S = 30.0
_OF_THE_ARCHIVE: Mapping[Kind, type[Exception]] = {
    Kind.ARCHIVE_MISSING: ArchiveMissing,
    Kind.ARCHIVE_MISMATCH: ArchiveMismatch,
}


def _marker(spool_dir: Path | None, cluster_id: str | None, url: str) -> Path:
    """`spool_dir`: the archiver's. `cluster_id`: the same place may serve another cluster."""
    name = hashlib.sha256(f"{cluster_id or ''}\n{url}".encode()).hexdigest()[:32]
    return (spool_dir or Path(tempfile.gettempdir())) / f"{_NAME_START}{name}"


def _has_marker_of_user(marker: Path) -> bool:
    """True if an archiver of this user has created the marker."""
    with suppress(OSError):
        return os.lstat(marker).st_uid == os.geteuid()
    return False


def _remember(marker: Path) -> None:
    """Create the marker. A failure is logged, and then a missing mount is not noticed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(marker, flags, 0o600))
    except OSError as error:
        log.warning(
            "archive_place_not_recorded",
            error=str(error),
            hint="let this user write to archive.spool_dir",
        )


@dataclass(frozen=True, slots=True)
class _Examined:
    """`there`: the archive's identity; None: there is none, and this process may make it or does
    without. `here`: the identity that this process gives a new archive.
    """

    there: ArchiveIdentity | None
    here: ArchiveIdentity
    marker: Path


@dataclass(eq=False, repr=False)
class OwnArchive:
    """One for each process; `run` is its task. `archives`: this process writes to the archive.

    A place without an archive may be a mistyped prefix or a missing mount, and readers would skip
    records that only the archive has. So an operator has to confirm (`--create`) that there is none
    if this machine has seen one, or if brokers lack records that archivers delete there
    (docs/adr/0037).
    """

    config: Config
    storage: RemoteStorage
    rlmm: RemoteLogMetadataManager
    cluster: Cluster
    uuid_factory: Callable[[], UUID]
    _: KW_ONLY
    archives: bool
    create: bool = False
    health: Health = field(default_factory=Health)

    def __post_init__(self) -> None:
        self._identity, self._objects = self.storage.identity, self.storage.objects
        self._place = self.config.store.url or ""
        self._failure: RemoteStorageError | ClusterError | None = None
        self.confirmed = asyncio.Event()

    async def confirm(self) -> None:
        """Returns when the archive exists and is our own. Raises ConfigError, ArchiveMismatch if it
        is not: then no process should run; ArchiveMissing if there is none; RemoteStorageError,
        ClusterError while the store or the brokers do not answer.
        """
        examination = await self.examine()
        if examination.there is None and not self.archives:
            log.warning("archive_missing", error=f"there is no archive at {self._place}")
            self.confirmed.set()  # archive-only starts without an archive
            return
        if examination.there is None:
            if await self._identity.create(examination.here) == examination.here:
                self._log("archive_created", examination.here)
            examination = await self.examine()  # a faster process may have made it
        stored_identity, own_identity = examination.there, examination.here
        if (
            self.archives
            and stored_identity is not None
            and stored_identity.completed(own_identity) != stored_identity
        ):
            await self._identity.state(stored_identity.completed(own_identity))
            self._log("archive_claimed", own_identity)
        if self.archives:
            await asyncio.to_thread(_remember, examination.marker)
        self._report_mirror()
        self.confirmed.set()

    async def examine(self) -> _Examined:
        """What is there, and whether it is our own. Writes nothing. Raises as `confirm`."""
        stored_identity = await self._identity.look()
        if stored_identity is None and not self.archives:
            await self._identity.check()
        by_cluster = not self.config.archive_only.enabled
        cluster_id = await self.cluster.cluster_id() if by_cluster else None
        own_identity = ArchiveIdentity(
            self.uuid_factory(), cluster_id, self.config.metadata.recorded_name
        )
        spool_dir = self.config.archive.spool_dir
        marker = await asyncio.to_thread(_marker, spool_dir, cluster_id, self._place)
        was_seen = self.archives and await asyncio.to_thread(_has_marker_of_user, marker)
        if stored_identity is None:
            if self.archives:
                await self._check_none_expected(was_seen)
            return _Examined(None, own_identity, marker)
        stored_identity.check_is_of_cluster(cluster_id)
        self._identity.belongs_to(cluster_id)
        await self._objects.renew_continued_topics()  # before anybody asks for the topics' logs
        if self.archives and not self.create and not was_seen:
            await self._check_has_what_was_trimmed()
        return _Examined(stored_identity, own_identity, marker)

    @staticmethod
    def _log(event: str, identity: ArchiveIdentity) -> None:
        log.info(event, cluster_id=identity.cluster_id, metadata_manager=identity.manager)

    async def at_start(self) -> None:
        """Leaves errors that may pass to `run`. Raises ConfigError, ArchiveMismatch."""
        try:
            async with asyncio.timeout(AT_START_MAX_S):
                await self.confirm()
        except ArchiveMismatch:
            raise
        except (RemoteStorageError, ClusterError, TimeoutError):
            return  # `run` tries again and reports the error

    async def run(self) -> None:
        """Confirms the archive, then checks for ever that it is there. Raises as `at_start`."""
        while not self.confirmed.is_set():
            await self._try(self.confirm)
            if not self.confirmed.is_set():
                await asyncio.sleep(_RETRY_PAUSE_S)
        is_published = await self._try(self._tell)
        while True:
            await asyncio.sleep(ARCHIVE_LOOK_INTERVAL_S)
            stored_identity = await self._try(self._look)
            if stored_identity and (
                not is_published or self.health.reported(Kind.PARTITIONS_UNKNOWN)
            ):
                is_published = await self._try(self._tell)

    async def _look(self) -> None:
        """A mirror becomes the archive when the archive moves."""
        if self._identity.is_mirror:
            await self._identity.look()
            self._report_mirror()
        await self._identity.check_still_there()

    def _report_mirror(self) -> None:
        mirror_conditions = [mirror_in_words(self._place)] if self._identity.is_mirror else []
        self.health.keep(Kind.MIRROR_READ, mirror_conditions)

    async def _try(self, look: Callable[[], Awaitable[None]]) -> bool:
        """False: it failed. An error that may pass is noted."""
        try:
            await look()
        except (RemoteStorageError, ClusterError) as error:
            if isinstance(error, ArchiveMismatch) and not self.confirmed.is_set():
                raise
            self._note(error)
            return False
        self._note(None)
        return True

    def _note(self, error: RemoteStorageError | ClusterError | None) -> None:
        """Report a missing or foreign archive; only log an outage, which its callers report."""
        for kind, of_it in _OF_THE_ARCHIVE.items():
            self.health.keep(
                kind, [Condition(kind, str(error))] if isinstance(error, of_it) else []
            )
        of_the_archive = isinstance(error, tuple(_OF_THE_ARCHIVE.values()))
        if error is not None and not of_the_archive and str(error) != str(self._failure):
            away = isinstance(error, RemoteStorageError)
            event = "store_unreachable" if away else "brokers_unreachable"
            log.warning(event, error=str(error))
        self._failure = error

    async def _tell(self) -> None:
        """Report problems that otherwise the first reader would find."""
        # The store first: a new copy is in the topic before it is in the store.
        by_topic = self.config.metadata.manager == "topic"
        stored_tps = await self._objects.list_partitions() if by_topic else []
        partitions = set(await self.rlmm.list_partitions())
        log.info("archive_found", partitions=len(partitions))
        unknown = [tp for tp in stored_tps if tp not in partitions]
        if not unknown:
            self.health.clear(Kind.PARTITIONS_UNKNOWN)
            return
        message = (
            f"the metadata topic lacks {len(unknown)} partitions of the store, such as "
            f"{unknown[0]}: they can be neither read nor archived; run fetchproxy restore"
        )
        condition = Condition(Kind.PARTITIONS_UNKNOWN, message)
        first = str(unknown[0])
        self.health.report(condition, partitions=len(unknown), first=first, remedy=condition.remedy)

    async def _check_none_expected(self, was_seen: bool) -> None:
        if self.config.metadata.manager == "topic" and list(await self.rlmm.list_partitions()):
            raise ConfigError(
                f"store.url: there is no archive at {self._place}, and the metadata topic "
                f"{self.config.metadata.topic_name} has segments of an archive; correct "
                "store.url, or use another metadata.topic_name for a new archive"
            )
        if self.create:
            return
        if was_seen:
            raise ConfigError(
                f"store.url: there is no archive at {self._place} any more. Is a mount missing, "
                "or were its objects deleted? To create a new archive there, use --create"
            )
        await self._check_nothing_trimmed(f"there is no archive at {self._place}", frozenset())

    async def _check_has_what_was_trimmed(self) -> None:
        """For a place new to this machine: it may be another archive of the same cluster."""
        topic_ids = {tp.topic_id for tp in await self.rlmm.list_partitions()}
        message_start = f"the archive at {self._place} has none of the topics of archive.topics"
        await self._check_nothing_trimmed(message_start, topic_ids)

    async def _check_nothing_trimmed(self, message_start: str, topic_ids: Set[UUID]) -> None:
        """Archivers trim only archived records. `topic_ids`: the topics of this archive."""
        archive, metadata_topic = self.config.archive, self.config.metadata.topic_name
        topics = matching_topics(archive, await self.cluster.topics(0), metadata_topic)
        if not topic_ids.isdisjoint(topic.topic_id for topic in topics):
            return
        tps = partitions_of([topic for topic in topics if await self._trims(topic)])
        now = asyncio.get_running_loop().time()
        log_offsets = await self.cluster.fetch_log_offsets(tps, not_older_than=now)
        for tp, offsets in sorted(log_offsets.items()):
            if isinstance(offsets, ClusterError):
                raise offsets
            if offsets.log_start_offset > 0:
                raise ConfigError(
                    f"store.url: {message_start}. The brokers have no records of {tp} below offset "
                    f"{offsets.log_start_offset}; with local_retention these may be only in an "
                    "archive. Is store.url correct? To create a new archive there, use --create"
                )

    async def _trims(self, topic: TopicInfo) -> bool:
        archive, settings = self.config.archive, None
        if archive.follow_topic_retention:
            settings = await self.cluster.topic_config(topic.name)
        return effective_retention(archive, topic.name, settings).trims_locally


async def check_is_own_archive(storage: RemoteStorage, cluster: Cluster) -> None:
    """For a job that works for `cluster`, before it looks up topics. From now on each of its writes
    is checked, too. Raises ArchiveMismatch, RemoteStorageError, ClusterError.
    """
    identity, objects = storage.identity, storage.objects
    identity.belongs_to(await cluster.cluster_id())
    await identity.check_owner(AT_ONCE_S)
    await objects.renew_continued_topics()


async def state_metadata_topic(identity: OwnIdentity, topic_name: str) -> None:
    """State that the rebuilt metadata topic is valid now. Raises ArchiveMismatch at a mirror."""
    identity_seen = await identity.look()
    if identity_seen is not None:
        identity_seen.check_is_the_archive()
    await identity.state(replace(identity_seen or ArchiveIdentity(), manager=f"topic {topic_name}"))
