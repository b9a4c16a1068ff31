"""Which topics have anything in the archive: so that the others are as if there were no archive.

One list for the whole gateway, read at the start and kept fresh while somebody asks, so that it is
known before an outage begins. While the store does not answer the last list counts, at once: what
was never archived is not touched by an outage, however long, and nobody waits for a time-out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from uuid import UUID

from cachetools import LRUCache

from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.observability.sparing_warnings import SparingWarnings

# Look-ups by time may miss for so long that another process has begun to archive a topic. Where an
# offset is out of range, or a log begins where it did not, the list is read again.
LIST_AGE_MAX_S = 5.0
# For so long after somebody asked the next one need not wait.
IN_USE_S = 60.0
LIST_INTERVAL_IN_USE_S = 4.0
# While nobody asks: what an outage finds known is no older.
LIST_INTERVAL_S = 30.0
# Answers about where logs begin that are remembered: one is some 100 bytes.
STARTS_SEEN_MAX = 10_000
# Between two tries while the store does not answer.
RETRY_PAUSE_S = 1.0
# So long a caller waits for a list, where there is an older one and where there is none.
WAIT_MAX_S = 0.5
FIRST_WAIT_MAX_S = 2.0


class ArchivedKnowledge:
    """One per gateway, whose task is `run`; `clock` gives loop seconds."""

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        clock: Callable[[], float],
        warnings: SparingWarnings,
    ) -> None:
        self._rlmm = rlmm
        self._clock = clock
        self._warnings = warnings
        self._failure: Exception | None = None  # of the last try
        self._wanted = asyncio.Event()
        self._asked_at = float("-inf")
        self._starts_seen: LRUCache[int, float] = LRUCache(STARTS_SEEN_MAX)

    async def may_be_archived(self, topic_id: UUID, not_older_than: float | None = None) -> bool:
        """False: a list of archived topics that is fresh does not have it, or the last one there
        was, while the store does not answer.

        Fresh is what was read since `not_older_than` (loop time, s), or LIST_AGE_MAX_S ago.
        Raises RemoteStorageError where no list was ever read.
        """
        return bool(await self.archived_among((topic_id,), not_older_than))

    async def archived_among(
        self, topic_ids: Collection[UUID], not_older_than: float | None = None
    ) -> frozenset[UUID]:
        """Those of `topic_ids` that may be archived. Raises as `may_be_archived`."""
        known = self._rlmm.known_archived_topics()
        if known is not None and known[0].issuperset(topic_ids):
            return frozenset(topic_ids)
        return (await self.topics(not_older_than)).intersection(topic_ids)

    def list_for(self, starts: int) -> float:
        """How old a list (loop time, s) may be for logs that begin there: read since that was seen.

        What is archived is archived before its broker drops it, so that list shows whatever lies
        below. `starts`: a hash of which partitions begin where.
        """
        now = self._clock()
        first_seen: float = self._starts_seen.setdefault(starts, now)
        return max(first_seen, now - LIST_AGE_MAX_S)

    async def topics(self, not_older_than: float | None = None) -> frozenset[UUID]:
        """All that may be archived, as `may_be_archived` says."""
        known, now = self._rlmm.known_archived_topics(), self._clock()
        self._asked_at = now
        oldest = now - LIST_AGE_MAX_S if not_older_than is None else min(not_older_than, now)
        if known is None or known[1] < now - LIST_AGE_MAX_S / 2:
            self._wanted.set()
        if known is None or known[1] < oldest:
            await self._wait(oldest, FIRST_WAIT_MAX_S if known is None else WAIT_MAX_S)
            known = self._rlmm.known_archived_topics()
        if known is None:
            raise RemoteStorageError(f"archived topics are not known: {self._failure}")
        return known[0]

    async def _wait(self, oldest: float, wait_max_s: float) -> None:
        """Not where the last try has failed: `run` tries again."""
        if self._failure is not None:
            return
        try:
            async with asyncio.timeout(wait_max_s):
                await self._rlmm.archived_topics(oldest)
        except TimeoutError:
            self._failed(TimeoutError(f"not listed within {wait_max_s} s"))
        except RemoteStorageError as error:
            self._failed(error)

    async def run(self) -> None:
        """For ever: list, and again before somebody asks when the list is not fresh any more."""
        while True:
            self._wanted.clear()
            try:
                await self._rlmm.archived_topics(self._clock())
            except RemoteStorageError as error:
                self._failed(error)
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            self._failure = None
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_INTERVAL_S):
                    await self._until_wanted()

    async def _until_wanted(self) -> None:
        while not self._wanted.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_INTERVAL_IN_USE_S):
                    await self._wanted.wait()
            if self._clock() - self._asked_at < IN_USE_S:
                return

    def _failed(self, error: Exception) -> None:
        self._failure = error
        self._wanted.set()
        self._warnings.warn("archived_topics_not_listed", None, error=str(error))
