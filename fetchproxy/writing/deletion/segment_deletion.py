"""How a segment leaves the archive, for whichever reason: it is hidden, then its objects go.

    COPY_SEGMENT_… ──hide──► DELETE_SEGMENT_STARTED ──delete──► DELETE_SEGMENT_FINISHED

No reader begins to read a hidden segment. Its objects stay for the readers that have begun: who
calls `delete` has waited for `archive.retention_grace_ms`, or knows that there is no reader. Who
calls `hide` has made sure that the segment may go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, RemoteLogSegmentState
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

_State = RemoteLogSegmentState


def is_hidden(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is _State.DELETE_SEGMENT_STARTED


@dataclass(eq=False, repr=False)
class SegmentDeletion:
    """Each method may be repeated after a failure. Raises RemoteStorageError; ValueError if the
    metadata manager knows another state of the segment, as another archiver was faster.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    wall_clock_ms: Callable[[], int]

    async def hide(self, segment: RemoteLogSegmentMetadata) -> None:
        await self._put(segment, _State.DELETE_SEGMENT_STARTED)

    async def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """At once. A segment that is not hidden is hidden first."""
        if not is_hidden(segment):
            await self.hide(segment)
        await self.rsm.delete_log_segment_data(segment)
        await self._put(segment, _State.DELETE_SEGMENT_FINISHED)

    async def _put(self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
        await self.rlmm.put(segment.with_state(state, self.wall_clock_ms()))
