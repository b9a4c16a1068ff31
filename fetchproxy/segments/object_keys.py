"""The keys of the archive's objects, made from values and parsed back. Pure; knows no store."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from uuid import UUID

from fetchproxy.model import (
    END_UNKNOWN,
    RemoteLogSegmentId,
    SegmentRef,
    TopicIdPartition,
    is_topic_name,
)

# The alphabet of keys is Kafka's for topic names (`[a-zA-Z0-9._-]`) plus the characters that S3
# calls safe, so that no backend has to escape any. `~` is left out on purpose: a backend may use
# it in its own names (temporary files), as no object has such a name.

KEY_BYTES_MAX = 1024  # S3's limit

_PART = re.compile(r"[A-Za-z0-9!_.=+@-]+")
LAYOUT_VERSION = 1
LAYOUT_OBJECT = "remote-log-layout"  # beside the topics' folders; has the version
_UUID_CHARS = 22
_OFFSET_DIGITS = 20
_OFFSET_MAX = 2**63 - 1  # a log start may be above the last offset
_PARTITION_MAX = 2**31 - 1
# 22 characters hold 132 bits; the lower four bits of the last character are not among the 128.
_UUID = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]", re.ASCII)
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_DELETION_OBJECT = "delete-partition-state"
_CLUSTER_OBJECT = "cluster-id"
_FINISHED_OBJECT = "finished-offsets"
_RETENTION_STEP_OBJECT = "retention-step"
_LOG_HISTORY_OBJECT = "log-history"
_PAST_CHANGED_OBJECT = "past-changed"
_PARTITION_OBJECTS = (
    _FINISHED_OBJECT,
    _DELETION_OBJECT,
    _RETENTION_STEP_OBJECT,
    _LOG_HISTORY_OBJECT,
    _PAST_CHANGED_OBJECT,
)
_CLUSTERS_FOLDER = "clusters/"
_LOG_START_SUFFIX = ".log-start-offset"
_LOG_START = re.compile(
    r"([0-9]{20})(?:\.after-epoch-(0|[1-9][0-9]{0,9}))?\.log-start-offset", re.ASCII
)
_EPOCH_MAX = 2**31 - 1
_GAP_SUFFIX = ".archive-gap"
_GAP = re.compile(r"([0-9]{20})-([0-9]{20})\.archive-gap", re.ASCII)
_ARCHIVERS_FOLDER = "archivers/"
_POSITIONS_SUFFIX = ".positions"
_COLLECTED_FOLDER = "collected-metadata/"
_CONDITIONS_FOLDER = "concerns/"
_TOPICS_FOLDER = "topics/"
_MIRRORS_FOLDER = "mirrors/"
_CLUSTER_STATES_FOLDER = "cluster-states/"
_CLUSTER_STATE = re.compile(r"([0-9]{20})-([A-Za-z0-9_-]*)", re.ASCII)
_JOURNALS_FOLDER = "journals/"
CONTINUED_TOPICS_NAME = "continued-topics"  # of a folder beside the topics' folders
_CONTINUED_TOPICS_FOLDER = f"{CONTINUED_TOPICS_NAME}/"
_CONDITIONS_KEY = re.compile(r"[a-z_]{1,64}", re.ASCII)
_LAYOUT = re.compile(rb"remote-log-layout ([0-9]{1,9})\n")


def check_key(key: str) -> str:
    """Return `key`. Raises ValueError if it is not a legal key: that is a bug of the caller."""
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"object key of {len(key)} bytes is longer than {KEY_BYTES_MAX}")
    for part in key.split("/"):
        if part in (".", "..") or not _PART.fullmatch(part):
            raise ValueError(f"invalid part {part!r} in object key {key!r}")
    return key


def is_key(key: str) -> bool:
    """False: no object of an archive has this key, but a folder or bucket may have other users."""
    try:
        check_key(key)
    except ValueError:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Return `prefix`, which any legal key may start with. Raises ValueError otherwise."""
    folder, slash, name_start = prefix.rpartition("/")
    if slash:
        check_key(folder)
    if name_start and not _PART.fullmatch(name_start):
        raise ValueError(f"invalid object prefix {prefix!r}")
    return prefix


