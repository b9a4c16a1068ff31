"""Conditions that only one archiver knows. It keeps them in the store for all other processes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import structlog

from fetchproxy.errors import CorruptSegment, DamagedObject, RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import (
    Condition,
    Health,
    Kind,
    Offsets,
    Subject,
    of_partition,
)
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.runtime.retrying import within
from fetchproxy.segments.json_fields import INT64_LIMIT, JsonFields, decode_document, json_document
from fetchproxy.storage.archive_objects import ArchiveObjects, ConditionsObject

log = structlog.get_logger(__name__)

_VERSION = 1
_PUBLISH_INTERVAL_S = 5.0
PUBLISH_MAX_S = 60.0
_READ_AT_ONCE = 16


class PublishedConditions:
    """`health` has each condition while it lasts; `publish` writes this archiver's decisions to the
    store. For a partition that this archiver has not checked yet, the store keeps the last
    archiver's condition. `objects` None: the store keeps nothing.
    """

    def __init__(self, objects: ArchiveObjects | None = None) -> None:
        self._objects = objects
        self.health = Health()
        self._decided: defaultdict[str, set[Subject]] = defaultdict(set)
        self._unpublished: set[tuple[Kind, Subject]] = set()
        self._stored: Mapping[ConditionsObject, Condition] = {}  # as last read

    def hold(
        self,
        kind: Kind,
        subject: Subject,
        what: str,
        offsets: Offsets | None = None,
        until: float | None = None,
        **fields: object,
    ) -> None:
        """`what`: for people; may change at each look. It is logged when the condition begins."""
        condition = of_partition(kind, subject, what, offsets, until=until)
        if self._condition_of(kind, subject) != condition:
            self._unpublished.add((kind, subject))
        self.health.report(condition, subject or "", **fields)
        self._decided[kind].add(subject)

    def release(self, kind: Kind, subject: Subject) -> None:
        """The condition is over, or never was true."""
        if self.health.clear(kind, subject or "") or subject not in self._decided[kind]:
            self._decided[kind].add(subject)
            self._unpublished.add((kind, subject))

    def forget(self, tp: TopicIdPartition, *kinds: Kind) -> None:
        """Another archiver, or none, checks the partition from now on."""
        for kind in kinds:
            self.health.forget(kind, tp)
            self._decided[kind].discard(tp)
            self._unpublished.discard((kind, tp))

    def merged(
        self, stored: Mapping[ConditionsObject, Condition], now: float
    ) -> Iterator[Condition]:
        """This archiver's, and those of `stored` that others have decided. In no order."""
        yield from self.health.all(now)
        for one, condition in stored.items():
            if one.tp not in self._decided.get(one.name, ()):
                yield condition

    def _condition_of(self, kind: Kind, subject: Subject) -> Condition | None:
        return self.health.reported(kind, subject or "")

    async def publish(self) -> None:
        """Raises RemoteStorageError; the next call publishes the rest."""
        if not self._unpublished or self._objects is None:
            return
        async with within(PUBLISH_MAX_S, "put of conditions"):
            await self._publish(self._objects)

    async def _publish(self, objects: ArchiveObjects) -> None:
        self._stored = await read_published_conditions(objects, self._stored)
        stored = {(one.name, one.tp): condition for one, condition in self._stored.items()}
        for kind, subject in list(self._unpublished):
            if (kind, subject) not in self._unpublished:
                continue  # forgotten meanwhile: it is another archiver's
            condition_now = self._condition_of(kind, subject)
            condition = stored.get((kind, subject))
            if condition_now is None and condition is not None:
                await objects.delete_conditions(subject, kind)
            elif condition_now is not None and condition != condition_now:
                await objects.put_conditions(subject, kind, encode_conditions(condition_now))
            if self._condition_of(kind, subject) == condition_now:  # not changed meanwhile
                self._unpublished.discard((kind, subject))

    async def run(self) -> None:
        """Runs until cancelled. Logs an error once per outage and tries again."""
        failing = False
        while True:
            try:
                await self.publish()
                failing = False
            except RemoteStorageError as error:
                if not failing:
                    log.warning("concerns_not_published", error=str(error))
                failing = True
            await asyncio.sleep(_PUBLISH_INTERVAL_S)


# --- in the store ---
async def read_published_conditions(
    objects: ArchiveObjects, known: Mapping[ConditionsObject, Condition] = MappingProxyType({})
) -> dict[ConditionsObject, Condition]:
    """The archive's. Those in `known` are not read again. Raises RemoteStorageError."""
    listed = await objects.list_published_conditions()
    conditions = {one: known.get(one) for one in listed}

    async def read(one: ConditionsObject) -> None:
        try:
            raw = await objects.get_conditions(one)
            conditions[one] = None if raw is None else _decode(raw, one)
        except DamagedObject as damage:
            conditions[one] = of_partition(one.name, one.tp, str(damage))

    await for_each([one for one in listed if conditions[one] is None], read, _READ_AT_ONCE)
    return {one: condition for one, condition in conditions.items() if condition is not None}


def encode_conditions(one: Condition) -> bytes:
    """{"version": 1, "what": "…"}, with "first_offset" and "last_offset" if there are offsets."""
    offsets = {"first_offset": one.first_offset, "last_offset": one.last_offset}
    fields = {"version": _VERSION, "what": one.what}
    known = {name: value for name, value in offsets.items() if value is not None}
    return json_document(fields | known)


def _decode(raw: bytes, listed: ConditionsObject) -> Condition:
    """An unreadable one is reported too: its name tells most."""
    try:
        what, offsets = decode_document(raw, listed.key, _VERSION, _statement)
    except CorruptSegment as error:
        what, offsets = str(error), None
    return of_partition(listed.name, listed.tp, what, offsets)


def _statement(fields: JsonFields) -> tuple[str, Offsets | None]:
    what = fields.text("what")
    if "first_offset" not in fields.names():
        return what, None
    first = fields.integer("first_offset", 0, INT64_LIMIT)
    return what, (first, fields.integer("last_offset", first, INT64_LIMIT))
