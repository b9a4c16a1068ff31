"""The JSON objects in the store that describe a segment or a partition: their fields and legal
values. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    CompactedCopy,
    EpochStart,
    LogHistory,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.segments.json_fields import (
    INT32_LIMIT,
    INT64_LIMIT,
    JsonFields,
    decode_document,
    identity_fields,
    json_document,
)
from fetchproxy.segments.object_keys import uuid_text

SEGMENT_VERSION = 3
_CLIPPED_VERSION = 2
_UNCLIPPED_VERSION = 1
_IN_EVERY_OBJECT = 1  # fields up to this version of the record: the first objects have them, too
LOG_START_VERSION = 1
PARTITION_DELETION_VERSION = 1
FINISHED_OFFSETS_VERSION = 1
NOT_STATED = -1
# Each number with its least value and its upper limit (exclusive).
_FINISHED_FIELDS = {
    "recorded_from": (0, INT64_LIMIT),
    "end_offset": (NOT_STATED, INT64_LIMIT),
    "leader_epoch": (-1, INT32_LIMIT),
    "log_start_offset": (0, INT64_LIMIT),
}
LOG_HISTORY_VERSION = 2  # 2: with `compacted`


def legal_segment(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Returns `segment`, whose fields are not below their least values. Raises CorruptSegment."""
    start, end, copied = segment.start_offset, segment.end_offset, segment.stored_end_offset
    if not 0 <= start <= end <= copied <= OFFSET_MAX:
        raise CorruptSegment(
            f"offsets {start} to {end}, copied to {copied}: they do not rise from 0 to {OFFSET_MAX}"
        )
    size = segment.segment_size_bytes
    if not 0 <= size <= SEGMENT_BYTES_MAX:
        raise CorruptSegment(f"a segment of {size} bytes: 0 to {SEGMENT_BYTES_MAX} are possible")
    for epoch in segment.segment_leader_epochs:
        if epoch.start_offset > OFFSET_MAX:
            raise CorruptSegment(f"leader epoch {epoch.epoch} from offset {epoch.start_offset}")
    return segment


# The fields of a segment's metadata, each once. They make up the record of topic and flat file
# (`records`), the JSON object beside a segment and the columns in memory (`metadata.columns`).


class FieldKind(Enum):
    """The form of a value in a record, big-endian. In JSON it is a number unless noted here."""

    UUID = "16s"  # in JSON as Kafka writes Uuids
    INT64 = "q"
    SIZE = "Q"  # int64; in version 0 of the record int32
    OPTIONAL_INT64 = "q?"  # -1: none; JSON then leaves it out
    LAST_EPOCH = "i"  # the last leader epoch; -1: none. JSON has no such field; nothing reads it
    EPOCHS = "[]"  # a count (int32), then int32 and int64 of each; in JSON a list of objects
    STATE = "b"  # its name in JSON
    BOOLEAN = "?"


class StoredField(NamedTuple):
    """One field of RemoteLogSegmentMetadata. `low`: its least legal value, or a field with it.

    `since`: the first version of the record with the field. `if_absent`: its value in earlier
    versions. A new field makes a new version; objects without the field are older, too.
    """

    attribute: str
    record: str
    json: str
    kind: FieldKind
    low: int | str = 0
    since: int = 0
    if_absent: Any = None

    def least(self, values: Mapping[str, Any]) -> int:
        """`values`: the values of the fields before this one, by attribute."""
        return values[self.low] if isinstance(self.low, str) else self.low


EPOCHS_FIELD = StoredField(
    "segment_leader_epochs", "segmentLeaderEpochs", "leader_epochs", FieldKind.EPOCHS, -1
)
FIELDS = (
    StoredField("segment_id", "segmentId", "segment_id", FieldKind.UUID),
    StoredField("start_offset", "startOffset", "base_offset", FieldKind.INT64),
    StoredField("end_offset", "endOffset", "end_offset", FieldKind.INT64, "start_offset"),
    StoredField("segment_leader_epochs", "leaderEpoch", "", FieldKind.LAST_EPOCH, -1),
    StoredField("max_timestamp_ms", "maxTimestamp", "max_timestamp_ms", FieldKind.INT64, -1),
    StoredField("event_timestamp_ms", "eventTimestamp", "event_timestamp_ms", FieldKind.INT64, -1),
    EPOCHS_FIELD,
    StoredField("segment_size_bytes", "segmentSizeInBytes", "segment_size_bytes", FieldKind.SIZE),
    StoredField("state", "remoteLogState", "state", FieldKind.STATE),
    # If the value is unknown, a reader asks for the transaction index. Without an index it fails
    # instead of serving aborted records.
    StoredField(
        "has_aborted_txns", "hasAbortedTxns", "has_aborted_txns", FieldKind.BOOLEAN,
        since=1, if_absent=True,
    ),
    StoredField(
        "copied_end_offset", "copiedEndOffset", "copied_end_offset", FieldKind.OPTIONAL_INT64,
        low="end_offset", since=1,
    ),
    # A reader that overlooked it would take the log for damaged.
    StoredField("packed", "packed", "packed", FieldKind.BOOLEAN, since=2, if_absent=False),
)  # fmt: skip


