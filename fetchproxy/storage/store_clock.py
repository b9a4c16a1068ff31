"""A store that tells the time: of another machine than ours, so a second opinion on our clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from email.utils import parsedate_to_datetime


class StoreClock(ABC):
    @abstractmethod
    async def clock_ms(self, prefix: str) -> int | None:
        """Epoch ms now, to about a second; None: it has not said. Raises RemoteStorageError.

        `prefix`: below it we may list.
        """


def http_date_ms(date: str | None) -> int | None:
    """Of an answer's header; None: it has none that can be read."""
    try:
        return None if date is None else round(parsedate_to_datetime(date).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None
