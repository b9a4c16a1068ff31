"""The rows of the HTTP API: topics, partitions, segments, readers, groups and conditions, in pages.

Everything comes from what the process already knows: no request here asks store or brokers. A page
is made in steps, so that none of them holds the event loop. Field names are the JSON names.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

from fetchproxy.config.schema import PricesConfig
from fetchproxy.console.collect import LINES_AT_ONCE, StatusCollector
from fetchproxy.console.process import LogLine, ProcessFacts
from fetchproxy.console.status import PartitionQuery, PartitionRows, PartitionStatus, TopicStatus
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


class NotThere(Exception):
    """There is no such topic or partition."""


class BadPage(ValueError):
    """`limit` or `after` has a wrong form."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """At most `limit` rows, those after the row that `after` names (empty: from the first)."""

    after: str = ""
    limit: int = LIMIT_DEFAULT


@dataclass(frozen=True, slots=True)
class Page:
    """`next`: the `after` of the next page; None: there are no more rows."""

    items: tuple[Any, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class TopicRow(TopicStatus):
    """`storage_usd_per_month`: None without `prices.storage_usd_per_gb_month`."""

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
    """One client. The addresses `this process` and `other` stand for what the process does for
    nobody in particular, and for clients that are forgotten. Empty: not known.
    """

    address: str = ""
    client_id: str = ""
    user: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class GroupRow(Cost):
    """`clients`: connected ones that name the group, or have read for it lately."""

    group: str = ""
    clients: int = 0


def cost_of(account: ReaderAccount, prices: PricesConfig) -> dict[str, Any]:
    """The fields of `Cost`. Pure."""
    usd = None
    if prices.given:
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


@dataclass(frozen=True, slots=True)
class Rows:
    """Each method makes one page. Those whose order a figure decides skip rows by their number."""

    collector: StatusCollector
    accounts: ReaderAccounts
    facts: ProcessFacts
    lines: RecentLines = RECENT_LINES

    @property
    def prices(self) -> PricesConfig:
        return self.collector.config.prices

    async def topics(self, query: PageQuery) -> Page:
        """By name."""
        found = await self.collector.conditions()
        table = PartitionRows(PartitionQuery(rows_max=0), found)
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

    def _topic_row(self, row: TopicStatus) -> TopicRow:
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        price = self.prices.storage_usd_per_gb_month
        usd = round(row.size_bytes / _GB * price, 4) if price else None
        return TopicRow(**values, storage_usd_per_month=usd)

    async def partitions(self, topic: str, query: PageQuery) -> Page:
        """By number. Raises NotThere."""
        after = skipped_rows(query) if query.after else -1
        tps = self._of_topic(topic)
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
        tps = [tp for tp in self._of_topic(topic) if tp.partition == partition]
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

    def _of_topic(self, topic: str) -> Sequence[TopicIdPartition]:
        tps = self.collector.tps
        first, end = bisect_left(tps, topic, key=_topic), bisect_right(tps, topic, key=_topic)
        if first == end:
            raise NotThere(f"topic {topic}")
        return tps[first:end]

    async def readers(self, query: PageQuery) -> Page:
        """Those with most bytes first."""
        skipped = skipped_rows(query)
        every = [*self.accounts.clients(), self.accounts.others, self.accounts.own]
        await a_turn()
        most = await asyncio.to_thread(heapq.nlargest, skipped + query.limit + 1, every, _bytes)
        page_rows = most[skipped : skipped + query.limit]
        rows = [
            ReaderRow(**one.client._asdict(), **cost_of(one, self.prices))
            async for one in cooperative(page_rows, LINES_AT_ONCE)
        ]
        more = len(most) > skipped + query.limit
        return Page(tuple(rows), str(skipped + query.limit) if more else None)

    async def groups(self, query: PageQuery) -> Page:
        """By name: groups of connected clients, and of clients that have read lately."""
        await a_turn()
        clients: dict[str, set[tuple[str, str]]] = defaultdict(set)
        sums: dict[str, ReaderAccount] = {}
        named = self.collector.sources.groups() or GroupsOfClients()
        async for place, groups in cooperative(named.items()):
            for group in groups:
                clients[group].add(place)
        async for one in cooperative(self.accounts.clients()):
            if group := one.client.group:
                clients[group].add(one.client[:2])
                sums.setdefault(group, ReaderAccount(one.client)).add(one)
        later = await chosen(clients, lambda name: name > query.after)
        names = await asyncio.to_thread(heapq.nsmallest, query.limit + 1, later)
        rows = [
            GroupRow(
                **cost_of(sums.get(name) or ReaderAccount(self.accounts.own.client), self.prices),
                group=name,
                clients=len(clients[name]),
            )
            async for name in cooperative(names[: query.limit], LINES_AT_ONCE)
        ]
        return Page(tuple(rows), rows[-1].group if len(names) > query.limit else None)

    async def conditions(self, query: PageQuery) -> Page:
        """The worst first."""
        skipped, now = skipped_rows(query), asyncio.get_running_loop().time()
        every = await self.collector.conditions()
        page_rows = every[skipped : skipped + query.limit]
        rows = [one.as_json_at(now) async for one in cooperative(page_rows, LINES_AT_ONCE)]
        more = len(every) > skipped + query.limit
        return Page(tuple(rows), str(skipped + query.limit) if more else None)

    async def log(self, query: PageQuery) -> Page:
        """The newest first."""
        skipped = skipped_rows(query)
        every = self.lines.newest_first()
        page_rows = every[skipped : skipped + query.limit]
        more = len(every) > skipped + query.limit
        rows = tuple(LogLine(*one) for one in page_rows)
        return Page(rows, str(skipped + query.limit) if more else None)

    async def process(self, _query: PageQuery) -> Page:
        return Page((await self.facts.row(),))


def _topic(tp: TopicIdPartition) -> str:
    return tp.topic


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


def page_query(given: Iterable[tuple[str, str]]) -> PageQuery:
    """From the query of a URL. Raises BadPage."""
    values = dict(given)
    limit, after = values.get("limit", str(LIMIT_DEFAULT)), values.get("after", "")
    if not (
        limit.isascii() and limit.isdigit() and len(limit) <= 4 and 0 < int(limit) <= LIMIT_MAX
    ):
        raise BadPage(f"limit: a number from 1 to {LIMIT_MAX}")
    if len(after) > AFTER_CHARS_MAX:
        raise BadPage("after: take it from `next` of the page before")
    return PageQuery(after, int(limit))
