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
    ArchiveLocation,
    Bound,
    BoundKind,
    Ends,
    by_place,
    by_topic,
)

# The offsets of each partition that one source reads: (start, end). LATEST: up to the last one.
Half = Mapping[ArchiveLocation, tuple[int, int]]

_VERSION = 2


@dataclass(frozen=True, slots=True)
class TierBoundary:
    archived: Ends
    live: Ends

    def encode(self) -> str:
        document = {"archived": by_topic(self.archived), "live": by_topic(self.live)}
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
            return cls(by_place(document["archived"]), by_place(document["live"]))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ConfigError(
                f"archive then live: the crossing file {name} is damaged: restore it from a copy, "
                "or start again with a new crossing file and a new checkpoint"
            ) from None

    @classmethod
    def _from_first_format(cls, document: Mapping[str, Mapping[str, int]]) -> TierBoundary:
        every = by_place(document)
        archived = {place: end for place, end in every.items() if end != EARLIEST}
        return cls(archived, {place: end for place, end in every.items() if end == EARLIEST})


def halves(tier_boundary: TierBoundary, starting: Bound, ending: Bound) -> tuple[Half, Half]:
    """The offsets of the history and of the live half. Raises ConfigError."""
    places = [*tier_boundary.archived, *tier_boundary.live]
    for side, bound in (("starting", starting), ("ending", ending)):
        if bound.kind is BoundKind.OFFSETS and set(bound.by_partition) != set(places):
            odd = min(set(bound.by_partition) ^ set(places))
            raise ConfigError(
                f"archive then live: {side}Offsets has to name each partition, and no other: {odd}"
            )
    history: dict[ArchiveLocation, tuple[int, int]] = {}
    live: dict[ArchiveLocation, tuple[int, int]] = {}
    for place in sorted(places):
        start, end = _bound_offset(starting, place), _bound_offset(ending, place)
        cross = tier_boundary.archived.get(place)
        if start != LATEST and cross is not None and start < cross:
            history[place] = (start, cross if end == LATEST else min(end, cross))
            live_from = cross
        else:
            # Even below the brokers' log start offset: Spark's source decides if that is a loss.
            live_from = tier_boundary.live.get(place, EARLIEST) if start == EARLIEST else start
        if end == LATEST or end > live_from:
            live[place] = (live_from, end)
    return history, live


def _bound_offset(bound: Bound, place: ArchiveLocation) -> int:
    if bound.kind is BoundKind.OFFSETS:
        return bound.by_partition[place]
    return LATEST if bound.kind is BoundKind.LATEST else EARLIEST


def as_json(offsets: Ends) -> str:
    """The JSON that both sources take."""
    return json.dumps(by_topic(offsets))


def as_assign(places: Mapping[ArchiveLocation, object]) -> str:
    document: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        document.setdefault(topic, []).append(partition)
    return json.dumps(document)
