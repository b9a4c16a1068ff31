"""What a store that can be left with half-done uploads offers besides `ObjectStore`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class UnfinishedUploads(ABC):
    """A killed process leaves temporary files or multipart uploads: never visible, but stored."""

    @abstractmethod
    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        """Remove uploads to keys below `prefix` that were begun before a wall-clock time.

        Those to a key that is not ours stay: a bucket may be shared. Returns how many. Choose the
        time well below now: an upload that somebody is still at fails when it is removed.
        """
