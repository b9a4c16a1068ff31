"""The rows of the HTTP API: topics, partitions, segments, readers, groups and conditions, in pages.

Everything comes from what the process already knows: no request here asks store or brokers. A page
is made in steps, so that none of them holds the event loop. Field names are the JSON names.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any, TypeVar

from fetchproxy.config.schema import PricesConfig
from fetchproxy.console.collect import LINES_AT_ONCE, StatusCollector
from fetchproxy.console.process import LogLine, ProcessFacts
from fetchproxy.console.status import (
    PartitionQuery,
    PartitionRows,
    PartitionStatus,
    TopicStatus,
)
from fetchproxy.console.timeline import TimelineSpan, coarse_spans, merged_spans
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.logs import RECENT_LINES, RecentLines
from fetchproxy.runtime.cooperative import a_turn, chosen, cooperative
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.serving.client_groups import GroupsOfClients
from fetchproxy.storage.reader_accounts import ReaderAccount, ReaderAccounts

LIMIT_DEFAULT, LIMIT_MAX = 100, 1_000
# Of a client's groups and a topic's name; a longer value is refused.
AFTER_CHARS_MAX = 400
_GB = 1e9
# Some 10 µs each.
_SEGMENTS_AT_ONCE = 100
# A partition with 500 segments or more takes a few ms.
_TIMELINES_AT_ONCE = 1
_COARSE_TIMELINES_AT_ONCE = 10
_SPANS_AT_ONCE = 5_000
# The timeline of the whole archive takes a pass over all partitions.
TIMELINE_AGE_MAX_S = 60.0


T = TypeVar("T")


class NotThere(Exception):
    """There is no such topic or partition."""


class BadPage(ValueError):
    """`limit` or `after` has a wrong form."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """At most `limit` rows, those after the row that `after` names (empty: from the first).

    For topics and partitions: `sort` by a field, with `-` before it the largest first, or `worst`
    first; empty: by name or number. `name_part`: only topics with it in their name. `faulty`: only
    those with a fault or lost offsets.
    """

    after: str = ""
    limit: int = LIMIT_DEFAULT
    sort: str = ""
    name_part: str = ""
    faulty: bool = False

    @property
    def chooses(self) -> bool:
        """The rows are not those of the list in its own order."""
        return bool(self.sort or self.name_part or self.faulty)


@dataclass(frozen=True, slots=True)
class Page:
    """`next`: the `after` of the next page; None: there are no more rows."""

    items: tuple[Any, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class TopicRow(TopicStatus):
    """`storage_usd_per_month` is null if `prices.storage_usd_per_gb_month` is not set."""

    storage_usd_per_month: float | None = None


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """`last_offset` is inclusive. `packed`: compressed or encrypted."""

    topic_id: str
    segment_id: str
    base_offset: int
    last_offset: int
    size_bytes: int
    max_timestamp_ms: int
    state: str
    packed: bool


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts since the client came, or for a group: of all its clients that are known now.

    `gets`, `lists`, `puts`: requests to the store that were sent for it first. `store_bytes`: what
    the store has sent for them. `served_bytes`: archived bytes that it was sent, also from memory.
    `throttle_seconds`: how long it was told to wait. `usd`: None without prices.
    """

    gets: int = 0
    lists: int = 0
    puts: int = 0
    store_bytes: int = 0
    served_bytes: int = 0
    throttle_seconds: float = 0.0
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class ReaderRow(Cost):
    """One client. The address `this process` stands for what the process does for itself; `other`
    stands for clients that are no longer listed. Empty: not known.
    """

    address: str = ""
    client_id: str = ""
    user: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class GroupRow(Cost):
    """`clients`: connected clients that name the group or have recently read for it."""

    group: str = ""
    clients: int = 0


