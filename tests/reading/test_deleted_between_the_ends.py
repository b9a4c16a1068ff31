"""Somebody deletes a segment that looks at the ends of its partition do not list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from read_side import ReadSide, fetched, now, read_side
from test_timestamp_lookup import batch
from virtual_loop import run_virtual

from fetchproxy.metadata.partition_ends import EndsLimits
from fetchproxy.model import RemoteLogSegmentMetadata

TINY = EndsLimits(listed_segments=2, unannounced_segments_max=1, whole_below_segments=5)


@asynccontextmanager
async def one_gone() -> AsyncIterator[tuple[ReadSide, RemoteLogSegmentMetadata]]:
    """Eight segments; the fourth has gone, and the view still has it."""
    async with read_side(ends=TINY) as side:
        every = [await side.segment([batch(n, [100 + n], codec=0)]) for n in range(8)]
        gone = every[3]
        await side.storage.rsm.delete_log_segment_data(gone)
        await asyncio.sleep(1)
        assert gone in (await side.rlmm.refresh(side.tp, now())).segments
        await asyncio.sleep(1)
        yield side, gone
        view = side.rlmm.view(side.tp)
        assert view is not None
        assert gone not in view.segments
        assert not list(side.storage.health.conditions(now()))


def test_a_fetch_of_it_goes_on_behind_the_gap() -> None:
    async def main() -> None:
        async with one_gone() as (side, gone):
            fetch = await fetched(side, gone.start_offset)
            result = fetch.results()[0]
            assert result.error is None
            assert result.records

    run_virtual(main)


def test_a_search_by_time_passes_it_over() -> None:
    async def main() -> None:
        async with one_gone() as (side, gone):
            first_offset = await side.purgatory.first_offset_at_or_after(
                side.tp, gone.max_timestamp_ms
            )
            assert first_offset == (4, 104, 0)

    run_virtual(main)
