"""Archived records for a person who looks at them: one page at a time, from an offset or a time.

The records are read as a consumer's fetch reads them: through the purgatory, its caches and time
limits, with every CRC checked. No ACL of a broker applies, so `console.show_records` is off unless
an operator sets it. What a page shows is bounded in every direction: records, bytes of each field,
and what a batch unpacks to. One page is made at a time, in steps.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import BatchHeader, decompress, walk
from fetchproxy_protocol.records import Record, records_in

from fetchproxy.config.memory_plan import SHOWN_BATCH_BYTES_MAX
from fetchproxy.config.values import MASK, harmless
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import RemoteReadRequest
from fetchproxy.runtime.cooperative import a_turn
from fetchproxy.runtime.waits import in_thread

RECORDS_MAX = 100
RECORDS_DEFAULT = 20
# Of one key, value or header, as shown.
SHOWN_BYTES_MAX = 4 * 1024
# Masked fields are looked for in JSON up to this size; a longer value is not shown.
MASKED_BYTES_MAX = 256 * 1024
HEADERS_SHOWN_MAX = 50
# A page ends early above this: a person reads no more, and a response is encoded in steps.
PAGE_BYTES_MAX = 512 * 1024
_READ_BYTES = 1024 * 1024
_READ_MAX_S = 10.0
# Some 1 ms. A record below the page's first offset costs less.
RECORDS_A_TURN = 200
_LINES = re.compile(r"([\n\t])")
_INT64_MAX = 2**63 - 1
_DIGITS_MAX = 19


class BadQuery(ValueError):
    """The request cannot be understood; the text says which part."""


class NothingThere(LookupError):
    """There is no such partition or offset in the archive; the text says what there is."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """`offset`, `timestamp_ms`: where the page begins; both None: at the archive's start."""

    topic: str
    partition: int
    offset: int | None = None
    timestamp_ms: int | None = None
    count: int = RECORDS_DEFAULT
    as_hex: bool = False


def parse_record_query(parameters: Mapping[str, str]) -> RecordQuery:
    """Raises BadQuery."""
    topic = parameters.get("topic", "")
    if not topic:
        raise BadQuery("topic is missing")
    form = parameters.get("as", "text")
    if form not in ("text", "hex"):
        raise BadQuery(f"as must be text or hex, not {form[:20]!r}")
    offset = _number(parameters, "offset", _INT64_MAX)
    timestamp_ms = _number(parameters, "timestamp_ms", _INT64_MAX)
    if offset is not None and timestamp_ms is not None:
        raise BadQuery("use offset or timestamp_ms, not both")
    return RecordQuery(
        topic,
        _number(parameters, "partition", 2**31 - 1) or 0,
        offset,
        timestamp_ms,
        max(1, min(_number(parameters, "count", _INT64_MAX) or RECORDS_DEFAULT, RECORDS_MAX)),
        form == "hex",
    )


def _number(parameters: Mapping[str, str], name: str, greatest: int) -> int | None:
    text = parameters.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise BadQuery(f"{name} is not a whole number: {text[:20]!r}")
    number = int(text)
    if number > greatest:
        raise BadQuery(f"{name} is above {greatest}")
    return number


def masked_names(setting: str) -> frozenset[str]:
    """The names in `console.masked_fields`, in lower case."""
    return frozenset(name.strip().lower() for name in setting.split(",") if name.strip())


def record_view(record: Record, masked_names: frozenset[str], as_hex: bool) -> dict[str, Any]:
    """A record as JSON. A null key or value is null."""

    def part(content: bytes | None) -> dict[str, Any] | None:
        return None if content is None else field_view(content, masked_names, as_hex)

    headers = []
    for name, content in record.headers[:HEADERS_SHOWN_MAX]:
        title = field_view(name, frozenset(), False).get("text", name.hex())
        hidden = title.lower() in masked_names and content is not None
        value = {"bytes": len(content or b""), "hidden": "a masked header"} if hidden else None
        headers.append({"name": title, "value": value or part(content)})
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": part(record.key),
        "value": part(record.value),
        "headers": headers,
        "more_headers": max(0, len(record.headers) - HEADERS_SHOWN_MAX),
    }


def field_view(content: bytes, masked_names: frozenset[str], as_hex: bool) -> dict[str, Any]:
    """`bytes`: the whole size. `text`, `hex` or `hidden` (why nothing is shown), and `cut` if more
    follows. With `masked_names`, only JSON is shown, because nothing else names its fields.
    """
    about: dict[str, Any] = {"bytes": len(content)}
    if masked_names:
        try:
            content = _with_masks(content, masked_names)
        except ValueError as error:
            return {**about, "hidden": str(error)}
    head = content[:SHOWN_BYTES_MAX]
    if len(content) > len(head):
        about["cut"] = True
    text = None if as_hex else _as_text(head, whole=len(content) == len(head))
    return {**about, "hex": head.hex()} if text is None else {**about, "text": text}


def _as_text(head: bytes, *, whole: bool) -> str | None:
    """None: this is no UTF-8. A character that was cut at the end does not count."""
    for ends_at in range(len(head), max(-1, len(head) - (1 if whole else 4)), -1):
        try:
            text = head[:ends_at].decode()
        except UnicodeDecodeError:
            continue
        return "".join(part if part in "\n\t" else harmless(part) for part in _LINES.split(text))
    return None