def _sort_keys(
    figures: Mapping[str, Callable[[Any], float | str | None]],
) -> dict[str, Callable[[Any], Any]]:
    """Keys by name, and by `-name` for the largest first. What is not known comes last."""

    def rising(pick: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda row: ((value := pick(row)) is None, 0 if value is None else value)

    def falling(pick: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda row: ((value := pick(row)) is None, 0 if value is None else -value)

    both = {name: rising(pick) for name, pick in figures.items()}
    return both | {f"-{name}": falling(pick) for name, pick in figures.items()}


# Rows of a topic's partitions are (faulty, line).
TOPIC_SORTS: Mapping[str, Callable[[Any], Any]] = {
    "worst": lambda row: (not row.faulty, not row.lost_offsets, row.topic),
    "topic": lambda row: row.topic,
    **_sort_keys(
        {
            "partitions": lambda row: row.partitions,
            "faulty": lambda row: row.faulty,
            "lag_offsets": lambda row: row.lag_offsets,
            "size_bytes": lambda row: row.size_bytes,
            "lost_offsets": lambda row: row.lost_offsets,
            "deleted_in_seconds": lambda row: row.deleted_in_seconds,
        }
    ),
}
PARTITION_SORTS: Mapping[str, Callable[[Any], Any]] = {
    "worst": lambda row: (not row[0], not row[1].lost_offsets),
    **_sort_keys(
        {
            "partition": lambda row: row[1].partition,
            "lag_offsets": lambda row: row[1].lag_offsets,
            "margin_offsets": lambda row: row[1].margin_offsets,
            "size_bytes": lambda row: row[1].size_bytes,
            "segments": lambda row: row[1].segments,
            "lost_offsets": lambda row: row[1].lost_offsets,
            "deleted_in_seconds": lambda row: row[1].deleted_in_seconds,
        }
    ),
}


def cost_of(account: ReaderAccount, prices: PricesConfig) -> dict[str, Any]:
    """The fields of `Cost`. Pure."""
    usd = None
    if prices.are_set:
        requests = account.gets * prices.get_usd_per_1000
        requests += (account.lists + account.puts) * prices.put_usd_per_1000
        usd = round(requests / 1000 + account.store_bytes / _GB * prices.egress_usd_per_gb, 6)
    return {
        "gets": account.gets,
        "lists": account.lists,
        "puts": account.puts,
        "store_bytes": account.store_bytes,
        "served_bytes": account.served_bytes,
        "throttle_seconds": round(account.throttle_s, 3),
        "usd": usd,
    }


def skipped_rows(query: PageQuery) -> int:
    """`after` of lists that are ordered by a figure: how many rows to pass over."""
    text = query.after or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadPage("after: take it from `next` of the page before")
    return int(text)


@dataclass(slots=True)
class _WholeTimeline:
    """The cached timeline of the whole archive. `made_at`: loop time (s)."""

    spans: tuple[TimelineSpan, ...] = ()
    made_at: float = float("-inf")
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Rows:
    """Each method makes one page. Those whose order a figure decides skip rows by their number."""

    collector: StatusCollector
    accounts: ReaderAccounts
    facts: ProcessFacts
    lines: RecentLines = RECENT_LINES
    whole: _WholeTimeline = field(default_factory=_WholeTimeline)

    @property
    def prices(self) -> PricesConfig:
        return self.collector.config.prices

    async def topics(self, query: PageQuery) -> Page:
        """By name, or as the query chooses."""
        if query.chooses:
            return await self._chosen_topics(query)
        conditions = await self.collector.conditions()
        table = PartitionRows(PartitionQuery(rows_max=0), conditions)
        tps = self.collector.tps
        first = bisect_right(tps, query.after, key=_topic) if query.after else 0
        names, last = 0, ""
        more = False
        async for tp in cooperative(islice(tps, first, None), LINES_AT_ONCE):
            if tp.topic != last:
                if more := names == query.limit:
                    break
                names, last = names + 1, tp.topic
            table.add(self.collector.line(tp))
        rows = sorted(table.topics(), key=lambda row: row.topic)
        return Page(tuple(map(self._topic_row, rows)), last if more else None)

    async def _chosen_topics(self, query: PageQuery) -> Page:
        order = _order(TOPIC_SORTS, query.sort)
        table = PartitionRows(PartitionQuery(rows_max=0), await self.collector.conditions())
        async for tp in cooperative(self.collector.tps, LINES_AT_ONCE):
            table.add(self.collector.line(tp))
        name_part = query.name_part.lower()

        def choose() -> list[TopicStatus]:
            some = (
                topic
                for topic in table.topics()
                if name_part in topic.topic.lower()
                and not (query.faulty and not topic.faulty and not topic.lost_offsets)
            )
            return _first_rows(some, order, query)

        return _page_of([self._topic_row(row) for row in await asyncio.to_thread(choose)], query)

    async def _chosen_partitions(self, tps: Sequence[TopicIdPartition], query: PageQuery) -> Page:
        order = _order(PARTITION_SORTS, query.sort)
        table = PartitionRows(PartitionQuery(rows_max=0), await self.collector.conditions())
        rows: list[tuple[bool, PartitionStatus]] = []
        async for tp in cooperative(tps, LINES_AT_ONCE):
            line = self.collector.line(tp)
            is_faulty = table.is_faulty(line)
            if not query.faulty or is_faulty or line.lost_offsets:
                rows.append((is_faulty, line))

        def choose() -> list[tuple[bool, PartitionStatus]]:
            return _first_rows(rows, lambda row: (*order(row), row[1].partition), query)

        return _page_of([line for _, line in await asyncio.to_thread(choose)], query)

    def _topic_row(self, row: TopicStatus) -> TopicRow:
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        price = self.prices.storage_usd_per_gb_month
        usd = round(row.size_bytes / _GB * price, 4) if price else None
        return TopicRow(**values, storage_usd_per_month=usd)

    async def partitions(self, topic: str, query: PageQuery) -> Page:
        """By number, or as the query chooses. Raises NotThere."""
        tps = self._topic_tps(topic)
        if query.chooses:
            return await self._chosen_partitions(tps, query)
        after = skipped_rows(query) if query.after else -1
        first = bisect_right(tps, after, key=lambda tp: tp.partition)
        rows: list[PartitionStatus] = []
        async for tp in cooperative(islice(tps, first, None), LINES_AT_ONCE):
            # A topic that was made again has its number twice: both are on one page.
            if len(rows) >= query.limit and tp.partition != rows[-1].partition:
                return Page(tuple(rows), str(rows[-1].partition))
            rows.append(self.collector.line(tp))
        return Page(tuple(rows))

    async def segments(self, topic: str, partition: int, query: PageQuery) -> Page:
        """By offset. Raises NotThere."""
        after = skipped_rows(query) if query.after else -1
        tps = [tp for tp in self._topic_tps(topic) if tp.partition == partition]
        if not tps:
            raise NotThere(f"partition {partition} of topic {topic}")
        rows: list[ArchivedSegment] = []
        for tp in tps:
            view = self.collector.rlmm.view(tp)
            if view is None:
                continue
            index = view.segments.index_at_or_after(after + 1)
            while index < len(view.segments) and len(rows) <= query.limit:
                step = view.segments[index : index + _SEGMENTS_AT_ONCE]
                rows += [_segment_row(tp, segment) for segment in step]
                index += len(step)
                await a_turn()
        rows.sort(key=lambda row: (row.last_offset, row.base_offset))
        page_rows = rows[: query.limit]
        more = len(rows) > query.limit
        return Page(tuple(page_rows), str(page_rows[-1].last_offset) if more else None)

    async def timeline_of_all(self, query: PageQuery) -> Page:
        """As `timeline_of_topic`, of the whole archive. One caller after the other."""
        clock, whole = asyncio.get_running_loop().time, self.whole
        async with whole.turn:
            if clock() - whole.made_at > TIMELINE_AGE_MAX_S:
                whole.spans, whole.made_at = await self._all_spans(), clock()
        return _numbered_page(whole.spans, query)

    async def _all_spans(self) -> tuple[TimelineSpan, ...]:
        spans: list[TimelineSpan] = []
        async for tp in cooperative(self.collector.tps, _COARSE_TIMELINES_AT_ONCE):
            spans += self.collector.spans(tp, coarse=True)
            if len(spans) > _SPANS_AT_ONCE:
                spans = list(await asyncio.to_thread(coarse_spans, spans))
        return await asyncio.to_thread(coarse_spans, spans)

    async def timeline_of_topic(self, topic: str, query: PageQuery) -> Page:
        """By kind, then by time. Raises NotThere."""
        spans: list[TimelineSpan] = []
        async for tp in cooperative(self._topic_tps(topic), _TIMELINES_AT_ONCE):
            spans += self.collector.spans(tp)
            if len(spans) > _SPANS_AT_ONCE:
                spans = list(await asyncio.to_thread(merged_spans, spans))
        return _numbered_page(await asyncio.to_thread(merged_spans, spans), query)

    async def timeline(self, topic: str, partition: int, query: PageQuery) -> Page:
        """By kind, then by offset. Raises NotThere."""
        tps = [tp for tp in self._topic_tps(topic) if tp.partition == partition]
        if not tps:
            raise NotThere(f"partition {partition} of topic {topic}")
        return _numbered_page([span for tp in tps for span in self.collector.spans(tp)], query)

    async def history(self, query: PageQuery) -> Page:
        """The oldest first."""
        return _numbered_page(self.collector.history.samples(), query)

    def _topic_tps(self, topic: str) -> Sequence[TopicIdPartition]:
        tps = self.collector.tps
        first, end = bisect_left(tps, topic, key=_topic), bisect_right(tps, topic, key=_topic)
        if first == end:
            raise NotThere(f"topic {topic}")
        return tps[first:end]

    async def readers(self, query: PageQuery) -> Page:
        """Those with most bytes first."""
        skipped_count = skipped_rows(query)
        accounts = [*self.accounts.clients(), self.accounts.others, self.accounts.this_process]
        await a_turn()
        largest = await asyncio.to_thread(
            heapq.nlargest, skipped_count + query.limit + 1, accounts, _bytes
        )
        page_rows = largest[skipped_count : skipped_count + query.limit]
        rows = [
            ReaderRow(**row.client._asdict(), **cost_of(row, self.prices))
            async for row in cooperative(page_rows, LINES_AT_ONCE)
        ]
        more = len(largest) > skipped_count + query.limit
        return Page(tuple(rows), str(skipped_count + query.limit) if more else None)

    async def groups(self, query: PageQuery) -> Page:
        """By name: groups of connected clients, and of clients that have read lately."""
        await a_turn()
        clients: dict[str, set[tuple[str, str]]] = defaultdict(set)
        sums: dict[str, ReaderAccount] = {}
        groups_of_clients = self.collector.sources.groups() or GroupsOfClients()
        async for group_key, groups in cooperative(groups_of_clients.items()):
            for group in groups:
                clients[group].add(group_key)
        async for client in cooperative(self.accounts.clients()):
            if group := client.client.group:
                clients[group].add(client.client[:2])
                sums.setdefault(group, ReaderAccount(client.client)).add(client)
        later = await chosen(clients, lambda name: name > query.after)
        names = await asyncio.to_thread(heapq.nsmallest, query.limit + 1, later)
        rows = [
            GroupRow(
                **cost_of(
                    sums.get(name) or ReaderAccount(self.accounts.this_process.client), self.prices
                ),
                group=name,
                clients=len(clients[name]),
            )
            async for name in cooperative(names[: query.limit], LINES_AT_ONCE)
        ]
        return Page(tuple(rows), rows[-1].group if len(names) > query.limit else None)

    async def conditions(self, query: PageQuery) -> Page:
        """The worst first."""
        skipped_count, now = skipped_rows(query), asyncio.get_running_loop().time()
        every = await self.collector.conditions()
        page_rows = every[skipped_count : skipped_count + query.limit]
        rows = [row.as_json_at(now) async for row in cooperative(page_rows, LINES_AT_ONCE)]
        more = len(every) > skipped_count + query.limit
        return Page(tuple(rows), str(skipped_count + query.limit) if more else None)

    async def log(self, query: PageQuery) -> Page:
        """The newest first."""
        skipped_count = skipped_rows(query)
        lines = self.lines.newest_first()
        page_rows = lines[skipped_count : skipped_count + query.limit]
        more = len(lines) > skipped_count + query.limit
        rows = tuple(LogLine(*row) for row in page_rows)
        return Page(rows, str(skipped_count + query.limit) if more else None)

    async def process(self, _query: PageQuery) -> Page:
        return Page((await self.facts.row(),))


def _topic(tp: TopicIdPartition) -> str:
    return tp.topic


def _order(sorts: Mapping[str, Callable[[Any], Any]], name: str) -> Callable[[Any], Any]:
    """The key by which rows rise. Raises BadPage."""
    sort = name or "worst"
    if sort not in sorts:
        raise BadPage(f"sort: one of {', '.join(sorts)}")
    return sorts[sort]


def _first_rows(rows: Iterable[T], order: Callable[[T], Any], query: PageQuery) -> list[T]:
    """Those of the page, and one more if there are more."""
    skipped_count = skipped_rows(query)
    return heapq.nsmallest(skipped_count + query.limit + 1, rows, key=order)[skipped_count:]


def _numbered_page(rows: Sequence[Any], query: PageQuery) -> Page:
    skipped_count = skipped_rows(query)
    return _page_of(rows[skipped_count : skipped_count + query.limit + 1], query)


def _page_of(rows: Sequence[Any], query: PageQuery) -> Page:
    more = len(rows) > query.limit
    return Page(
        tuple(rows[: query.limit]), str(skipped_rows(query) + query.limit) if more else None
    )


def _bytes(account: ReaderAccount) -> int:
    return account.store_bytes + account.served_bytes


def _segment_row(tp: TopicIdPartition, segment: Any) -> ArchivedSegment:
    return ArchivedSegment(
        uuid_text(tp.topic_id),
        uuid_text(segment.segment_id.id),
        segment.start_offset,
        segment.end_offset,
        segment.segment_size_bytes,
        segment.max_timestamp_ms,
        segment.state.name,
        segment.packed,
    )


def page_query(pairs: Iterable[tuple[str, str]]) -> PageQuery:
    """From the query of a URL. Raises BadPage."""
    values = dict(pairs)
    limit, after = values.get("limit", str(LIMIT_DEFAULT)), values.get("after", "")
    if not (
        limit.isascii() and limit.isdigit() and len(limit) <= 4 and 0 < int(limit) <= LIMIT_MAX
    ):
        raise BadPage(f"limit: a number from 1 to {LIMIT_MAX}")
    if len(after) > AFTER_CHARS_MAX:
        raise BadPage("after: take it from `next` of the page before")
    faulty = values.get("faulty", "false")
    if faulty not in ("true", "false"):
        raise BadPage("faulty: true or false")
    name_part = values.get("name_part", "")
    if len(name_part) > AFTER_CHARS_MAX:
        raise BadPage("name_part: longer than any name")
    return PageQuery(after, int(limit), values.get("sort", ""), name_part, faulty == "true")
