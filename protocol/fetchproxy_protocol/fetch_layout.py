"""Which fields a partition of a Fetch has, by version: one description for all code that reads one.

Only fields of a fixed width are here: those of a request's partition up to its tags, and those of a
response's partition up to the list of aborted transactions. The names and versions are those of
Kafka's FetchRequest.json and FetchResponse.json; a test compares them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, calcsize
from typing import NamedTuple

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey

FETCH_VERSION_MIN, FETCH_VERSION_MAX = PROXIED_VERSIONS[ApiKey.FETCH]
FETCH_VERSIONS = range(FETCH_VERSION_MIN, FETCH_VERSION_MAX + 1)
LOG_START_FROM = 5
SESSIONS_FROM = 7
LEADER_EPOCH_FROM = 9
PREFERRED_REPLICA_FROM = 11
FETCH_FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_STATE_FROM = 15  # a tag has the replica's id; before, the request begins with it
NODE_ENDPOINTS_FROM = 16


class FixedField(NamedTuple):
    """`code`: its format in the module `struct`. `since`: the first version with the field."""

    name: str
    code: str
    since: int = 0


REQUEST_PARTITION = (
    FixedField("Partition", "i"),
    FixedField("CurrentLeaderEpoch", "i", LEADER_EPOCH_FROM),
    FixedField("FetchOffset", "q"),
    FixedField("LastFetchedEpoch", "i", FETCH_FLEXIBLE_FROM),
    FixedField("LogStartOffset", "q", LOG_START_FROM),
    FixedField("PartitionMaxBytes", "i"),
)
RESPONSE_PARTITION = (
    FixedField("PartitionIndex", "i"),
    FixedField("ErrorCode", "h"),
    FixedField("HighWatermark", "q"),
    FixedField("LastStableOffset", "q"),
    FixedField("LogStartOffset", "q", LOG_START_FROM),
)


def codes(fields: Sequence[FixedField], version: int, before: str | None = None) -> str:
    """For `struct`, big-endian. `before`: only the fields in front of this one."""
    names = [field.name for field in fields]
    front = fields if before is None else fields[: names.index(before)]
    return ">" + "".join(field.code for field in front if field.since <= version)


def position(fields: Sequence[FixedField], name: str, version: int) -> int:
    return calcsize(codes(fields, version, name))


def size(fields: Sequence[FixedField], version: int) -> int:
    return calcsize(codes(fields, version))


REQUEST_ENTRY_BYTES = {version: size(REQUEST_PARTITION, version) for version in FETCH_VERSIONS}
# An entry that a session keeps does not say its version, but its size does: only entries of
# flexible versions have tags, so all others have one of a few sizes.
REQUEST_ENTRY_BYTES_MAX = max(REQUEST_ENTRY_BYTES.values())


def positions_by_size(name: str) -> tuple[int, ...]:
    """Where a request's field is in an entry, by the entry's size; the last one is for all larger
    entries. In entries without the field: the position of the next one.
    """
    layouts = {REQUEST_ENTRY_BYTES[v]: position(REQUEST_PARTITION, name, v) for v in FETCH_VERSIONS}
    sizes = range(REQUEST_ENTRY_BYTES_MAX + 1)
    smallest = min(layouts)
    return tuple(layouts[max((s for s in layouts if s <= n), default=smallest)] for n in sizes)


def response_partition(version: int, further: str) -> Struct:
    """The fixed fields that begin a partition, then `further` fields as codes of `struct`."""
    return Struct(codes(RESPONSE_PARTITION, version) + further)