def _with_masks(content: bytes, masked_names: frozenset[str]) -> bytes:
    """Raises ValueError with the reason why it is not shown."""
    if len(content) > MASKED_BYTES_MAX:
        raise ValueError(f"longer than {MASKED_BYTES_MAX} bytes, so its fields are not masked")
    try:
        value = json.loads(content)
        return json.dumps(_masked(value, masked_names), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("not JSON, so its fields cannot be masked") from None


def _masked(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {
            key: MASK if key.lower() in names else _masked(below, names)
            for key, below in value.items()
        }
    return [_masked(below, names) for below in value] if isinstance(value, list) else value


@dataclass(eq=False, repr=False)
class ArchivedRecords:
    """`partition_of`: the partition of a topic's name and number in the archive, None: not known.
    `masked`: asked at each page; see `masked_names`.
    """

    views: PartitionViews
    purgatory: RemoteFetchPurgatory
    partition_of: Callable[[str, int], TopicIdPartition | None]
    masked: Callable[[], frozenset[str]] = frozenset
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def page(self, query: RecordQuery) -> dict[str, Any]:
        """A page of records as JSON. `next_offset`: where the following page begins; null: at the
        archive's end. Raises NothingThere, FetchProxyError, TimeoutError.
        """
        async with self._turn:
            tp = self.partition_of(query.topic, query.partition)
            if tp is None:
                raise NothingThere(
                    f"{harmless(query.topic)}-{query.partition} is not in the archive"
                )
            view = await self.views.refresh(tp, float("-inf"))
            first, end = view.log_start_offset, view.log_end_offset
            if first is None or end is None:
                raise NothingThere(f"{tp} has no archived record")
            start = await self._start(tp, query, first)
            if not first <= start < end:
                raise NothingThere(f"{tp} is archived from offset {first} to {end - 1}")
            page = _Page(query, self.masked(), start)
            while page.wants_more and page.next_offset < end and await self._read_on(tp, page):
                pass
            return {
                "topic": harmless(tp.topic),
                "partition": tp.partition,
                "log_start_offset": first,
                "log_end_offset": end,
                "records": page.records,
                "notes": page.notes,
                "next_offset": page.next_offset if page.next_offset < end else None,
            }

    async def _start(self, tp: TopicIdPartition, query: RecordQuery, log_start: int) -> int:
        if query.timestamp_ms is None:
            return log_start if query.offset is None else query.offset
        async with asyncio.timeout(_READ_MAX_S):
            first_record = await self.purgatory.first_offset_at_or_after(tp, query.timestamp_ms)
        if first_record is None:
            raise NothingThere(f"no archived record of {tp} has that time or a later one")
        return first_record[0]

    async def _read_on(self, tp: TopicIdPartition, page: _Page) -> bool:
        """False: the archive has nothing there yet."""
        loop = asyncio.get_running_loop()
        request = RemoteReadRequest(
            tp, page.next_offset, _READ_BYTES, IsolationLevel.READ_UNCOMMITTED
        )
        fetch = self.purgatory.fetch(
            {tp: request}, bytes_max=_READ_BYTES, deadline=loop.time() + _READ_MAX_S
        )
        try:
            await fetch.completed.wait()
        except asyncio.CancelledError:
            fetch.cancel(client_gone=True)
            raise
        result = fetch.results().get(tp)
        if result is None:
            raise TimeoutError(f"the store did not return the records within {_READ_MAX_S:g} s")
        if result.error is not None:
            raise result.error
        if result.skipped is not None:
            page.notes.append("offsets {} to {} are lost".format(*result.skipped))
        for piece in result.records:
            for header in walk(piece):
                await page.take(piece, header)
                if not page.wants_more:
                    return True
        page.next_offset = max(page.next_offset, result.next_offset)
        return bool(result.records)


@dataclass(slots=True)
class _Page:
    query: RecordQuery
    masked: frozenset[str]
    next_offset: int
    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def wants_more(self) -> bool:
        return (
            len(self.records) < self.query.count
            and len(self.notes) < RECORDS_MAX
            and self.size_bytes < PAGE_BYTES_MAX
        )

    def add(self, record: Record) -> None:
        one = record_view(record, self.masked, self.query.as_hex)
        self.records.append(one)
        self.size_bytes += len(json.dumps(one))
        self.next_offset = record.offset + 1

    async def take(self, piece: memoryview, header: BatchHeader) -> None:
        """Adds the batch's records from `next_offset` on, in steps."""
        if header.last_offset < self.next_offset:
            return
        if header.is_control:
            self.notes.append(f"offset {header.base_offset} is a transaction's marker")
        elif (why := await self._take_records(piece, header)) is not None:
            self.notes.append(
                f"offsets {header.base_offset} to {header.last_offset} are not shown: {why}"
            )
        elif not self.wants_more:
            return  # `next_offset` lies behind the last record that was taken
        self.next_offset = header.last_offset + 1

    async def _take_records(self, piece: memoryview, header: BatchHeader) -> str | None:
        """Why the batch cannot be shown, or None."""
        stored_bytes = piece[header.records_at : header.position + header.size]
        try:
            unpacked = await in_thread(
                partial(decompress, header.compression, stored_bytes, SHOWN_BATCH_BYTES_MAX)
            )
            for number, record in enumerate(records_in(unpacked, header, self.next_offset)):
                if number % RECORDS_A_TURN == 0:
                    await a_turn()
                if record is not None:
                    self.add(record)
                    await a_turn()
                    if not self.wants_more:
                        break
        except WireError as error:
            return str(error)
        return None