def encode_segment(metadata: RemoteLogSegmentMetadata) -> bytes:
    """Content of the `.metadata` object beside each segment: RemoteLogSegmentMetadata as JSON.

        {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0, "segment_id": "…",
         "base_offset": 0, "end_offset": 999, "max_timestamp_ms": …, "event_timestamp_ms": …,
         "leader_epochs": [{"epoch": 0, "start_offset": 0}], "segment_size_bytes": 67108864,
         "state": "COPY_SEGMENT_FINISHED", "has_aborted_txns": false}

    A field that an older reader may overlook can be added to a version; anything else makes a new
    version, which an older reader refuses instead of guessing.

    Version 2 is written only for segments that a truncation has clipped. It adds
    `"copied_end_offset"`; a reader that overlooked it would take the object for damaged. Likewise,
    version 3 is for segments with a packed log, `"packed": true`. They may be clipped too.
    """
    clipped = metadata.copied_end_offset is not None
    version = _CLIPPED_VERSION if clipped else _UNCLIPPED_VERSION
    document = identity_fields(
        metadata.topic_id_partition, SEGMENT_VERSION if metadata.packed else version
    )
    for field in FIELDS:
        value = getattr(metadata, field.attribute)
        is_stored = field.since <= _IN_EVERY_OBJECT or value != field.if_absent
        if field.json and value is not None and is_stored:
            document[field.json] = to_json(field, value)
    return json_document(document)


def to_json(field: StoredField, value: Any) -> object:
    encode = _TO_JSON.get(field.kind)
    return value if encode is None else encode(value)


def _epochs_as_json(epochs: Iterable[EpochStart]) -> list[dict[str, int]]:
    return [{"epoch": e.epoch, "start_offset": e.start_offset} for e in epochs]


def _epoch_starts(fields: JsonFields, name: str) -> tuple[EpochStart, ...]:
    return tuple(
        EpochStart(e.integer("epoch", -1, INT32_LIMIT), e.integer("start_offset", 0, INT64_LIMIT))
        for e in fields.objects(name)
    )


_TO_JSON: dict[FieldKind, Callable[[Any], Any]] = {
    FieldKind.UUID: lambda segment_id: uuid_text(segment_id.id),
    FieldKind.STATE: lambda state: state.name,
    FieldKind.EPOCHS: _epochs_as_json,
}


def decode_segment(raw: bytes, key: str) -> RemoteLogSegmentMetadata:
    """As `decode_document`."""
    return decode_document(raw, key, SEGMENT_VERSION, _segment)


def _segment(fields: JsonFields) -> RemoteLogSegmentMetadata:
    tp = fields.partition()
    version = fields.integer("version", 1, INT32_LIMIT)
    clipped = version == _CLIPPED_VERSION or (
        version > _CLIPPED_VERSION and "copied_end_offset" in fields.names()
    )
    values: dict[str, Any] = {}
    for field in FIELDS:
        name = field.attribute
        if field.json and field.since > _IN_EVERY_OBJECT and field.json not in fields.names():
            values[name] = field.if_absent
        elif field.kind is FieldKind.UUID:
            values[name] = RemoteLogSegmentId(tp, fields.uuid(field.json))
        elif field.kind is FieldKind.OPTIONAL_INT64 and not clipped:
            values[name] = None
        elif field.json:
            values[name] = from_json(fields, field, field.least(values))
    return legal_segment(RemoteLogSegmentMetadata(**values))


def from_json(fields: JsonFields, field: StoredField, low: int) -> Any:
    """Any field except the segment's id. Raises CorruptSegment."""
    name = field.json
    if field.kind is FieldKind.STATE:
        return fields.member(name, RemoteLogSegmentState)
    if field.kind is FieldKind.BOOLEAN:
        return fields.boolean(name)
    if field.kind is FieldKind.EPOCHS:
        return _epoch_starts(fields, name)
    return fields.integer(name, low, INT64_LIMIT)


def encode_log_start(tp: TopicIdPartition, offset: int) -> bytes:
    """Content of a `.log-start-offset` object, for people who look into the store.

        {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0, "log_start_offset": 1234}

    Nothing reads it back: the object's key has all the values (`object_keys`).
    """
    return json_document(identity_fields(tp, LOG_START_VERSION) | {"log_start_offset": offset})


def encode_partition_deletion(deletion: RemotePartitionDeleteMetadata) -> bytes:
    """Content of a partition's `delete-partition-state` object: RemotePartitionDeleteMetadata.

    {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0,
     "state": "DELETE_PARTITION_MARKED", "event_timestamp_ms": …, "epoch": -1}
    """
    document = {
        "state": deletion.state.name,
        "event_timestamp_ms": deletion.event_timestamp_ms,
        "epoch": deletion.epoch,
    }
    place = identity_fields(deletion.topic_id_partition, PARTITION_DELETION_VERSION)
    return json_document(place | document)