def check_folder_prefix(prefix: str) -> str:
    """Return `prefix`, which is empty or ends in `/`. Raises ValueError otherwise."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"prefix of folders {prefix!r} does not end in '/'")
    return check_prefix(prefix)


class SegmentFile(StrEnum):
    """The objects of one segment; the value is the suffix.

        <prefix>/remote-log-layout
        <prefix>/<topic>-<topicId>/<partition>/<20-digit base offset>-<segmentId>.<suffix>
        <prefix>/<topic>-<topicId>/<partition>/<20-digit offset>.log-start-offset
        <prefix>/<topic>-<topicId>/<partition>/<20-digit offset>.after-epoch-<n>.log-start-offset
        <prefix>/<topic>-<topicId>/<partition>/log-history
        <prefix>/<topic>-<topicId>/<partition>/<20-digit first>-<20-digit last offset>.archive-gap
        <prefix>/<topic>-<topicId>/<partition>/finished-offsets
        <prefix>/<topic>-<topicId>/<partition>/delete-partition-state
        <prefix>/<topic>-<topicId>/<partition>/retention-step
        <prefix>/<topic>-<topicId>/<partition>/past-changed
        <prefix>/<topic>-<topicId>/cluster-id
        <prefix>/clusters/<cluster id in base64>.topics
        <prefix>/archivers/<id of an archiver>.positions
        <prefix>/collected-metadata/<topicId>
        <prefix>/topics/<topicId>
        <prefix>/mirrors/<id of a copy>
        <prefix>/cluster-states/<20-digit epoch ms>-<cluster id in base64>
        <prefix>/journals/<id of an archiver>/<20-digit number>
        <prefix>/continued-topics/<topic>-<topicId>/<topicId of the log>
        <prefix>/concerns/<topic>-<topicId>/<partition>/<name of a condition>
        <prefix>/concerns/<name of a condition>

    Both ids have the form of Kafka's Uuids: url-safe base64 of the 16 bytes without padding, 22
    characters, which may begin with or contain `-` and `_`. So names are parsed by fixed widths
    from the right, never by splitting. Names that are not of this layout parse to None: an archive
    may share its bucket with other objects.

    The highest `.log-start-offset` of a partition states how far DeleteRecords has deleted. Its
    name has the offset, so two writers cannot undo each other's; the lower ones can go at any time.
    If a person has said that a log that begins again is a new history (`log-history`,
    docs/adr/0035), only objects that name the epoch before it count. An `.archive-gap` says that
    its offsets, both inclusive, were lost before they could be copied. `finished-offsets` states
    the offsets that the archiver has finished. Checks such as `verify` compare the segments with
    both; fetches read neither. `delete-partition-state` exists while a deleted topic's partition is
    being removed, and is the last object to go. `cluster-id` names the cluster in which an archiver
    last saw the topic alive: no other cluster may find it deleted. `.topics` lists that cluster's
    topics at the last look. `retention-step` states the offset below which retention is about to
    hide records. `past-changed` is written again after each change that is neither a copy at the
    partition's end nor a deletion at its beginning (docs/adr/0082); it sorts behind all segments.
    `mirrors/` has the URL of each copy that `fetchproxy mirror` has made. `topics/` says of each
    topic how many partitions it has, also of topics without a record. `cluster-states/` has what a
    new cluster needs of the old one besides records, as it was at that time. `journals/` has
    records that are in no finished segment yet (docs/adr/0089). `continued-topics/` says that a
    topic of another cluster continues the log of an archived topic, whose folder has its segments,
    too (docs/adr/0090). `collected-metadata/` can be deleted at any time. No topic's folder can
    have these folders' names, as they are shorter than an id.
    """

    LOG = "log"  # record batches, byte for byte; or packed (`packing`)
    PACKING = "packing"  # the layout of a packed log, and its key; else absent
    INDEX = "index"  # remoteLogIndex entries
    TXN = "txn"  # aborted transactions; absent if there are none
    EPOCHS = "epochs"  # leader epochs up to the segment's end
    METADATA = "metadata"  # RemoteLogSegmentMetadata, so that the archive describes itself
    # A broker's own files, byte for byte, of segments that were copied from its log directory.
    OFFSET_INDEX = "offset-index"  # Kafka's `.index`
    TIME_INDEX = "time-index"  # Kafka's `.timeindex`
    PRODUCER_SNAPSHOT = "producer-snapshot"  # Kafka's `.snapshot` at the segment's end


# Only some segments have them, whatever their metadata say; serving records does not need them.
KAFKA_FILES = (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX, SegmentFile.PRODUCER_SNAPSHOT)

_SEGMENT = re.compile(rf"([0-9]{{20}})-(.{{22}})\.({'|'.join(SegmentFile)})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The values in the key of one object."""

    segment_id: RemoteLogSegmentId
    base_offset: int
    file: SegmentFile

    def ref(self, log_bytes: int, *, has_aborted_txns: bool, packed: bool) -> SegmentRef:
        """Its segment, known only by its objects. `log_bytes`: the size of its `.log` object."""
        tp, raw_id = self.segment_id.topic_id_partition, self.segment_id.id.bytes
        start = self.base_offset
        return SegmentRef(tp, raw_id, start, END_UNKNOWN, log_bytes, has_aborted_txns, packed)


