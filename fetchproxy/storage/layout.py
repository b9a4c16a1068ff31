"""Where the objects of the archive lie: names from values and back. Pure; knows no store.

    <prefix>/<topic>-<topicId>/<partition>/<20-digit base offset>-<segmentId>.<suffix>
    <prefix>/<topic>-<topicId>/<partition>/<20-digit offset>.log-start-offset
    <prefix>/<topic>-<topicId>/<partition>/delete-partition-state
    <prefix>/<topic>-<topicId>/cluster-id

Both ids are written as Kafka writes its Uuids: url-safe base64 of the 16 bytes without padding,
22 characters, which may themselves begin with or contain `-` and `_`. So names are taken apart by
fixed widths from the right, never by splitting. Names that are not of this layout parse to None:
an archive may share its bucket with other things.

The highest `.log-start-offset` of a partition says what DeleteRecords has deleted. Its offset is in
its name, so that two writers cannot undo each other's: each makes its own object, the highest
counts, and the lower ones can go at any time. `delete-partition-state` is there while a deleted
topic's partition is being removed, and is the last object of it to go. `cluster-id` names the
cluster in which an archiver has last seen the topic alive: no other may find it deleted.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from uuid import UUID

from fetchproxy.model import RemoteLogSegmentId, TopicIdPartition, is_topic_name
from fetchproxy.storage.keys import check_key

LAYOUT_VERSION = 1
LAYOUT_OBJECT = "remote-log-layout"  # beside the topics' folders: says the version

_UUID_CHARS = 22
_OFFSET_DIGITS = 20
_OFFSET_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1
_UUID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_OFFSET = re.compile(r"[0-9]{20}", re.ASCII)
_DELETION_OBJECT = "delete-partition-state"
_CLUSTER_OBJECT = "cluster-id"
_LOG_START_SUFFIX = ".log-start-offset"
_LAYOUT = re.compile(rb"remote-log-layout ([0-9]{1,9})\n")


class SegmentFile(StrEnum):
    """The objects of one segment; the value is the suffix."""

    LOG = "log"  # record batches, byte for byte
    INDEX = "index"  # remoteLogIndex entries
    TXN = "txn"  # aborted transactions; absent where there are none
    EPOCHS = "epochs"  # leader epochs up to the segment's end
    METADATA = "metadata"  # RemoteLogSegmentMetadata, so that the archive describes itself
    # A broker's own files, byte for byte, of segments that were copied from its log directory.
    OFFSET_INDEX = "offset-index"  # Kafka's `.index`
    TIME_INDEX = "time-index"  # Kafka's `.timeindex`
    PRODUCER_SNAPSHOT = "producer-snapshot"  # Kafka's `.snapshot` at the segment's end


# Of some segments only, whatever their metadata say; nothing that serves records needs them.
KAFKA_FILES = (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX, SegmentFile.PRODUCER_SNAPSHOT)

_SEGMENT_FILES = {file.value: file for file in SegmentFile}


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """What the key of one object says."""

    segment_id: RemoteLogSegmentId
    base_offset: int
    file: SegmentFile


def uuid_text(value: UUID) -> str:
    """As Kafka's Uuid.toString."""
    return urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def parse_uuid(text: str) -> UUID | None:
    """None if `text` is not exactly what `uuid_text` writes."""
    if not _UUID.fullmatch(text):
        return None
    value = UUID(bytes=urlsafe_b64decode(text + "=="))
    # 22 characters hold 132 bits: reject the texts that differ in the four that do not count.
    return value if uuid_text(value) == text else None


def normal_prefix(prefix: str) -> str:
    """`prefix` without outer slashes and, unless empty, with one at its end.

    Raises ValueError if keys below it would be illegal.
    """
    bare = prefix.strip("/")
    return check_key(bare) + "/" if bare else ""


def topic_folder(prefix: str, topic: str, topic_id: UUID) -> str:
    """`prefix` is one of `normal_prefix`. Raises ValueError for a name Kafka would not take."""
    if not is_topic_name(topic):
        raise ValueError(f"illegal topic name {topic!r}")
    return f"{prefix}{topic}-{uuid_text(topic_id)}/"


