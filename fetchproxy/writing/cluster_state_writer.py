"""Writes the state of the cluster into the archive when it has changed, and removes old states.

One archiver of a group does it: the leader of the first partition. Two that do it for a moment do
no harm: each state has a key of its own, and whoever comes second leaves the first one's state.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

import structlog

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_state.document import encode_state, without_time
from fetchproxy.cluster_state.kept_states import served_their_time, state_at
from fetchproxy.cluster_state.missing_parts import rights_in_words
from fetchproxy.cluster_state.reading import read_cluster_state
from fetchproxy.cluster_state.state import ClusterState
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.errors import (
    ClusterError,
    CorruptSegment,
    DamagedObject,
    ObjectNotFound,
    RemoteStorageError,
)
from fetchproxy.observability.health import Kind
from fetchproxy.storage.archive_objects import ArchiveObjects, ClusterStateObject
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX
from fetchproxy.writing.published_conditions import PublishedConditions

log = structlog.get_logger(__name__)

# Brokers restart, and elect leaders, within a few minutes.
_FAILURES_MAX = 5


class ClusterStateWriter:
    """One per archiver. `is_archived`: whether the batches of a topic are archived."""

    def __init__(
        self,
        config: ArchiveConfig,
        cluster: Cluster,
        objects: ArchiveObjects,
        published_conditions: PublishedConditions,
        is_archived: Callable[[str], bool],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._interval_ms = 0 if config.log_dirs else config.cluster_state_interval_ms
        self._retention_ms = config.cluster_state_retention_ms
        self._cluster = cluster
        self._objects = objects
        self._published_conditions = published_conditions
        self._is_archived = is_archived
        self._wall_clock_ms = wall_clock_ms
        self._written: bytes | None = None  # the digest of the newest state, without its time
        self._written_at_ms = -1

    async def run(self, leads: Callable[[], bool]) -> None:
        """Until cancelled. `leads`: whether this archiver does it now."""
        conditions, failures = self._published_conditions, 0
        while self._interval_ms:
            await asyncio.sleep(self._interval_ms / 1000)
            if not leads():
                conditions.forget(None, Kind.CLUSTER_STATE_INCOMPLETE, Kind.CLUSTER_STATE_OLD)
                failures = 0
                continue
            try:
                await self._write()
                failures = 0
                conditions.release(Kind.CLUSTER_STATE_OLD, None)
            except (ClusterError, RemoteStorageError) as error:
                failures += 1
                self._tell_failure(error, failures)
        for kind in (Kind.CLUSTER_STATE_INCOMPLETE, Kind.CLUSTER_STATE_OLD):
            conditions.release(kind, None)

    async def write_once(self) -> None:
        """For a pass that ends: a failure is logged, and the next pass writes the state."""
        if not self._interval_ms:
            return
        try:
            await self._write()
        except (ClusterError, RemoteStorageError) as error:
            log.warning("cluster_state_not_written", error=str(error))

    async def _write(self) -> None:
        state = await read_cluster_state(self._cluster, self._is_archived, self._wall_clock_ms)
        self._tell_missing_rights(state)
        try:
            document = await asyncio.to_thread(encode_state, state)
        except (CorruptSegment, ValueError) as error:  # ValueError: a quota that is no number
            raise ClusterError(f"the cluster's state cannot be kept: {error}") from None
        if len(document) > OBJECT_BYTES_MAX:
            raise ClusterError(
                f"the cluster's state has {len(document)} bytes, more than {OBJECT_BYTES_MAX}"
            )
        digest = await asyncio.to_thread(_digest, document)
        if digest == self._written:
            return
        states = await self._objects.list_cluster_states()
        newest = state_at(states, state.read_at_ms)
        if newest is None or not await self._suffices(newest, digest, state.read_at_ms):
            cluster_id, read_at_ms = state.cluster_id, state.read_at_ms
            written = await self._objects.put_cluster_state(cluster_id, read_at_ms, document)
            log.info("cluster_state_written", size_bytes=len(document), groups=len(state.groups))
            self._written, self._written_at_ms = digest, read_at_ms
            await self._remove_old([*states, written], read_at_ms)

    async def _suffices(self, newest: ClusterStateObject, digest: bytes, now_ms: int) -> bool:
        """True: the newest state was read just now by another archiver, or says the same."""
        if newest.read_at_ms == self._written_at_ms:
            return False
        if now_ms - newest.read_at_ms < self._interval_ms // 2:
            return True
        try:
            before = await self._objects.get_cluster_state(newest)
            same = await asyncio.to_thread(_digest, before) == digest
        except (ObjectNotFound, DamagedObject):
            return False
        if same:
            self._written, self._written_at_ms = digest, newest.read_at_ms
        return same

    async def _remove_old(self, states: list[ClusterStateObject], now_ms: int) -> None:
        """A state that a wrong clock has put into the future stays until its time has come."""
        past = [one for one in states if one.read_at_ms <= now_ms]
        try:
            for one in served_their_time(past, now_ms, self._retention_ms):
                await self._objects.delete_cluster_state(one)
        except RemoteStorageError as error:  # such as an archiver without the right to delete
            log.warning("cluster_states_not_removed", error=str(error))

    def _tell_failure(self, error: Exception, failures: int) -> None:
        """`failures`: one after the other, so far."""
        if failures == 1:
            log.warning("cluster_state_not_written", error=str(error))
        if failures >= _FAILURES_MAX:
            what = (
                f"the state of the cluster was not written, {_FAILURES_MAX} times or more: {error}"
            )
            self._published_conditions.hold(Kind.CLUSTER_STATE_OLD, None, what)

    def _tell_missing_rights(self, state: ClusterState) -> None:
        kind, rights = Kind.CLUSTER_STATE_INCOMPLETE, rights_in_words(state.missing)
        if not rights:
            self._published_conditions.release(kind, None)
            return
        what = f"the state of the cluster in the archive is incomplete: missing rights: {rights}"
        self._published_conditions.hold(kind, None, what)


def _digest(document: bytes) -> bytes:
    return hashlib.sha256(without_time(document)).digest()
