"""What one turn does with a partition: the three steps of KIP-405's RemoteLogManager.

Step 1, leader: delete what retention has passed, and stale temporaries. Step 2, leader: copy what
is not in the archive yet. Step 3, leader and follower: bring the remote information up to date. It
does not decide when a turn is due (`schedule`) nor what its errors mean for the next (`manager`).
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from fetchproxy.errors import FetchProxyError, LogTruncated
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.remote_log.leadership.api import Leadership
from fetchproxy.remote_log.local_index_refresh import LocalIndexRefresher
from fetchproxy.remote_log.partition_archiver import PartitionArchiver
from fetchproxy.remote_log.retention.expirer import Expirer
from fetchproxy.remote_log.retention.local_retention import LocalRetention


class Step(StrEnum):
    DELETE = "delete"
    COPY = "copy"
    REFRESH = "refresh"


class PartitionSteps:
    """One partition's steps. A follower holds nothing local, so it takes over with a fresh look."""

    def __init__(
        self,
        archiver: PartitionArchiver,
        *,
        rlmm: RemoteLogMetadataManager,
        leadership: Leadership,
        expirer: Expirer,
        local_retention: LocalRetention,
        refresher: LocalIndexRefresher | None,
        refresh_interval_ms: int,
    ) -> None:
        self.tip = archiver.tip
        self.archiver = archiver
        self.step: Step | None = None  # what the turn under way is at; None: no turn
        self.began_at: float | None = None  # of that turn, loop seconds
        self.view: PartitionView | None = None  # what step 3 has seen last
        self._rlmm = rlmm
        self._leadership = leadership
        self._expirer = expirer
        self._local_retention = local_retention
        self._refresher = refresher
        self._refresh_interval_s = refresh_interval_ms / 1000

    @property
    def leads(self) -> bool:
        return self._leadership.leads(self.tip)

    async def process(self) -> bool:
        """One turn. True: more waits already. Raises what the steps raise.

        What retention cannot delete does not keep new segments from being copied: an error of step
        1 is raised when the other steps are done. Nothing is deleted in either tier before the
        leader has said that its log is the one that is archived.
        """
        self.began_at = asyncio.get_running_loop().time()
        try:
            failure, more = None, False
            if self.leads:
                failure = await self._compare() or await self._delete()
                more = await self._copy()
            else:
                await self.release()
            more = await self._refresh() or more
            if failure is not None:
                raise failure
            return more
        finally:
            self.step = self.began_at = None

    async def release(self) -> None:
        """The partition is led here no more."""
        self._expirer.forget(self.tip)
        self._local_retention.forget(self.tip)
        await self.archiver.release()

    async def _compare(self) -> Exception | None:
        """Raises LogTruncated; what kept it from being told is given back."""
        self.step = Step.COPY
        try:
            await self.archiver.compare_with_leader()
        except LogTruncated:
            raise
        except (FetchProxyError, OSError) as error:
            return error
        return None

    async def _delete(self) -> Exception | None:
        self.step = Step.DELETE
        failure: Exception | None = None
        for delete in (self._expirer.expire, self._local_retention.trim):
            try:
                await delete(self.tip)
            except (FetchProxyError, OSError) as error:
                failure = failure or error
        return failure

    async def _copy(self) -> bool:
        self.step = Step.COPY
        return await self.archiver.process()

    async def _refresh(self) -> bool:
        self.step = Step.REFRESH
        now = asyncio.get_running_loop().time()
        self.view = await self._rlmm.refresh(self.tip, now - self._refresh_interval_s)
        if self._refresher is None:
            return False
        return await self._refresher.refresh(self.tip, self.view)
