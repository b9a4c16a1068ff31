"""The archive of the lost cluster becomes the archive of the new one.

It is done when the new topics have their ids, and before any partition has a leader that takes
records: first the archive names the new cluster as its owner, from which on it refuses writes of
the old one; then it is looked at again, because the old archiver may have written until then; and
then it records which archived log each topic continues (docs/adr/0090). A restore by padding
records that when the padding is gone, and relies on there being no producers until then. Run again,
it does what is not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from uuid import UUID

from fetchproxy.archive import StoredArchive, stored_archive, wall_clock_ms
from fetchproxy.cluster_restore.plan import FoundTopic, LostTopic
from fetchproxy.config.schema import Config
from fetchproxy.errors import ArchiveMissing, ConfigError, DamagedObject
from fetchproxy.metadata.archiver_positions import HEARTBEAT_INTERVAL_S
from fetchproxy.metadata.journal_tables import read_table
from fetchproxy.observability.logs import utc_text
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments.continued_topic import ContinuedTopic
from fetchproxy.segments.journal import JournalTable, by_partition, log_of
from fetchproxy.storage.archive_identity import ArchiveIdentity, HandedOver
from fetchproxy.storage.archive_objects import ArchiveObjects

# An archiver at work changes its object in each beat; the half is for the request itself.
_BEAT_MAX_S = 1.5 * HEARTBEAT_INTERVAL_S
_TOPICS_AT_ONCE = 16
_NAMED_MAX = 5  # partitions in an error text
_MIRROR = (
    "the store has a mirror and not an archive, so no proxy serves it: to change that, run "
    "`fetchproxy mirror --cut-over`, and then the same command again"
)


class ArchiveHandover:
    """`identity`: of the archive, as found. `beats`: the version of each archiver's object, by key.
    `take_over`: also from an archiver that is at work.
    """

    def __init__(
        self,
        archive: StoredArchive,
        identity: ArchiveIdentity,
        cluster_id: str,
        beats: Mapping[str, str],
        *,
        take_over: bool,
    ) -> None:
        self._identity = identity
        storage, self._rlmm = archive
        self._own_identity, self._objects = storage.identity, storage.objects
        self._cluster_id = cluster_id
        self._beats = beats
        self._listed_at = asyncio.get_running_loop().time()
        self._take_over = take_over
        self._continued = 0

    @property
    def _is_owner(self) -> bool:
        return self._identity.cluster_id == self._cluster_id

    def in_words(self) -> str:
        """What `run` will do."""
        if self._identity.is_mirror:
            return _MIRROR
        if self._is_owner:
            return f"it already belongs to cluster {self._cluster_id}"
        return (
            f"it passes from cluster {self._identity.cluster_id} to {self._cluster_id}, whose "
            "topics continue its logs; from then on it refuses the old cluster"
        )

    def done_in_words(self) -> str:
        """What `run` has done."""
        if self._identity.is_mirror:
            return _MIRROR
        handed = self._identity.handed_over
        since = "" if handed is None else f" since {utc_text(handed.at_ms)}"
        return (
            f"it belongs to cluster {self._cluster_id}{since}; topics that continue an archived "
            f"log: {self._continued}"
        )

    async def as_continued(
        self, topics: Sequence[LostTopic], present: Mapping[str, FoundTopic]
    ) -> list[LostTopic]:
        """`topics`, each that is continued already with the beginnings on record: its archive may
        have grown since. Raises RemoteStorageError, CorruptSegment.
        """
        known = []
        for topic in topics:
            there, record = present.get(topic.name), None
            if there is not None:
                record = await self._objects.get_continued_topic(topic.name, there.topic_id)
            known.append(topic if record is None else _from_record(topic, record))
        return known

    async def check_journal(self, topics: Sequence[LostTopic]) -> None:
        """Raises ConfigError if the journal continues the archive of a topic: its records would be
        lost, because their offsets go to new records.
        """
        if self._is_owner:
            return
        ends = {
            (topic.topic_id, number): one.end_offset
            for topic in topics
            if topic.goes_on
            for number, one in enumerate(topic.partitions)
        }
        tables = await self._tables()
        beyond: list[str] = []
        for tp, entries in sorted(by_partition(tables).items()):
            end = ends.get((tp.topic_id, tp.partition))
            chain = [] if end is None else log_of(entries, end)
            if chain:
                beyond.append(f"{tp} up to {chain[-1].entry.next_offset}, archived up to {end}")
        if beyond:
            raise ConfigError(
                f"the journal has records that are in no segment ({_some(beyond)}): run "
                "`fetchproxy cluster recover-journal`, and then this command again; to give them "
                "up, delete the objects below journals/ in the store"
            )

    async def _tables(self) -> list[JournalTable]:
        """Of all that can be read; `recover-journal` names the others."""
        tables = []
        async for journal, number, stored in self._objects.list_journals():
            with suppress(DamagedObject):
                table = await read_table(self._objects, journal, number, stored)
                tables += [] if table is None else [table]
        return tables

    # --- the handover ---
    async def run(self, topics: Sequence[LostTopic], topic_ids: Mapping[str, UUID]) -> None:
        """`topic_ids`: by name, in the new cluster. Raises ConfigError, RemoteStorageError."""
        await self.take(topics)
        await self.record(topics, topic_ids)

    async def take(self, topics: Sequence[LostTopic]) -> None:
        """From then on nobody else lets the archive of `topics` grow. Raises as `run`."""
        if self._identity.is_mirror:
            return
        if not self._is_owner:
            if not self._take_over:
                await self._check_nobody_archives()
            await self._take()
            await self._check_ends(topics)
        elif self._identity.handed_over is None:
            await self._take()  # its processes look for continued topics only then

    async def _take(self) -> None:
        handed = HandedOver(self._identity.cluster_id or "", wall_clock_ms())
        new = replace(self._identity, cluster_id=self._cluster_id, handed_over=handed)
        await self._own_identity.state(new)
        self._identity = await self._own_identity.look() or new
        self._identity.check_is_of_cluster(self._cluster_id)  # of two restores, one has it

    async def _check_nobody_archives(self) -> None:
        if self._beats:
            looked_s = asyncio.get_running_loop().time() - self._listed_at
            await asyncio.sleep(max(_BEAT_MAX_S - looked_s, 0))
        beats = await _read_beats(self._objects)
        if any(self._beats.get(key) != version for key, version in beats.items()):
            raise ConfigError(
                f"an archiver of cluster {self._identity.cluster_id} is still using this archive. "
                "If that cluster is alive, restore from a mirror of its archive instead. If it is "
                "lost, stop the archiver; if nobody can reach it, use --take-over, and the archive "
                "then refuses it"
            )

    async def _check_ends(self, topics: Sequence[LostTopic]) -> None:
        """The old archiver may have written until the handover."""
        begun_at = asyncio.get_running_loop().time()
        grown: list[str] = []

        async def look(topic: LostTopic) -> None:
            assert topic.topic_id is not None
            views = await self._rlmm.refresh_topic(topic.topic_id, begun_at)
            for number, partition in enumerate(topic.partitions):
                planned = partition.end_offset
                end = views[number].log_end_offset if number in views else None
                if end not in (None, planned):
                    grown.append(f"{topic.name}-{number}: {planned} to {end}")

        await for_each(topics, look, _TOPICS_AT_ONCE)
        if grown:
            raise ConfigError(
                f"more was archived after the plan was made: {_some(sorted(grown))}; the archive "
                "belongs to this cluster now, so run the same command again"
            )

    async def record(self, topics: Sequence[LostTopic], topic_ids: Mapping[str, UUID]) -> None:
        """These topics continue their archived logs. Raises as `run`."""
        if self._identity.is_mirror:
            return
        now_ms = wall_clock_ms()

        async def record(topic: LostTopic) -> None:
            topic_id, log_id = topic_ids[topic.name], topic.topic_id
            assert log_id is not None
            if topic_id == log_id:
                return  # the old cluster itself
            starts = tuple(one.end_offset for one in topic.partitions)
            self._continued += 1
            if not self._objects.continued.continues(topic_id):
                await self._objects.put_continued_topic(
                    ContinuedTopic(topic.name, topic_id, log_id, self._cluster_id, starts, now_ms)
                )

        await for_each(topics, record, _TOPICS_AT_ONCE)


@asynccontextmanager
async def opened_handover(
    config: Config, topics: Sequence[LostTopic], cluster_id: str, *, take_over: bool
) -> AsyncIterator[ArchiveHandover | None]:
    """Reads, and changes nothing. None: no log of the archive goes on. Raises ConfigError,
    RemoteStorageError.
    """
    if not any(topic.goes_on for topic in topics):
        yield None
        return
    async with stored_archive(config) as archive:
        own_identity, objects = archive.storage.identity, archive.storage.objects
        identity = await own_identity.look()
        if identity is None:
            raise ArchiveMissing("there is no archive at store.url")
        if not identity.is_mirror:
            identity.check_is_the_archive()
        await objects.renew_continued_topics()
        beats = await _read_beats(objects)
        yield ArchiveHandover(archive, identity, cluster_id, beats, take_over=take_over)


async def _read_beats(objects: ArchiveObjects) -> dict[str, str]:
    return {one.key: one.version async for one in objects.list_archiver_positions()}


def _from_record(topic: LostTopic, record: ContinuedTopic) -> LostTopic:
    if len(record.start_offsets) != len(topic.partitions):
        return topic  # partitions were added since, to one of both
    return replace(
        topic,
        is_continued=True,
        partitions=tuple(
            # Local history was chosen from the archive's end, which may be above by now.
            one
            if one.end_offset == start and one.archived_end is None
            else replace(one, end_offset=start, local=None, archived_end=None)
            for one, start in zip(topic.partitions, record.start_offsets, strict=True)
        ),
    )


def _some(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _NAMED_MAX} more" if len(texts) > _NAMED_MAX else ""
    return f"{', '.join(texts[:_NAMED_MAX])}{more}"