def decode_partition_deletion(raw: bytes, key: str) -> RemotePartitionDeleteMetadata:
    """As `decode_document`."""
    return decode_document(raw, key, PARTITION_DELETION_VERSION, _deletion)


def _deletion(fields: JsonFields) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(
        topic_id_partition=fields.partition(),
        state=fields.member("state", RemotePartitionDeleteState),
        event_timestamp_ms=fields.integer("event_timestamp_ms", -1, INT64_LIMIT),
        epoch=fields.integer("epoch", -1, INT32_LIMIT),
    )


@dataclass(frozen=True, slots=True)
class FinishedOffsets:
    """Each offset from `recorded_from` to `end_offset` (inclusive) was copied, or has a record.

    A record is an `.archive-gap`; offsets below a raised log start offset need none. `end_offset`:
    the end of a finished segment, in `leader_epoch` (-1: written without epochs). It is NOT_STATED
    after a truncation, until the next segment is finished. More may have been finished.
    `log_start_offset`: the raised log start offset by then; 0: not raised.

    Content of a partition's `finished-offsets` object: the offsets that its archive has to hold.

        {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0,
         "recorded_from": 0, "end_offset": 7355, "leader_epoch": 3,
         "log_start_offset": 0, "crc32c": "0a1b2c3d"}

    The checksum covers the other values, as nothing else repeats them. The content of an
    `.archive-gap` object is below, too. Nothing reads it back, as its key has all the values.
    """

    topic_id_partition: TopicIdPartition
    recorded_from: int
    end_offset: int = NOT_STATED
    leader_epoch: int = -1
    log_start_offset: int = 0


def encode_finished_offsets(finished: FinishedOffsets) -> bytes:
    place = identity_fields(finished.topic_id_partition, FINISHED_OFFSETS_VERSION)
    document = {name: getattr(finished, name) for name in _FINISHED_FIELDS}
    return json_document(place | document | {"crc32c": _checksum(finished)})


def decode_finished_offsets(raw: bytes, key: str, tp: TopicIdPartition) -> FinishedOffsets:
    """Raises CorruptSegment, naming `key` and the field; NewerMetadataVersion."""

    def read(fields: JsonFields) -> FinishedOffsets:
        if fields.partition() != tp:
            raise CorruptSegment(f"it is of {fields.partition()}")
        values = {name: fields.integer(name, *limits) for name, limits in _FINISHED_FIELDS.items()}
        finished_offsets = FinishedOffsets(tp, **values)
        if fields.text("crc32c") != _checksum(finished_offsets):
            raise CorruptSegment("its checksum does not match")
        return finished_offsets

    return decode_document(raw, key, FINISHED_OFFSETS_VERSION, read)


def encode_archive_gap(tp: TopicIdPartition, first: int, last: int) -> bytes:
    document = {"first_lost_offset": first, "last_lost_offset": last}
    return json_document(identity_fields(tp, FINISHED_OFFSETS_VERSION) | document)


def _checksum(finished: FinishedOffsets) -> str:
    tp = finished.topic_id_partition
    values = tuple(getattr(finished, name) for name in _FINISHED_FIELDS)
    text = f"{tp.topic} {uuid_text(tp.topic_id)} {tp.partition} {values}"
    return f"{crc32c(text.encode()):08x}"


def encode_log_history(tp: TopicIdPartition, history: LogHistory) -> bytes:
    """Content of a partition's `log-history` object.

    {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0, "after_epoch": -1,
     "kept_below": 4000, "kept_epoch": 7, "earlier": []}

    Of a compacted log, with version 2, also which copy counts (`model.CompactedCopy`):

     "compacted": {"number": 116872…, "made_to": 900, "shown_to": -1, "caught_up_ms": 1783…}
    """
    fields = asdict(history)
    if history.compacted is None:  # so that older versions can read it
        del fields["compacted"]
    version = 1 if history.compacted is None else LOG_HISTORY_VERSION
    return json_document(identity_fields(tp, version) | fields)


def decode_log_history(raw: bytes, key: str) -> LogHistory:
    """As `decode_document`."""
    return decode_document(raw, key, LOG_HISTORY_VERSION, _history)


def _history(fields: JsonFields) -> LogHistory:
    return LogHistory(
        after_epoch=fields.integer("after_epoch", -1, INT32_LIMIT),
        kept_below=fields.integer("kept_below", 0, INT64_LIMIT),
        kept_epoch=fields.integer("kept_epoch", -1, INT32_LIMIT),
        earlier=fields.integers("earlier", 0, INT32_LIMIT),
        compacted=_compacted(fields) if "compacted" in fields.names() else None,
    )


def _compacted(history: JsonFields) -> CompactedCopy:
    fields = JsonFields(history.mapping("compacted"))
    return CompactedCopy(
        number=fields.integer("number", 0, INT64_LIMIT),
        made_to=fields.integer("made_to", 0, INT64_LIMIT),
        shown_to=fields.integer("shown_to", -1, INT64_LIMIT),
        caught_up_ms=fields.integer("caught_up_ms", -1, INT64_LIMIT),
    )
