"""A Fetch answer without records, kept back until it is known whether it is to leave at all. Pure.

An answer with records leaves as it comes. One without is small and has nothing that anybody waits
for: at its end `withhold` is asked, and the whole of it may be dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from fetchproxy_protocol.primitives import Buffer

# Kept up to here; an answer about 25,000 partitions without records has no more.
KEPT_BYTES_MAX = 1024 * 1024

# (some error became an empty partition, some error is left) → nothing of the answer leaves.
Withhold = Callable[[bool, bool], bool]


class KeptAnswer:
    """Asks about an answer of which some partition was patched, or (`any_empty`) about any."""

    __slots__ = ("_pieces", "_withhold", "any_empty", "errors_left", "patched", "records")

    def __init__(self, withhold: Withhold, any_empty: bool) -> None:
        self._withhold = withhold
        self.any_empty = any_empty
        self._pieces = bytearray()
        self.patched = self.errors_left = self.records = False

    def keep(self, pieces: list[Buffer], whole: bool) -> list[Buffer] | None:
        """What may leave, with `pieces` as the last of it; None: nothing may yet.

        `whole`: it ends with them; then the list is empty where the answer is withheld.
        """
        if whole and not self.records and (self.patched or self.any_empty):
            if self._withhold(self.patched, self.errors_left):
                return []
        elif not whole and not self.records:
            for piece in pieces:
                self._pieces += piece
            if len(self._pieces) <= KEPT_BYTES_MAX:
                return None
            pieces = []
        return [self._pieces, *pieces] if self._pieces else pieces
