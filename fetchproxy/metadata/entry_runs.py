"""The entries of a cache file as bytes: where they are, and which of them still count. Pure.

A file of hundreds of segments is read as a few *runs*: entries of equal length, type, version and
number of leader epochs, one behind the other, of which a field can be taken at one go (`struct`
and slices with a step). Entry by entry the same costs ten times as much. Values of single entries
are the matter of `records`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.records import (
    NEWEST_VERSION,
    SEGMENT_EPOCH,
    SEGMENT_HEAD,
    SEGMENT_TAIL,
    LogHistorySaid,
    LogStartOffset,
    RecordType,
    Restore,
    decode_entry,
)
from fetchproxy.model import RemoteLogSegmentState, TopicIdPartition
from fetchproxy.model import RemotePartitionDeleteState as DeleteState
from protocol.errors import WireError
from protocol.primitives import INT32, decode_uvarint

_HEAD = SEGMENT_HEAD.size
_COUNT_AT = _HEAD - 4
_EPOCH = SEGMENT_EPOCH.size
_LOOK_AHEAD_MAX = 4096  # entries
_FINISHED = bytes([RemoteLogSegmentState.COPY_SEGMENT_FINISHED])
_GONE = bytes([RemoteLogSegmentState.DELETE_SEGMENT_FINISHED])


@dataclass(frozen=True, slots=True)
class Run:
    """`count` entries of a segment's metadata from `start` on, each of `stride` bytes.

    Of each entry the first `lead` bytes are length, type and version.
    """

    start: int
    stride: int
    count: int
    lead: int
    version: int
    epochs: int  # leader epochs of each entry

    @property
    def end(self) -> int:
        return self.start + self.stride * self.count

    def positions(self) -> range:
        return range(self.start, self.end, self.stride)

    @property
    def state_at(self) -> int:
        """Where in an entry its state is."""
        return self.lead + _HEAD + _EPOCH * self.epochs + (8 if self.version else 4)


@dataclass(frozen=True, slots=True)
class Single:
    """An entry of another type; its record is the bytes `body` to `end`."""

    kind: int
    start: int
    body: int
    end: int


def split_entries(entries: bytes, where: str) -> Iterator[Run | Single]:
    """Raises CorruptSegment, naming `where` and the byte, where an entry is not whole."""
    at, end = 0, len(entries)
    while at < end:
        try:
            length, body = decode_uvarint(entries, at)
            kind, after = decode_uvarint(entries, body)
        except WireError as error:
            raise CorruptSegment(f"{where}, entry at byte {at}: {error}") from None
        if body + length > end or after > body + length:
            raise CorruptSegment(f"{where}, entry at byte {at}: not whole")
        found: Run | Single
        if kind == RecordType.REMOTE_LOG_SEGMENT_METADATA:
            found = _run_at(entries, at, body, length) or Single(kind, at, body, body + length)
        else:
            found = Single(kind, at, body, body + length)
        yield found
        at = found.end


def _run_at(entries: bytes, at: int, body: int, length: int) -> Run | None:
    """None where it is not of a known shape; decoding the entry then says what is wrong."""
    version = entries[body + 1]
    if version > NEWEST_VERSION[RecordType.REMOTE_LOG_SEGMENT_METADATA] or length < _HEAD + 2:
        return None
    lead, stride = body + 2 - at, body + length - at
    counted = INT32.unpack_from(entries, at + lead + _COUNT_AT)[0]
    tail = SEGMENT_TAIL.size if version else 5
    if counted < 0 or length != 2 + _HEAD + _EPOCH * counted + tail:
        return None
    same = [*range(lead), *range(lead + _COUNT_AT, lead + _HEAD)]
    count = min((len(entries) - at) // stride, _LOOK_AHEAD_MAX)
    if entries[at : at + lead] != entries[at + stride : at + stride + lead]:
        count = 1
    for offset in same if count > 1 else ():
        column = entries[at + offset : at + stride * count : stride]
        count = len(column) - len(column.lstrip(column[:1]))
    return Run(at, stride, count, lead, version, counted)


@lru_cache(maxsize=256)
def run_fields(run_shape: tuple[int, int, int], template: str) -> Struct:
    """A struct over one entry; of `template`, `{lead}`, `{epochs}` are filled in with sizes.

    `run_shape` is (lead, epochs, stride); what is behind the template is skipped.
    """
    lead, epochs, stride = run_shape
    bare = ">" + template.format(lead=lead, epochs=_EPOCH * epochs)
    return Struct(f"{bare}{stride - Struct(bare).size}x")


def fields_of(run: Run, template: str) -> Struct:
    """For `Struct.iter_unpack` over the bytes of the run."""
    return run_fields((run.lead, run.epochs, run.stride), template)


def compact(entries: bytes, tip: TopicIdPartition, where: str) -> bytes:
    """The entries that still count: the last of each segment, by start offset, and the like.

    A deleted segment leaves nothing, a deleted partition nothing at all. Finished segments come
    last, and so lie in long runs. Raises CorruptSegment as `split_entries`, NewerMetadataVersion.
    """
    last: dict[bytes, tuple[bytes, bytes, int, int]] = {}
    log_starts: dict[int, tuple[int, bytes]] = {}
    history = deletion = restore = b""
    for part in split_entries(entries, where):
        if isinstance(part, Run):
            template = f"{{lead}}x16s8s32x{{epochs}}x{8 if part.version else 4}xc"
            rows = fields_of(part, template).iter_unpack(entries[part.start : part.end])
            for at, (segment_id, start, state) in zip(part.positions(), rows, strict=True):
                last[segment_id] = state, start, at, part.stride
        elif part.kind != RecordType.CACHE_FILE_CHECKPOINT:
            raw = entries[part.start : part.end]
            event = decode_entry(entries[part.body : part.end], tip, f"{where}, byte {part.start}")
            if isinstance(event, LogStartOffset):
                known = log_starts.get(event.after_epoch, (-1, b""))
                log_starts[event.after_epoch] = max(known, (event.offset, raw))
            elif isinstance(event, LogHistorySaid):
                history = raw
            elif isinstance(event, Restore):
                restore = raw if event.restoring else b""
            elif getattr(event, "state", None) is DeleteState.DELETE_PARTITION_FINISHED:
                last, log_starts, history, deletion, restore = {}, {}, b"", b"", b""
            else:
                deletion = raw
    kept = sorted(entry for entry in last.values() if entry[0] != _GONE)
    unfinished = [entries[at : at + size] for state, _, at, size in kept if state != _FINISHED]
    finished = [entries[at : at + size] for state, _, at, size in kept if state == _FINISHED]
    starts = [raw for _, raw in log_starts.values()]
    return b"".join([history, *starts, deletion, restore, *unfinished, *finished])