def partition_folder(prefix: str, tip: TopicIdPartition) -> str:
    if not 0 <= tip.partition <= _PARTITION_MAX:
        raise ValueError(f"illegal partition {tip.partition}")
    return f"{topic_folder(prefix, tip.topic, tip.topic_id)}{tip.partition}/"


def segment_key(
    prefix: str, segment_id: RemoteLogSegmentId, base_offset: int, file: SegmentFile
) -> str:
    """`base_offset` is the segment's first offset."""
    folder = partition_folder(prefix, segment_id.topic_id_partition)
    return f"{folder}{_offset_text(base_offset)}-{uuid_text(segment_id.id)}.{file.value}"


def log_start_key(prefix: str, tip: TopicIdPartition, offset: int) -> str:
    return f"{partition_folder(prefix, tip)}{_offset_text(offset)}{_LOG_START_SUFFIX}"


def parse_log_start_key(prefix: str, key: str) -> int | None:
    """The offset that a key of `log_start_key` says."""
    folder, slash, name = key.rpartition("/")
    offset = name.removesuffix(_LOG_START_SUFFIX)
    if offset == name or not _OFFSET.fullmatch(offset) or int(offset) > _OFFSET_MAX:
        return None
    return None if parse_partition_folder(prefix, folder + slash) is None else int(offset)


def partition_deletion_key(prefix: str, tip: TopicIdPartition) -> str:
    return f"{partition_folder(prefix, tip)}{_DELETION_OBJECT}"


def topic_cluster_key(prefix: str, topic: str, topic_id: UUID) -> str:
    return f"{topic_folder(prefix, topic, topic_id)}{_CLUSTER_OBJECT}"


def key_after_base_offset(prefix: str, tip: TopicIdPartition, base_offset: int) -> str:
    """Sorts after every object with this base offset and before those with a higher one."""
    # "." is the character after "-" in ASCII, and listings are in the order of bytes.
    return f"{partition_folder(prefix, tip)}{_offset_text(base_offset)}."


def parse_topic_folder(name: str) -> tuple[str, UUID] | None:
    """`name` is one path part without slashes."""
    if len(name) < _UUID_CHARS + 2 or name[-_UUID_CHARS - 1] != "-":
        return None
    topic = name[: -_UUID_CHARS - 1]
    topic_id = parse_uuid(name[-_UUID_CHARS:])
    if topic_id is None or not is_topic_name(topic):
        return None
    return topic, topic_id


@lru_cache(maxsize=4096)  # a listing names the same folder again with each of its objects
def parse_partition_folder(prefix: str, folder: str) -> TopicIdPartition | None:
    """`folder` is a key up to and with the slash after the partition."""
    parts = folder[len(prefix) :].split("/")
    if not folder.startswith(prefix) or len(parts) != 3 or parts[2]:
        return None
    topic = parse_topic_folder(parts[0])
    if topic is None or not _DECIMAL.fullmatch(parts[1]) or int(parts[1]) > _PARTITION_MAX:
        return None
    return TopicIdPartition(topic_id=topic[1], topic=topic[0], partition=int(parts[1]))


def parse_segment_key(prefix: str, key: str) -> SegmentKey | None:
    folder, slash, name = key.rpartition("/")
    tip = parse_partition_folder(prefix, folder + slash)
    stem, dot, suffix = name.rpartition(".")
    if tip is None or not dot or suffix not in _SEGMENT_FILES:
        return None
    if len(stem) != _OFFSET_DIGITS + 1 + _UUID_CHARS or stem[_OFFSET_DIGITS] != "-":
        return None
    segment_id = parse_uuid(stem[_OFFSET_DIGITS + 1 :])
    offset = stem[:_OFFSET_DIGITS]
    if segment_id is None or not _OFFSET.fullmatch(offset) or int(offset) > _OFFSET_MAX:
        return None
    return SegmentKey(RemoteLogSegmentId(tip, segment_id), int(offset), _SEGMENT_FILES[suffix])


def layout_text(version: int = LAYOUT_VERSION) -> bytes:
    """Content of the layout object."""
    return b"remote-log-layout %d\n" % version


def parse_layout_text(content: bytes) -> int | None:
    """The version, None if this is no layout object."""
    match = _LAYOUT.fullmatch(content)
    return int(match.group(1)) if match else None


def _offset_text(offset: int) -> str:
    if not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"offset {offset} is out of range")
    return f"{offset:0{_OFFSET_DIGITS}d}"
