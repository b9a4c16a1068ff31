"""Schedules each partition's next turn (KIP-405's RemoteLogManager). Pure: times are arguments
(loop seconds).

A partition is due at once when it is new, one process interval after a success, and one retry
interval after a remote error, doubled after each further error. A partition that is unassigned
while a worker has it is removed when the worker brings it back.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fetchproxy.model import TopicIdPartition

# A partition that keeps failing waits at most this many retry intervals (30 s by default).
RETRY_INTERVALS_MAX = 6


@dataclass(slots=True)
class _Entry:
    turn: int = 0  # breaks ties: first due goes first; also marks old heap items
    in_process: bool = False
    deleted: bool = False
    failures: int = 0  # in a row


class ProcessingSchedule:
    def __init__(self, rlm_process_interval_ms: int, rlm_retry_interval_ms: int) -> None:
        self._process_s = rlm_process_interval_ms / 1000
        self._retry_s = rlm_retry_interval_ms / 1000
        self._entries: dict[TopicIdPartition, _Entry] = {}
        self._heap: list[tuple[float, int, TopicIdPartition]] = []
        self._turns = 0

    def assign(self, tp: TopicIdPartition) -> None:
        """A new partition is due at once, before all others. A known one keeps its time."""
        entry = self._entries.get(tp)
        if entry is None:
            self._entries[tp] = entry = _Entry()
            self._push(tp, entry, 0.0)
        entry.deleted = False

    def hasten(self, tp: TopicIdPartition) -> None:
        """Make the partition due at once, as if new, unless a worker has it."""
        entry = self._entries.get(tp)
        if entry is not None and not entry.in_process:
            self._push(tp, entry, 0.0)

    def unassign(self, tp: TopicIdPartition) -> bool:
        """True: the partition is removed. False: a worker still has it, or it was never here."""
        entry = self._entries.get(tp)
        if entry is None:
            return False
        if entry.in_process:
            entry.deleted = True
            return False
        del self._entries[tp]
        return True

    def take_due(self, now: float) -> TopicIdPartition | None:
        """The partition that has been due for longest. It is in process until brought back."""
        due_at = self.next_due_at()
        if due_at is None or due_at > now:
            return None
        _, _, tp = heapq.heappop(self._heap)
        self._entries[tp].in_process = True
        return tp

    def next_due_at(self) -> float | None:
        """When the next partition is due. None: no partition waits."""
        while self._heap:
            due_at, turn, tp = self._heap[0]
            entry = self._entries.get(tp)
            if entry is not None and entry.turn == turn and not entry.in_process:
                return due_at
            heapq.heappop(self._heap)
        return None

    def succeeded(self, tp: TopicIdPartition, now: float, *, more_waits: bool = False) -> bool:
        """The worker brings the partition back. It is due one process interval from now, or
        (`more_waits`) after those that are due already. False: it was unassigned meanwhile and is
        removed.
        """
        self._entries[tp].failures = 0
        return self._bring_back(tp, now if more_waits else now + self._process_s)

    def failed(self, tp: TopicIdPartition, now: float) -> bool:
        """As `succeeded`, but due one retry interval from now, doubled at each further failure."""
        entry = self._entries[tp]
        intervals = min(2**entry.failures, RETRY_INTERVALS_MAX)
        entry.failures += intervals < RETRY_INTERVALS_MAX
        return self._bring_back(tp, now + self._retry_s * intervals)

    def _bring_back(self, tp: TopicIdPartition, due_at: float) -> bool:
        entry = self._entries[tp]
        if entry.deleted:
            del self._entries[tp]
            return False
        entry.in_process = False
        self._push(tp, entry, due_at)
        return True

    def _push(self, tp: TopicIdPartition, entry: _Entry, due_at: float) -> None:
        self._turns += 1
        entry.turn = self._turns
        heapq.heappush(self._heap, (due_at, entry.turn, tp))
