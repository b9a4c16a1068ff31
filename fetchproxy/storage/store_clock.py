"""A store that tells the time: of another machine than ours, so a second opinion on our clock."""

from __future__ import annotations

from abc import ABC, abstractmethod


class StoreClock(ABC):
    @abstractmethod
    async def clock_ms(self, prefix: str) -> int | None:
        """Epoch ms now, to about a second; None: it has not said. Raises RemoteStorageError.

        `prefix`: below it we may list.
        """
