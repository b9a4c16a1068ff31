"""Typed look-ups in the JSON objects that lie in the store; every fault names object and field.

Pure. Knows none of the documents: `segment_json`, `partition_deletion_json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar
from uuid import UUID

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.legal_values import legal_partition
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.layout import parse_uuid

INT64 = 2**63
INT32 = 2**31

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class NewerMetadataVersion(CorruptSegment):
    """Written by a newer fetchproxy; not broken, but not to be read by this one."""


def decode_document(raw: bytes, key: str, version: int, read: Callable[[Fields], T]) -> T:
    """`read` one document of up to `version`; raises CorruptSegment, naming `key` and the field.

    NewerMetadataVersion where its own `version` is above that.
    """
    try:
        # RecursionError: thousands of nested brackets; ValueError: no JSON or no UTF-8.
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptSegment(f"{key}: no JSON: {error}") from None
    try:
        fields = Fields(document)
        found = fields.integer("version", 1, INT32)
        if found > version:
            raise NewerMetadataVersion(
                f"metadata version {found} was written by a newer fetchproxy, "
                f"this one reads up to version {version}"
            )
        return read(fields)
    except NewerMetadataVersion as error:
        raise NewerMetadataVersion(f"{key}: {error}") from None
    except CorruptSegment as error:
        raise CorruptSegment(f"{key}: {error}") from None


class Fields:
    """Typed look-ups in one JSON object; a fault is a CorruptSegment that names the field."""

    def __init__(self, document: Any) -> None:  # whatever json.loads gave
        if not isinstance(document, dict):
            raise CorruptSegment(f"a JSON {type(document).__name__}, not an object")
        self._document = document

    def _field(self, name: str) -> Any:
        try:
            return self._document[name]
        except KeyError:
            raise CorruptSegment(f"field {name} is missing") from None

    def integer(self, name: str, low: int, limit: int) -> int:
        value = self._field(name)
        # bool is an int in Python, but not in JSON.
        if type(value) is not int or not low <= value < limit:
            raise CorruptSegment(f"field {name} is no integer from {low} below {limit}")
        return value

    def integers(self, name: str, low: int, limit: int) -> tuple[int, ...]:
        """A list; where it is missing, an empty one."""
        value = self._document.get(name, [])
        if not isinstance(value, list) or any(type(v) is not int for v in value):
            raise CorruptSegment(f"field {name} is no list of integers")
        if not all(low <= v < limit for v in value):
            raise CorruptSegment(f"field {name} has integers not from {low} below {limit}")
        return tuple(value)

    def text(self, name: str) -> str:
        value = self._field(name)
        if not isinstance(value, str):
            raise CorruptSegment(f"field {name} is no text")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._field(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise CorruptSegment(f"field {name} is no list of texts")
        return list(value)

    def uuid(self, name: str) -> UUID:
        value = parse_uuid(self.text(name))
        if value is None:
            raise CorruptSegment(f"field {name} is no Kafka Uuid")
        return value

    def boolean(self, name: str) -> bool:
        value = self._field(name)
        if not isinstance(value, bool):
            raise CorruptSegment(f"field {name} is neither true nor false")
        return value

    def member(self, name: str, of: type[E]) -> E:
        value = self.text(name)
        if value not in of.__members__:
            raise CorruptSegment(f"field {name} is no {of.__name__}: {value[:80]!r}")
        return of[value]

    def names(self) -> list[str]:
        return list(self._document)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._field(name)
        if not isinstance(value, dict):
            raise CorruptSegment(f"field {name} is no object")
        return value

    def uuids(self, name: str) -> list[UUID]:
        value = self._field(name)
        found = [parse_uuid(str(text)) for text in value] if isinstance(value, list) else [None]
        if None in found:
            raise CorruptSegment(f"field {name} is no list of Kafka Uuids")
        return [value for value in found if value is not None]

    def objects(self, name: str) -> list[Fields]:
        value = self._field(name)
        if not isinstance(value, list):
            raise CorruptSegment(f"field {name} is no list")
        return [Fields(entry) for entry in value]

    def partition(self) -> TopicIdPartition:
        """Raises CorruptSegment also for what no partition can be called."""
        partition = self.integer("partition", 0, INT32)
        return legal_partition(self.uuid("topic_id"), self.text("topic"), partition)
