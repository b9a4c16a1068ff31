"""FetchResponse as a stream: read as it passes, patched in place, extended at its front.

A response may be 50 MiB and more, so it is never held as a whole. `FetchResponseScan.feed` takes
the bytes as they arrive and returns the bytes that may leave. It jumps over records. It also
  - patches the head (correlation and session id). It adds topics before the broker's, and
    partitions to the broker's topics: Kafka lists a topic once in responses that list all, and
    sarama forgets the first of two entries,
  - calls `on_partition_error` for every partition with an error, and may turn it into an empty
    partition (fixed-width fields, the length is unchanged),
  - lowers the log start offset of partitions whose log goes on below the broker's,
  - replaces the NodeEndpoints tag (v16+) if the frame is small enough to be held, and else renames
    it to a tag that no client knows: endpoints are optional (KIP-951), but the broker's own
    addresses must not reach a client,
  - keeps back a response without records, and asks at its end whether it may leave at all.

Layout: Kafka's FetchResponse.json.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from fetchproxy_protocol.addresses import hide_node_endpoints
from fetchproxy_protocol.apis import MalformedMessage, Truncated
from fetchproxy_protocol.fetch import (
    WATERMARKS,
    WATERMARKS_V4,
    FetchResponseHead,
    HeadPatch,
    LogStart,
    LogStarts,
    PartitionEntries,
    PartitionPatch,
    TopicRef,
    count_grows_by,
    encode_head,
    encode_topic,
    head_bytes,
    parse_head,
    plain_run,
    show_log_start,
)
from fetchproxy_protocol.fetch_layout import (
    FETCH_FLEXIBLE_FROM,
    FETCH_VERSIONS,
    LOG_START_FROM,
    NODE_ENDPOINTS_FROM,
    PREFERRED_REPLICA_FROM,
    RESPONSE_PARTITION,
    SESSIONS_FROM,
    TOPIC_IDS_FROM,
    position,
    size,
)
from fetchproxy_protocol.primitives import INT16, INT32, Buffer, decode_uvarint, encode_uvarint_in

# A response with an error is small. Responses up to this size are held, so that the endpoints in
# them can be rewritten.
SMALL_RESPONSE_BYTES_MAX = 16 * 1024

# A response without records is kept up to this size: one for about 25,000 partitions is not larger.
KEPT_BYTES_MAX = 1024 * 1024

_NO_TAGS = b"\x00"

OnHead = Callable[[FetchResponseHead], HeadPatch]
OnError = Callable[[TopicRef, int, int], PartitionPatch | None]
SpliceTags = Callable[[bytes], bytes]
# (some error became an empty partition, some error is left) → True: suppress the whole response.
Suppress = Callable[[bool, bool], bool]
# A partition's fixed fields by version, and where two of them are.
_FIXED_BYTES = {version: size(RESPONSE_PARTITION, version) for version in FETCH_VERSIONS}
_ERROR_CODE_AT = position(RESPONSE_PARTITION, "ErrorCode", FETCH_FLEXIBLE_FROM)
_WATERMARKS_AT = position(RESPONSE_PARTITION, "HighWatermark", FETCH_FLEXIBLE_FROM)
# The size of a partition (v12+) without records, which `plain_run` steps over. Behind the fixed
# fields: count of aborted transactions, preferred replica, length of the records, count of tags.
_PLAIN_BYTES = _FIXED_BYTES[FETCH_FLEXIBLE_FROM] + 1 + INT32.size + 1 + 1
# Aborted transactions without tags are stepped over so many at a time. More would cost more than
# linear time where entries with and without tags alternate.
_ABORTED_STEP = 256
_ABORTED_BYTES = 16  # of an aborted transaction: producer id and first offset, then tags (v12+)
_TOPIC, _PARTITION, _ABORTED, _RECORDS, _PARTITION_TAGS, _TOPIC_TAGS, _TAIL = range(7)


class _NeedMore(Exception):
    """The bytes end inside a structure, which is read again when more bytes have come."""


class BufferedFetchResponse:
    """A response without records is small, and no client waits for its content.

    At its end `suppress` is asked about it if a partition was patched, or always (`any_empty`).
    """

    __slots__ = ("_pieces", "_suppress", "any_empty", "errors_left", "patched", "records")

    def __init__(self, suppress: Suppress, any_empty: bool) -> None:
        self._suppress = suppress
        self.any_empty = any_empty
        self._pieces = bytearray()
        self.patched = self.errors_left = self.records = False

    def keep(self, pieces: list[Buffer], whole: bool) -> list[Buffer] | None:
        """The bytes that may leave, ending with `pieces`; None: no bytes may leave yet.

        `whole`: `pieces` end the response; then an empty list means that the response is
        suppressed.
        """
        if whole and not self.records and (self.patched or self.any_empty):
            if self._suppress(self.patched, self.errors_left):
                return []
        elif not whole and not self.records:
            for piece in pieces:
                self._pieces += piece
            if len(self._pieces) <= KEPT_BYTES_MAX:
                return None
            pieces = []
        return [self._pieces, *pieces] if self._pieces else pieces


class FetchResponseScan:
    """One response, from its size prefix to its last byte.

    `on_head(head)` is called once, `on_partition_error(topic, partition, code)` for each partition
    with an error. `splice_tags` rewrites the trailing tagged fields of a held response.
    `log_starts` costs nothing if it is empty, and else a look at each partition of the topics that
    it names. `suppress` is called at the end of a response without records if a partition was
    patched, or always (`any_empty`). True: `feed` returns none of the response.
    """

    __slots__ = (
        "_aborted",
        "_buffered",
        "_carry",
        "_from",
        "_is_buffered",
        "_joining",
        "_log_start",
        "_log_starts",
        "_on_error",
        "_on_head",
        "_out",
        "_partitions",
        "_skip",
        "_splice_tags",
        "_state",
        "_topic",
        "_topics",
        "_version",
        "left",
    )

    def __init__(
        self,
        version: int,
        frame_bytes: int,
        on_head: OnHead,
        on_error: OnError,
        splice_tags: SpliceTags,
        log_starts: LogStarts | None = None,
        suppress: Suppress | None = None,
        any_empty: bool = False,
    ) -> None:
        self._version = version
        self.left = frame_bytes  # bytes of the whole frame, not yet fed
        self._on_head: OnHead | None = on_head
        self._on_error = on_error
        self._splice_tags = splice_tags
        self._log_starts = log_starts if log_starts and version >= LOG_START_FROM else None
        self._log_start: LogStart | None = None  # of the current topic
        self._is_buffered = (
            version >= NODE_ENDPOINTS_FROM and frame_bytes <= SMALL_RESPONSE_BYTES_MAX
        )
        # None: bytes leave as they come.
        self._buffered = None if suppress is None else BufferedFetchResponse(suppress, any_empty)
        # Entries to insert into topics that were not reached yet, and by how many bytes the count
        # of each topic's partitions grows.
        self._joining: dict[TopicRef, tuple[PartitionEntries, int]] = {}
        # `_out` has the bytes of the buffer up to `_from`, and the bytes that were inserted.
        self._out: list[Buffer] = []
        self._from = 0
        self._carry = bytearray()
        self._skip = 0  # bytes of records that pass unread
        self._state = _TOPIC
        self._topics = 0
        self._partitions = 0
        self._aborted = 0  # transactions of the current partition that were not stepped over yet
        self._topic: TopicRef = b""

    @property
    def done(self) -> bool:
        return self.left == 0

    @property
    def records_left(self) -> int:
        """Bytes that pass unread, without the last one: they need not be fed."""
        return 0 if self._carry else max(self._skip - 1, 0)

    def passed_by(self, size: int) -> None:
        """`size` bytes of `records_left` went to the client another way."""
        self._skip -= size
        self.left -= size

    def feed(self, view: memoryview) -> list[Buffer]:
        """Takes bytes and returns the bytes that may leave. `view` is writable and may be returned.

        Takes at most `left` bytes: the caller cuts. Raises WireError; the connection is then lost,
        because part of the response may have left already.
        """
        pieces = self._take(view)
        if self._buffered is None:
            return pieces
        released = self._buffered.keep(pieces, not self.left)
        if released is None:
            return []
        self._buffered = None
        return released

    def _take(self, view: memoryview) -> list[Buffer]:
        size = len(view)
        self.left -= size
        if size <= self._skip and not self._carry:
            self._skip -= size
            return [view]
        buf: memoryview = view
        if self._carry:
            self._carry += view
            buf = memoryview(self._carry)
            self._carry = bytearray()
        if self._on_head is None:
            return self._body(buf, 0, 0)
        if self._is_buffered and self.left:
            self._carry = bytearray(buf)
            return []
        parsed = parse_head(buf, self._version)
        if parsed is None:
            if not self.left:
                raise Truncated(f"Fetch v{self._version} response ends inside its head")
            self._carry = bytearray(buf)
            return []
        return self._front(buf, *parsed)

    def _front(self, buf: memoryview, head: FetchResponseHead, at: int) -> list[Buffer]:
        assert self._on_head is not None
        patch = self._on_head(head)
        self._on_head = None
        self._topics = head.topics
        if not patch.injected and self._patch_head(buf, head, patch):
            pieces = self._body(buf, at, 0)
            if len(pieces) > 1:  # a held response whose tags changed their length
                INT32.pack_into(buf, 0, sum(map(len, pieces)) - 4)
            return pieces
        front: list[Buffer] = []
        joined_bytes = 0
        for topic, entries in patch.injected.items():
            listed = patch.listed.get(topic)
            if listed is None:
                front += encode_topic(self._version, topic, entries)
                continue
            grows_by = count_grows_by(self._version, listed, entries.partitions)
            self._joining[topic] = entries, grows_by
            joined_bytes += sum(map(len, entries.pieces)) + grows_by
        in_front = len(patch.injected) - len(self._joining)
        rest = self._body(buf, at, at)
        if self._is_buffered:
            body_bytes = sum(map(len, rest))
        else:
            body_bytes = INT32.unpack_from(buf)[0] + 4 - at + joined_bytes
        new_head = FetchResponseHead(
            patch.correlation_id,
            max(head.throttle_time_ms, patch.throttle_time_ms),
            head.error_code,
            patch.session_id,
            head.topics + in_front,
        )
        body_bytes += sum(map(len, front))
        return [encode_head(self._version, new_head, body_bytes), *front, *rest]

    def _patch_head(self, buf: memoryview, head: FetchResponseHead, patch: HeadPatch) -> bool:
        """Patch the ids in place, so that head and body leave in one piece; False: impossible."""
        if patch.correlation_id != head.correlation_id:
            INT32.pack_into(buf, 4, patch.correlation_id)
        if patch.session_id != head.session_id and self._version >= SESSIONS_FROM:
            if self._version >= FETCH_FLEXIBLE_FROM and buf[8]:
                return False  # tags in the header: the later fields have moved
            INT32.pack_into(buf, head_bytes(self._version) - 4, patch.session_id)
        return patch.throttle_time_ms <= head.throttle_time_ms

    def _body(self, buf: memoryview, at: int, start: int) -> list[Buffer]:
        """Walk on from `at`. Returns the bytes of `buf` that may leave, from `start` on.

        An incomplete structure is carried over to the next call.
        """
        pos = at + self._skip
        self._skip = 0
        self._from = start
        end = len(buf)
        try:
            while pos < end and self._state != _TAIL:
                pos = self._step(buf, pos, end)
        except _NeedMore as need:
            pos = need.args[0]
        start = self._from
        if self._out:
            out, self._out = self._out, []
            return [*out, *self._walked(buf, pos, start, end)]
        return self._walked(buf, pos, start, end)

    def _walked(self, buf: memoryview, pos: int, start: int, end: int) -> list[Buffer]:
        if pos > end:
            self._skip = pos - end
            if self._skip > self.left:
                raise MalformedMessage(
                    f"{self._topic!r} reaches {self._skip} bytes past the frame's end"
                )
            return [buf[start:]]
        if self.left:
            self._carry = bytearray(buf[pos:])
            return [buf[start:pos]] if pos > start else []
        tail = self._tail(buf, pos)
        if len(tail) == end - pos:  # one piece is one system call, and wakes the client once
            buf[pos:] = tail
            return [buf[start:]]
        return [buf[start:pos], tail]

    def _tail(self, buf: memoryview, pos: int) -> bytes:
        if self._state == _TOPIC and not self._topics:
            self._state = _TAIL
        if self._state != _TAIL:
            raise Truncated(f"Fetch v{self._version} response ends inside {self._topic!r}")
        if self._joining:
            raise MalformedMessage(f"no {next(iter(self._joining))!r} in a Fetch response")
        tail = bytes(buf[pos:])
        if self._version < FETCH_FLEXIBLE_FROM:
            if tail:
                raise MalformedMessage(f"{len(tail)} bytes after the end of a Fetch response")
            return tail
        if self._version < NODE_ENDPOINTS_FROM or tail == _NO_TAGS:
            return tail
        return self._splice_tags(tail) if self._is_buffered else hide_node_endpoints(tail)

    def _step(self, buf: memoryview, pos: int, end: int) -> int:
        state = self._state
        if state == _PARTITION:
            if self._version >= FETCH_FLEXIBLE_FROM and self._log_start is None:
                plain = self._plain_partitions(buf, pos, end)
                if plain != pos:
                    return plain
            return self._partition(buf, pos, end)
        if state == _ABORTED:
            return self._aborted_transactions(buf, pos, end)
        if state == _RECORDS:
            return self._records(buf, pos, end)
        if state == _PARTITION_TAGS:
            pos = _after_tags(buf, pos, end)
            self._partitions -= 1
            self._state = _PARTITION if self._partitions else _TOPIC_TAGS
            return pos
        if state == _TOPIC_TAGS:
            pos = _after_tags(buf, pos, end)
            self._topics -= 1
            self._state = _TOPIC if self._topics else _TAIL
            return pos
        if not self._topics:
            self._state = _TAIL
            return pos
        return self._topic_start(buf, pos, end)

    def _topic_start(self, buf: memoryview, pos: int, end: int) -> int:
        version, at = self._version, pos
        if version >= TOPIC_IDS_FROM:
            length = 16
        elif version >= FETCH_FLEXIBLE_FROM:
            length, at = _uvarint(buf, at, end, pos)
            length -= 1
        else:
            length, at = _int(INT16, buf, at, end, pos)
        if length < 0:
            raise MalformedMessage("topic without a name in a Fetch response")
        if at + length > end:
            raise _NeedMore(pos)
        self._topic = bytes(buf[at : at + length])
        if self._log_starts:
            self._log_start = self._log_starts.get(self._topic)
        at += length
        count_at = at
        if version >= FETCH_FLEXIBLE_FROM:
            count, at = _uvarint(buf, at, end, pos)
            self._partitions = count - 1
        else:
            self._partitions, at = _int(INT32, buf, at, end, pos)
        if self._joining and self._topic in self._joining:
            self._join(buf, count_at, at)
        if self._partitions > 0:
            self._state = _PARTITION
        elif version >= FETCH_FLEXIBLE_FROM:
            self._state = _TOPIC_TAGS
        else:
            self._topics -= 1
            self._state = _TOPIC if self._topics else _TAIL
        return at

    def _join(self, buf: memoryview, count_at: int, at: int) -> None:
        """Insert partitions between the topic's partition count and its first partition.

        The frame's length was already sent, so the count has the width that was counted then.
        """
        entries, grows_by = self._joining.pop(self._topic)
        count = max(self._partitions, 0) + entries.partitions
        if self._version >= FETCH_FLEXIBLE_FROM:
            encoded = encode_uvarint_in(count + 1, at - count_at + grows_by)
        else:
            encoded = INT32.pack(count)
        self._out += [buf[self._from : count_at], encoded, *entries.pieces]
        self._from = at

    def _partition(self, buf: memoryview, pos: int, end: int) -> int:
        """The fields in front of the list of aborted transactions, with its length."""
        at = pos + _FIXED_BYTES[self._version]
        if at + 4 > end:
            raise _NeedMore(pos)
        if self._version >= FETCH_FLEXIBLE_FROM:
            aborted, at = _uvarint(buf, at, end, pos)
            aborted -= 1
        else:
            aborted, at = _int(INT32, buf, at, end, pos)
        error_code = INT16.unpack_from(buf, pos + _ERROR_CODE_AT)[0]
        if error_code:
            self._patch_error(buf, pos, error_code)
        elif self._log_start is not None:
            show_log_start(buf, pos, self._log_start)
        if aborted > 0:
            self._aborted = aborted
            self._state = _ABORTED
            return at
        self._state = _RECORDS
        return self._records(buf, at, end)

    def _aborted_transactions(self, buf: memoryview, pos: int, end: int) -> int:
        """Step over some entries. Each piece of the response goes on where the last one ended."""
        if self._version < FETCH_FLEXIBLE_FROM:
            self._state = _RECORDS
            return pos + _ABORTED_BYTES * self._aborted
        size = _ABORTED_BYTES + len(_NO_TAGS)
        plain = min(self._aborted, (end - pos) // size, _ABORTED_STEP)
        tags = bytes(buf[pos + _ABORTED_BYTES : pos + plain * size : size])
        steps = plain - len(tags.lstrip(_NO_TAGS))
        if steps:
            pos += steps * size
        else:
            pos = _after_tags(buf, pos + _ABORTED_BYTES, end, pos)
            steps = 1
        self._aborted -= steps
        if not self._aborted:
            self._state = _RECORDS
        return pos

    def _records(self, buf: memoryview, pos: int, end: int) -> int:
        """The preferred replica (v11+) and the records, which pass unread."""
        at = pos + 4 if self._version >= PREFERRED_REPLICA_FROM else pos
        if self._version >= FETCH_FLEXIBLE_FROM:
            length, at = _uvarint(buf, at, end, pos)
            length -= 1
            self._state = _PARTITION_TAGS
        else:
            length, at = _int(INT32, buf, at, end, pos)
            self._partitions -= 1
            self._state = _PARTITION
            if not self._partitions:
                self._topics -= 1
                self._state = _TOPIC if self._topics else _TAIL
        if length > 0 and self._buffered is not None:
            self._buffered.records = True
        return at + max(length, 0)

    def _plain_partitions(self, buf: memoryview, pos: int, end: int) -> int:
        """Step over partitions that need no look; `_partition` goes on from there."""
        begin, partitions = pos, self._partitions
        pos, self._partitions = plain_run(buf, pos, end, partitions)
        empty_bytes = _PLAIN_BYTES * (partitions - self._partitions)
        if self._buffered is not None and pos - begin > empty_bytes:
            self._buffered.records = True
        if not self._partitions:
            self._state = _TOPIC_TAGS
        return pos

    def _patch_error(self, buf: memoryview, pos: int, error_code: int) -> None:
        partition = INT32.unpack_from(buf, pos)[0]
        patch = self._on_error(self._topic, partition, error_code)
        if self._buffered is not None:
            left = patch is None or patch.error_code != 0
            self._buffered.errors_left |= left
            self._buffered.patched |= not left
        if patch is None:
            return
        INT16.pack_into(buf, pos + _ERROR_CODE_AT, patch.error_code)
        if self._version >= LOG_START_FROM:
            WATERMARKS.pack_into(
                buf,
                pos + _WATERMARKS_AT,
                patch.high_watermark,
                patch.last_stable_offset,
                patch.log_start_offset,
            )
        else:
            WATERMARKS_V4.pack_into(
                buf, pos + _WATERMARKS_AT, patch.high_watermark, patch.last_stable_offset
            )


def _int(kind: Struct, buf: memoryview, pos: int, end: int, begin: int) -> tuple[int, int]:
    if pos + kind.size > end:
        raise _NeedMore(begin)
    return kind.unpack_from(buf, pos)[0], pos + kind.size


def _uvarint(buf: memoryview, pos: int, end: int, begin: int) -> tuple[int, int]:
    if pos >= end:
        raise _NeedMore(begin)
    first = buf[pos]
    if first < 0x80:
        return first, pos + 1
    try:
        return decode_uvarint(buf, pos)
    except Truncated:
        raise _NeedMore(begin) from None


def _after_tags(buf: memoryview, pos: int, end: int, begin: int | None = None) -> int:
    """Position after a tagged-field section; most are empty."""
    begin = pos if begin is None else begin
    count, at = _uvarint(buf, pos, end, begin)
    for _ in range(count):
        _, at = _uvarint(buf, at, end, begin)
        size, at = _uvarint(buf, at, end, begin)
        at += size
    if at > end:
        raise _NeedMore(begin)
    return at