def uuid_text(value: UUID) -> str:
    """As Kafka's Uuid.toString."""
    return urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def parse_uuid(text: str) -> UUID | None:
    """None if `text` is not exactly what `uuid_text` writes."""
    if not _UUID.fullmatch(text):
        return None
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def normal_prefix(prefix: str) -> str:
    """`prefix` without outer slashes and, unless empty, with one at its end. Raises ValueError if
    keys below it would be illegal.
    """
    bare = prefix.strip("/")
    return check_key(bare) + "/" if bare else ""


def topic_folder(prefix: str, topic: str, topic_id: UUID) -> str:
    """`prefix`: from `normal_prefix`. Raises ValueError for a name that Kafka would refuse."""
    if not is_topic_name(topic):
        raise ValueError(f"invalid topic name {topic!r}")
    return f"{prefix}{topic}-{uuid_text(topic_id)}/"


def partition_folder(prefix: str, tp: TopicIdPartition) -> str:
    if not 0 <= tp.partition <= _PARTITION_MAX:
        raise ValueError(f"invalid partition {tp.partition}")
    return f"{topic_folder(prefix, tp.topic, tp.topic_id)}{tp.partition}/"


def segment_key(
    prefix: str, segment_id: RemoteLogSegmentId, base_offset: int, file: SegmentFile
) -> str:
    folder = partition_folder(prefix, segment_id.topic_id_partition)
    return f"{folder}{_offset_text(base_offset)}-{uuid_text(segment_id.id)}.{file.value}"


def log_start_key(prefix: str, tp: TopicIdPartition, offset: int, after_epoch: int = -1) -> str:
    """`after_epoch`: the epoch after which the log start's history begins (`model.LogHistory`)."""
    history = "" if after_epoch < 0 else f".after-epoch-{after_epoch}"
    return f"{partition_folder(prefix, tp)}{_offset_text(offset)}{history}{_LOG_START_SUFFIX}"


def parse_log_start_key(prefix: str, key: str) -> tuple[int, int] | None:
    """The offset and `after_epoch` in a key from `log_start_key`."""
    match = _LOG_START.fullmatch(_name_in_partition(prefix, key))
    if match is None:
        return None
    offset, after_epoch = int(match[1]), int(match[2] or -1)
    return (offset, after_epoch) if offset <= _OFFSET_MAX and after_epoch <= _EPOCH_MAX else None


def log_history_key(prefix: str, tp: TopicIdPartition) -> str:
    return f"{partition_folder(prefix, tp)}{_LOG_HISTORY_OBJECT}"


def is_log_history_key(prefix: str, key: str) -> bool:
    return _name_in_partition(prefix, key) == _LOG_HISTORY_OBJECT


def past_changed_key(prefix: str, tp: TopicIdPartition) -> str:
    return f"{partition_folder(prefix, tp)}{_PAST_CHANGED_OBJECT}"


def is_past_changed_key(prefix: str, key: str) -> bool:
    return _name_in_partition(prefix, key) == _PAST_CHANGED_OBJECT


def archive_gap_key(prefix: str, tp: TopicIdPartition, first: int, last: int) -> str:
    """Both offsets are inclusive."""
    folder = partition_folder(prefix, tp)
    return f"{folder}{_offset_text(first)}-{_offset_text(last)}{_GAP_SUFFIX}"


def parse_archive_gap_key(prefix: str, key: str) -> tuple[int, int] | None:
    match = _GAP.fullmatch(_name_in_partition(prefix, key))
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    return (first, last) if first <= last <= _OFFSET_MAX else None


def finished_offsets_key(prefix: str, tp: TopicIdPartition) -> str:
    return f"{partition_folder(prefix, tp)}{_FINISHED_OBJECT}"


def is_finished_offsets_key(prefix: str, key: str) -> bool:
    return _name_in_partition(prefix, key) == _FINISHED_OBJECT


def partition_deletion_key(prefix: str, tp: TopicIdPartition) -> str:
    return f"{partition_folder(prefix, tp)}{_DELETION_OBJECT}"


