"""The offsets at which reading passes from archive to brokers, and the file that keeps them. Pure.

`archived`: the archive's end when it was looked at; live reading begins there. `live`: partitions
with nothing archived at that time. They are read from the brokers alone, from this offset on, even
if the archiver copies them later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fetchproxy.errors import ConfigError
from fetchproxy.remotelog.options import (
    EARLIEST,
    LATEST,
    Bound,
    BoundKind,
    NextOffsets,
    TopicPartition,
    json_offsets,
    parse_offsets,
)

# The offsets of each partition that one source reads: (start, end). LATEST: up to the last one.
OffsetRanges = Mapping[TopicPartition, tuple[int, int]]

_VERSION = 2


@dataclass(frozen=True, slots=True)
class TierBoundary:
    archived: NextOffsets
    live: NextOffsets

    def encode(self) -> str:
        document = {"archived": json_offsets(self.archived), "live": json_offsets(self.live)}
        return json.dumps({"version": _VERSION, **document})

    @classmethod
    def decode(cls, text: str, name: str) -> TierBoundary:
        """Raises ConfigError, naming the file."""
        try:
            document = json.loads(text)
            if not isinstance(document.get("version"), int):
                return cls._from_first_format(document)
            if document["version"] != _VERSION:
                raise ConfigError(f"archive then live: {name} is of a later version of fetchproxy")
            return cls(parse_offsets(document["archived"]), parse_offsets(document["live"]))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ConfigError(
                f"archive then live: the crossing file {name} is damaged: restore it from a copy, "
                "or start again with a new crossing file and a new checkpoint"
            ) from None

    @classmethod
    def _from_first_format(cls, document: Mapping[str, Mapping[str, int]]) -> TierBoundary:
        every = parse_offsets(document)
        archived = {tp: end for tp, end in every.items() if end != EARLIEST}
        return cls(archived, {tp: end for tp, end in every.items() if end == EARLIEST})


def split_at_boundary(
    tier_boundary: TierBoundary, starting: Bound, ending: Bound
) -> tuple[OffsetRanges, OffsetRanges]:
    """The offsets of the history and of the live half. Raises ConfigError."""
    tps = [*tier_boundary.archived, *tier_boundary.live]
    for side, bound in (("starting", starting), ("ending", ending)):
        if bound.kind is BoundKind.OFFSETS and set(bound.by_partition) != set(tps):
            odd = min(set(bound.by_partition) ^ set(tps))
            raise ConfigError(
                f"archive then live: {side}Offsets has to name each partition, and no other: {odd}"
            )
    history: dict[TopicPartition, tuple[int, int]] = {}
    live: dict[TopicPartition, tuple[int, int]] = {}
    for tp in sorted(tps):
        start, end = _bound_offset(starting, tp), _bound_offset(ending, tp)
        boundary = tier_boundary.archived.get(tp)
        if start != LATEST and boundary is not None and start < boundary:
            history[tp] = (start, boundary if end == LATEST else min(end, boundary))
            live_from = boundary
        else:
            # Even below the brokers' log start offset: Spark's source decides if that is a loss.
            live_from = tier_boundary.live.get(tp, EARLIEST) if start == EARLIEST else start
        if end == LATEST or end > live_from:
            live[tp] = (live_from, end)
    return history, live


def _bound_offset(bound: Bound, tp: TopicPartition) -> int:
    if bound.kind is BoundKind.OFFSETS:
        return bound.by_partition[tp]
    return LATEST if bound.kind is BoundKind.LATEST else EARLIEST


def as_json(offsets: NextOffsets) -> str:
    """The JSON that both sources take."""
    return json.dumps(json_offsets(offsets))


def as_assign(tps: Mapping[TopicPartition, object]) -> str:
    document: dict[str, list[int]] = {}
    for topic, partition in sorted(tps):
        document.setdefault(topic, []).append(partition)
    return json.dumps(document)
