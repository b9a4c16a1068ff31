"""What a backfill is to read, partition by partition: one that lacks something stops no other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from fetchproxy.errors import ConfigError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.pipeline.holes import Holes, holes_of
from fetchproxy.pipeline.jobs.spread import Failure
from fetchproxy.pipeline.source.archive_reading import (
    PASSED_OVER,
    ArchiveReading,
    Spans,
    Views,
    asked_offsets,
)
from fetchproxy.pipeline.source.options import EARLIEST, LATEST, BoundKind, SourceOptions


class BackfillInput(NamedTuple):
    """`left_out`: partitions of which something is not there; `views` and `spans` lack them."""

    views: Views
    spans: Spans
    left_out: tuple[Failure, ...]


def plan_backfill_input(options: SourceOptions) -> BackfillInput:
    """Raises ConfigError for a topic that the archive does not have; RemoteStorageError."""
    return asyncio.run(_planned(options))


async def _planned(options: SourceOptions) -> BackfillInput:
    lenient = replace(options, fail_on_data_loss=False)
    async with ArchiveReading(lenient, once=True) as reading:
        views = await reading.views()
        named = options.topics.names or set(options.topics.assigned or ())
        if missing := sorted(named - {tip.topic for tip in views}):
            there = {topic for topic, _ in await reading.rsm.list_topics()}
            for topic in missing:
                if topic not in there:
                    raise ConfigError(f"topic {topic} is not in the archive at {options.store}")
        spans = await reading.spans(views)
        if not options.fail_on_data_loss:
            return BackfillInput(views, spans, ())
        losses = {tip: what for tip in views if (what := _outside(options, views[tip]))}
        sound = [view for tip, view in views.items() if tip not in losses]
        holes = await holes_of(
            reading.rsm,
            sound,
            {view.tip: asked_offsets(options, spans[view.tip]) for view in sound},
            views_of_store=options.metadata_cache_dir is None,
        )
    return _without(views, spans, losses, holes)


def _outside(options: SourceOptions, view: PartitionView) -> str | None:
    """What is wrong with the offsets that are named for the partition; None: nothing."""
    first, end = view.log_start_offset or 0, view.log_end_offset or 0
    for bound in (options.starting, options.ending):
        given = bound.by_partition.get((view.tip.topic, view.tip.partition))
        if bound.kind is BoundKind.OFFSETS and given not in (None, EARLIEST, LATEST):
            assert given is not None
            if not first <= given <= end:
                return f"offset {given} is not in the archive, which has {first} to {end - 1}"
    return None


def _without(
    views: Views,
    spans: Spans,
    losses: Mapping[TopicIdPartition, str],
    holes: Mapping[TopicIdPartition, Holes],
) -> BackfillInput:
    every = {**losses, **{tip: found.in_words() or "" for tip, found in holes.items()}}
    return BackfillInput(
        {tip: view for tip, view in views.items() if tip not in every},
        {tip: span for tip, span in spans.items() if tip not in every},
        tuple(Failure(str(tip), f"{every[tip]}; {PASSED_OVER}", False) for tip in sorted(every)),
    )
