"""Conditions that only one archiver knows. It keeps them in the store for all other processes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import structlog

from fetchproxy.errors import CorruptSegment, DamagedObject, RemoteStorageError
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

    def forget(self, subject: Subject, *kinds: Kind) -> None:
        """Another archiver, or none, checks the subject from now on."""
        for kind in kinds:
            self.health.forget(kind, subject or "")
            self._decided[kind].discard(subject)
            self._unpublished.discard((kind, subject))

    def merged(
        self, published: Mapping[ConditionsObject, Condition], now: float
    ) -> Iterator[Condition]:
        """This archiver's, and those of `published` that others have decided. In no order."""
        yield from self.health.all(now)
        for one, condition in published.items():
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
    objects: ArchiveObjects, cached: Mapping[ConditionsObject, Condition] = MappingProxyType({})
) -> dict[ConditionsObject, Condition]:
    """The archive's. Those in `cached` are not read again. Raises RemoteStorageError."""
    listed_objects = await objects.list_published_conditions()
    conditions = {one: cached.get(one) for one in listed_objects}

    async def read(listed_object: ConditionsObject) -> None:
        try:
            raw = await objects.get_conditions(listed_object)
            conditions[listed_object] = None if raw is None else _decode(raw, listed_object)
        except DamagedObject as damage:
            conditions[listed_object] = of_partition(
                listed_object.name, listed_object.tp, str(damage)
            )

    await for_each([one for one in listed_objects if conditions[one] is None], read, _READ_AT_ONCE)
    return {one: condition for one, condition in conditions.items() if condition is not None}


def encode_conditions(condition: Condition) -> bytes:
    """{"version": 1, "what": "…"}, with "first_offset" and "last_offset" if there are offsets."""
    offsets = {"first_offset": condition.first_offset, "last_offset": condition.last_offset}
    fields = {"version": _VERSION, "what": condition.what}
    known_offsets = {name: value for name, value in offsets.items() if value is not None}
    return json_document(fields | known_offsets)


def _decode(raw: bytes, conditions_object: ConditionsObject) -> Condition:
    """An unreadable one is reported too: its name tells most."""
    try:
        what, offsets = decode_document(raw, conditions_object.key, _VERSION, _statement)
    except CorruptSegment as error:
        what, offsets = str(error), None
    return of_partition(conditions_object.name, conditions_object.tp, what, offsets)


def _statement(fields: JsonFields) -> tuple[str, Offsets | None]:
    what = fields.text("what")
    if "first_offset" not in fields.names():
        return what, None
    first = fields.integer("first_offset", 0, INT64_LIMIT)
    return what, (first, fields.integer("last_offset", first, INT64_LIMIT))
