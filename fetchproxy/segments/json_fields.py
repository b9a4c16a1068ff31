"""The JSON objects of the store, field by field, with their legal values. Pure.

All data from the metadata topic, the store and cache files is checked as it is decoded. Later code
does not check it again: it makes paths of topic names, and adds one to offsets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar
from uuid import UUID

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    TopicIdPartition,
    is_topic_name,
)
from fetchproxy.segments.object_keys import parse_uuid, uuid_text

PARTITION_MAX = 2**31 - 1
_NAME_SHOWN_MAX = 80
INT64_LIMIT = 2**63
INT32_LIMIT = 2**31
T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def legal_partition(topic_id: UUID, topic: str, partition: int) -> TopicIdPartition:
    """Raises CorruptSegment."""
    if not is_topic_name(topic):
        raise CorruptSegment(f"field topic: {topic[:_NAME_SHOWN_MAX]!r} is not a topic name")
    if not 0 <= partition <= PARTITION_MAX:
        raise CorruptSegment(f"field partition is {partition}, not 0 to {PARTITION_MAX}")
    return TopicIdPartition(topic_id, topic, partition)


class NewerMetadataVersion(CorruptSegment):
    """A newer fetchproxy wrote it. It is not broken, but this fetchproxy cannot read it."""


def decode_document(raw: bytes, key: str, version: int, read: Callable[[JsonFields], T]) -> T:
    """Reads one document of up to `version`. Raises CorruptSegment, naming `key` and the field.

    Raises NewerMetadataVersion if the document's own `version` is above that.
    """
    try:
        # RecursionError: thousands of nested brackets; ValueError: not JSON or not UTF-8.
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptSegment(f"{key}: not JSON: {error}") from None
    try:
        fields = JsonFields(document)
        document_version = fields.integer("version", 1, INT32_LIMIT)
        if document_version > version:
            raise NewerMetadataVersion(
                f"metadata version {document_version} was written by a newer fetchproxy, "
                f"this one reads up to version {version}"
            )
        return read(fields)
    except CorruptSegment as error:
        raise type(error)(f"{key}: {error}") from None


def json_document(fields: Mapping[str, object]) -> bytes:
    """One field a line, for people who look into the store."""
    return json.dumps(fields, indent=1).encode() + b"\n"


def identity_fields(tp: TopicIdPartition, version: int) -> dict[str, object]:
    return {
        "version": version,
        "topic": tp.topic,
        "topic_id": uuid_text(tp.topic_id),
        "partition": tp.partition,
    }


class JsonFields:
    """Typed look-ups in one JSON object. A fault raises CorruptSegment, naming the field."""

    def __init__(self, document: Any) -> None:  # any result of json.loads
        if not isinstance(document, dict):
            raise CorruptSegment(f"a JSON {type(document).__name__}, not an object")
        self._document = document

    def _field(self, name: str) -> Any:
        try:
            return self._document[name]
        except KeyError:
            raise CorruptSegment(f"field {name} is missing") from None

    def _typed(self, name: str, kind: type, message: str) -> Any:
        value = self._field(name)
        if type(value) is not kind:
            raise CorruptSegment(f"field {name} is {message}")
        return value

    def _list(self, name: str, kind: type, elements: str) -> list[Any]:
        value = self._field(name)
        if not isinstance(value, list) or any(type(one) is not kind for one in value):
            raise CorruptSegment(f"field {name} is not a list of {elements}")
        return value

    def integer(self, name: str, low: int, limit: int) -> int:
        value = self._field(name)
        # bool is an int in Python, but not in JSON.
        if type(value) is not int or not low <= value < limit:
            raise CorruptSegment(f"field {name} is not an integer from {low} below {limit}")
        return value

    def integers(self, name: str, low: int, limit: int) -> tuple[int, ...]:
        """A list; empty if the field is missing."""
        values = self._list(name, int, "integers") if name in self._document else []
        if not all(low <= value < limit for value in values):
            raise CorruptSegment(f"field {name} has integers not from {low} below {limit}")
        return tuple(values)

    def text(self, name: str) -> str:
        value: str = self._typed(name, str, "not text")
        return value

    def texts(self, name: str) -> list[str]:
        return self._list(name, str, "texts")

    def uuid(self, name: str) -> UUID:
        value = parse_uuid(self.text(name))
        if value is None:
            raise CorruptSegment(f"field {name} is not a Kafka Uuid")
        return value

    def boolean(self, name: str) -> bool:
        value: bool = self._typed(name, bool, "neither true nor false")
        return value

    def member(self, name: str, of: type[E]) -> E:
        value = self.text(name)
        if value not in of.__members__:
            raise CorruptSegment(f"field {name} is not a {of.__name__}: {value[:80]!r}")
        return of[value]

    def is_null(self, name: str) -> bool:
        return self._field(name) is None

    def names(self) -> list[str]:
        return list(self._document)

    def mapping(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = self._typed(name, dict, "not an object")
        return value

    def uuids(self, name: str) -> list[UUID]:
        parsed_uuids = [parse_uuid(text) for text in self._list(name, str, "Kafka Uuids")]
        if None in parsed_uuids:
            raise CorruptSegment(f"field {name} is not a list of Kafka Uuids")
        return [value for value in parsed_uuids if value is not None]

    def lists(self, name: str) -> list[list[Any]]:
        return self._list(name, list, "lists")

    def number(self, name: str) -> float:
        value = self._field(name)
        if type(value) not in (int, float):
            raise CorruptSegment(f"field {name} is not a number")
        try:
            return float(value)
        except OverflowError:
            raise CorruptSegment(f"field {name} is too large for a number") from None

    def objects(self, name: str) -> list[JsonFields]:
        return [JsonFields(entry) for entry in self._typed(name, list, "not a list")]

    def partition(self) -> TopicIdPartition:
        """Raises CorruptSegment, also for an invalid topic name."""
        partition = self.integer("partition", 0, INT32_LIMIT)
        return legal_partition(self.uuid("topic_id"), self.text("topic"), partition)