def is_partition_object_key(prefix: str, key: str) -> bool:
    """True: the object belongs to a partition, and to none of its segments."""
    return (
        _name_in_partition(prefix, key) in _PARTITION_OBJECTS
        or parse_log_start_key(prefix, key) is not None
        or parse_archive_gap_key(prefix, key) is not None
    )


def retention_step_key(prefix: str, tp: TopicIdPartition) -> str:
    return f"{partition_folder(prefix, tp)}{_RETENTION_STEP_OBJECT}"


def archive_wide_folders(prefix: str) -> tuple[str, ...]:
    """Folders beside the topics' folders that a copy of the archive needs too.

    The others belong to the place itself: its archivers, its collected metadata, its copies.
    """
    return (
        f"{prefix}{_CLUSTERS_FOLDER}",
        topics_folder(prefix),
        conditions_folder(prefix),
        cluster_states_folder(prefix),
        continued_topics_folder(prefix),
    )


def own_folders(prefix: str) -> tuple[str, ...]:
    return (
        archivers_folder(prefix),
        f"{prefix}{_COLLECTED_FOLDER}",
        mirrors_folder(prefix),
        journals_folder(prefix),
    )


def continued_topics_folder(prefix: str) -> str:
    return f"{prefix}{_CONTINUED_TOPICS_FOLDER}"


def continued_topic_key(prefix: str, topic: str, topic_id: UUID, log_id: UUID) -> str:
    """`topic_id`: the one that brokers know. `log_id`: that of the archived topic."""
    folder = topic_folder(continued_topics_folder(prefix), topic, topic_id)
    return f"{folder}{uuid_text(log_id)}"


def parse_continued_topic_key(prefix: str, key: str) -> tuple[UUID, UUID] | None:
    """`topic_id` and `log_id` of `continued_topic_key`."""
    folder = continued_topics_folder(prefix)
    name, _, log = key[len(folder) :].partition("/")
    topic, log_id = parse_topic_folder(name), parse_uuid(log)
    if not key.startswith(folder) or topic is None or log_id is None:
        return None
    return topic[1], log_id


def cluster_topics_key(prefix: str, cluster_id: str) -> str:
    return f"{prefix}{_CLUSTERS_FOLDER}{_cluster_text(cluster_id)}.topics"


def _cluster_text(cluster_id: str) -> str:
    """A cluster's id may have any characters, so it is encoded to be one part of a key."""
    return urlsafe_b64encode(cluster_id.encode()).decode("ascii").rstrip("=")


def cluster_states_folder(prefix: str) -> str:
    return f"{prefix}{_CLUSTER_STATES_FOLDER}"


def cluster_state_key(prefix: str, cluster_id: str, read_at_ms: int) -> str:
    """Sorts by time."""
    name = f"{_offset_text(read_at_ms)}-{_cluster_text(cluster_id)}"
    return f"{cluster_states_folder(prefix)}{name}"


def parse_cluster_state_key(prefix: str, key: str) -> tuple[str, int] | None:
    """The cluster's id, and the epoch ms of the state."""
    folder = cluster_states_folder(prefix)
    match = _CLUSTER_STATE.fullmatch(key[len(folder) :])
    if not key.startswith(folder) or match is None:
        return None
    read_at_ms, text = int(match[1]), match[2]
    try:
        cluster_id = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:  # of base64, or of UTF-8
        return None
    legal = read_at_ms <= _OFFSET_MAX and _cluster_text(cluster_id) == text
    return (cluster_id, read_at_ms) if legal else None


def topic_cluster_key(prefix: str, topic: str, topic_id: UUID) -> str:
    return f"{topic_folder(prefix, topic, topic_id)}{_CLUSTER_OBJECT}"


def archivers_folder(prefix: str) -> str:
    return f"{prefix}{_ARCHIVERS_FOLDER}"


def archiver_positions_key(prefix: str, archiver: UUID) -> str:
    return f"{archivers_folder(prefix)}{uuid_text(archiver)}{_POSITIONS_SUFFIX}"


def is_archiver_positions_key(prefix: str, key: str) -> bool:
    name = key.removeprefix(archivers_folder(prefix)).removesuffix(_POSITIONS_SUFFIX)
    archiver = parse_uuid(name)
    return archiver is not None and key == archiver_positions_key(prefix, archiver)


def collected_metadata_key(prefix: str, topic_id: UUID) -> str:
    return f"{prefix}{_COLLECTED_FOLDER}{uuid_text(topic_id)}"


