"""A purgatory's fetches, reads and bytes in progress; a read side at rest has none."""

from __future__ import annotations

from typing import NamedTuple

from fetchproxy.reading.purgatory import RemoteFetchPurgatory


class UnderWay(NamedTuple):
    entries: int  # waiting fetches
    fetches_waiting_for_place: int  # fetches beyond purgatory_entries_max
    pending_reads: int
    loads: int
    store_reads: int  # reads in the store now
    store_reads_waiting: int
    inflight_bytes: int


NOTHING = UnderWay(0, 0, 0, 0, 0, 0, 0)


def under_way(purgatory: RemoteFetchPurgatory) -> UnderWay:
    budget = purgatory._pool.budget
    return UnderWay(
        entries=len(purgatory._entries),
        fetches_waiting_for_place=len(purgatory._waiting_for_place),
        pending_reads=len(purgatory._pending),
        loads=len(purgatory._pool._loads),
        store_reads=budget.tasks_taken,
        store_reads_waiting=budget.waiting,
        inflight_bytes=budget.bytes_taken,
    )


def cached_bytes(purgatory: RemoteFetchPurgatory) -> int:
    return int(purgatory._memory.chunks.currsize)