def topics_folder(prefix: str) -> str:
    return f"{prefix}{_TOPICS_FOLDER}"


def topic_description_key(prefix: str, topic_id: UUID) -> str:
    return f"{topics_folder(prefix)}{uuid_text(topic_id)}"


def parse_topic_description_key(prefix: str, key: str) -> UUID | None:
    folder = topics_folder(prefix)
    return parse_uuid(key[len(folder) :]) if key.startswith(folder) else None


def mirrors_folder(prefix: str) -> str:
    return f"{prefix}{_MIRRORS_FOLDER}"


def mirror_key(prefix: str, copy: UUID) -> str:
    return f"{mirrors_folder(prefix)}{uuid_text(copy)}"


def is_mirror_key(prefix: str, key: str) -> bool:
    copy = parse_uuid(key.removeprefix(mirrors_folder(prefix)))
    return copy is not None and key == mirror_key(prefix, copy)


def journals_folder(prefix: str) -> str:
    return f"{prefix}{_JOURNALS_FOLDER}"


def journal_key(prefix: str, archiver: UUID, number: int) -> str:
    return f"{journals_folder(prefix)}{uuid_text(archiver)}/{_offset_text(number)}"


def parse_journal_key(prefix: str, key: str) -> tuple[UUID, int] | None:
    """The archiver and the number in a key from `journal_key`."""
    folder = journals_folder(prefix)
    name, _, number = key.removeprefix(folder).partition("/")
    archiver = parse_uuid(name)
    if archiver is None or not (len(number) == _OFFSET_DIGITS and number.isdecimal()):
        return None
    parsed = archiver, int(number)
    return parsed if key.isascii() and parsed[1] <= _OFFSET_MAX else None


def conditions_folder(prefix: str) -> str:
    return f"{prefix}{_CONDITIONS_FOLDER}"


def conditions_key(prefix: str, tp: TopicIdPartition | None, name: str) -> str:
    """`tp` None: the condition is about the archive as a whole."""
    if not _CONDITIONS_KEY.fullmatch(name):
        raise ValueError(f"invalid name of a condition {name!r}")
    folder = conditions_folder(prefix)
    return f"{folder if tp is None else partition_folder(folder, tp)}{name}"


def parse_conditions_key(prefix: str, key: str) -> tuple[TopicIdPartition | None, str] | None:
    """The condition's partition (None: the archive as a whole) and its name."""
    folder, slash, name = key.rpartition("/")
    if not _CONDITIONS_KEY.fullmatch(name):
        return None
    if folder + slash == conditions_folder(prefix):
        return None, name
    tp = parse_partition_folder(conditions_folder(prefix), folder + slash)
    return None if tp is None else (tp, name)


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
    """`folder`: a key up to the slash after the partition, inclusive."""
    parts = folder[len(prefix) :].split("/")
    if not folder.startswith(prefix) or len(parts) != 3 or parts[2]:
        return None
    topic = parse_topic_folder(parts[0])
    if topic is None or not _DECIMAL.fullmatch(parts[1]) or int(parts[1]) > _PARTITION_MAX:
        return None
    return TopicIdPartition(topic_id=topic[1], topic=topic[0], partition=int(parts[1]))


def _name_in_partition(prefix: str, key: str) -> str:
    """The name of an object in a partition's folder; "": it is in none."""
    folder, slash, name = key.rpartition("/")
    return "" if parse_partition_folder(prefix, folder + slash) is None else name


def parse_segment_key(prefix: str, key: str) -> SegmentKey | None:
    folder, slash, name = key.rpartition("/")
    match = _SEGMENT.fullmatch(name)
    tp = None if match is None else parse_partition_folder(prefix, folder + slash)
    if match is None or tp is None:
        return None
    offset, segment_id = int(match[1]), parse_uuid(match[2])
    if segment_id is None or offset > _OFFSET_MAX:
        return None
    return SegmentKey(RemoteLogSegmentId(tp, segment_id), offset, SegmentFile(match[3]))


def layout_text(version: int = LAYOUT_VERSION) -> bytes:
    return b"remote-log-layout %d\n" % version


def parse_layout_version(content: bytes) -> int | None:
    match = _LAYOUT.fullmatch(content)
    return int(match.group(1)) if match else None


def _offset_text(offset: int) -> str:
    if not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"offset {offset} is out of range")
    return f"{offset:0{_OFFSET_DIGITS}d}"
