"""The HTTP API over real HTTP on a loopback socket, over a real (in-memory) archive."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from longest_turns import longest_turn
from prometheus_client import CollectorRegistry
from segment_values import segment_of
from test_console_collect import CONFIG, Process

from fetchproxy.config.schema import ConsoleConfig, PricesConfig
from fetchproxy.console.api import DRILL_PATH, ENDPOINTS, OTHERS, api_page, openapi
from fetchproxy.console.process import ProcessFacts
from fetchproxy.console.rows import (
    LIMIT_MAX,
    PARTITION_SORTS,
    TOPIC_SORTS,
    PageQuery,
    Rows,
    cost_of,
)
from fetchproxy.console.server import TOKEN_BYTES_MIN, ConsoleServer
from fetchproxy.console.status import PartitionQuery
from fetchproxy.errors import ConfigError
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition, Kind, of_partition
from fetchproxy.observability.logs import LINE_CHARS_MAX, RecentLines
from fetchproxy.storage.reader_accounts import Client, ReaderAccount, StoreRequest, paid_by

TOKEN = "0123456789abcdef-and-more"
TOPICS, PARTITIONS = 5, 7
TURN_MAX_S = 0.05


@asynccontextmanager
async def served(process: Process, **config: Any) -> AsyncIterator[aiohttp.ClientSession]:
    rows = rows_of(process)
    settings = ConsoleConfig(listen="127.0.0.1:0", **config)
    async with (
        ConsoleServer(settings, process.collector, CollectorRegistry(), rows=rows) as console,
        aiohttp.ClientSession(f"http://{console.address}") as session,
    ):
        yield session


def rows_of(process: Process) -> Rows:
    facts = ProcessFacts(CONFIG, process.storage.objects, lambda: 1_700_000_000_000)
    return Rows(process.collector, process.storage.accounts, facts, process.lines)


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    async with Process() as process:
        for topic in range(TOPICS):
            for partition in range(PARTITIONS):
                tp = TopicIdPartition(UUID(int=100 + topic), f"topic-{topic}", partition)
                number = 1_000 * topic + 100 * partition
                for start in (0, 10, 20):
                    made = segment_of(
                        tp, number + start + 1, start, start + 9, segment_leader_epochs=()
                    )
                    await process.archive(made)
        await process.collector.update()
        yield process


@pytest.fixture
async def http(process: Process) -> AsyncIterator[aiohttp.ClientSession]:
    async with served(process) as session:
        yield session


async def all_rows(http: aiohttp.ClientSession, path: str, limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        params = {"limit": str(limit), "after": after}
        async with http.get(path, params=params) as response:
            assert response.status == 200, await response.text()
            page = await response.json()
        assert 0 < len(page["items"]) <= limit
        rows += page["items"]
        after = page["next"]
    return rows


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 100, LIMIT_MAX])
async def test_pages_of_any_size_have_each_row_once(
    http: aiohttp.ClientSession, limit: int
) -> None:
    topics = await all_rows(http, "/api/topics", limit)
    assert [row["topic"] for row in topics] == [f"topic-{number}" for number in range(TOPICS)]
    assert {row["partitions"] for row in topics} == {PARTITIONS}
    partitions = await all_rows(http, "/api/topics/topic-3/partitions", limit)
    assert [row["partition"] for row in partitions] == list(range(PARTITIONS))
    segments = await all_rows(http, "/api/topics/topic-3/partitions/6/segments", limit)
    assert [(row["base_offset"], row["last_offset"]) for row in segments] == [
        (0, 9),
        (10, 19),
        (20, 29),
    ]


async def test_a_wrong_question_gets_400_or_404_and_the_reason(http: aiohttp.ClientSession) -> None:
    wrong = {
        "/api/topics?limit=0": 400,
        f"/api/topics?limit={LIMIT_MAX + 1}": 400,
        "/api/topics?limit=-1": 400,
        "/api/topics?limit=٣": 400,
        f"/api/topics?after={'x' * 401}": 400,
        "/api/readers?after=x": 400,
        "/api/topics/none/partitions": 404,
        "/api/topics/topic-1/partitions/99/segments": 404,
        "/api/topics/topic-1/partitions/x/segments": 400,
        "/api/topics/%1b%5b31m/partitions": 404,
    }
    for path, status in wrong.items():
        async with http.get(path) as response:
            text = await response.text()
            assert response.status == status, path
            assert text.strip()
            assert "\x1b" not in text


async def test_readers_and_groups_say_what_each_has_cost(
    process: Process, http: aiohttp.ClientSession
) -> None:
    accounts = process.storage.accounts
    for number in range(3):
        client = Client("10.0.0.1", f"app-{number}", "alice", "billing" if number else "audit")
        with paid_by(client):
            accounts.requested(StoreRequest.GET, 10)
            accounts.received(1_000 * number)
        account = accounts.account_of(client)
        account.served_bytes, account.throttle_s = 5_000 * number, 0.25
    rows = await all_rows(http, "/api/readers", 2)
    own_row = next(row for row in rows if row["address"] == "this process")
    assert own_row["lists"] > 0  # the collector's looks
    clients = [row for row in rows if row["user"] == "alice"]
    assert [row["client_id"] for row in clients] == ["app-2", "app-1", "app-0"]
    assert (clients[0]["store_bytes"], clients[0]["served_bytes"]) == (2_000, 10_000)
    groups = await all_rows(http, "/api/groups", 1)
    assert [(row["group"], row["clients"], row["gets"]) for row in groups] == [
        ("audit", 1, 10),
        ("billing", 2, 20),
    ]
    assert groups[1]["throttle_seconds"] == 0.5
    assert groups[1]["usd"] is None


def test_money_is_requests_and_bytes_by_their_prices() -> None:
    account = ReaderAccount(Client("a", "b"), gets=2_000, lists=500, puts=500)
    account.store_bytes = 3_000_000_000
    prices = PricesConfig(get_usd_per_1000=0.0004, put_usd_per_1000=0.005, egress_usd_per_gb=0.09)
    assert cost_of(account, prices)["usd"] == pytest.approx(0.0008 + 0.005 + 0.27)
    assert cost_of(account, PricesConfig(storage_usd_per_gb_month=1))["usd"] is None


async def test_conditions_come_in_pages_the_worst_first(
    process: Process, http: aiohttp.ClientSession
) -> None:
    for number in range(120):
        process.health.report(
            Condition(Kind.MESSAGE_TOO_LARGE, f"password=x {number}", str(number))
        )
    rows = await all_rows(http, "/api/conditions", 50)
    assert len({row["subject"] for row in rows if row["kind"] == "message_too_large"}) == 120
    assert "password=x" not in str(rows)


async def test_all_that_is_answered_is_described(
    process: Process, http: aiohttp.ClientSession
) -> None:
    process.health.report(Condition(Kind.MESSAGE_TOO_LARGE, "too large", "a"))
    await process.collector.sample()
    process.lines.processor(None, "", {"timestamp": "now", "level": "info", "event": "begun"})
    async with http.get("/api/openapi.json") as response:
        described = await response.json()
    assert described == openapi()
    others = {DRILL_PATH, *(one[0] for one in OTHERS)}
    assert set(described["paths"]) == {*(one.path for one in ENDPOINTS), *others}
    parameters = {"topic": "topic-2", "partition": "1"}
    for endpoint in ENDPOINTS:
        async with http.get(endpoint.path.format(**parameters)) as response:
            if endpoint.path == "/api/groups":
                assert await response.json() == {"items": [], "next": None}
                continue
            row = (await response.json())["items"][0]
        operation = described["paths"][endpoint.path]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        items = schema["properties"]["items"]["items"]
        if "$ref" not in items:
            continue  # a condition has the fields of its kind
        name = items["$ref"].rpartition("/")[2]
        assert set(row) == set(described["components"]["schemas"][name]["properties"])


@pytest.mark.parametrize(("path", "sorts"), [
    ("/api/topics", TOPIC_SORTS), ("/api/topics/topic-2/partitions", PARTITION_SORTS),
])  # fmt: skip
async def test_each_order_has_each_row_once(
    http: aiohttp.ClientSession, path: str, sorts: dict[str, Any]
) -> None:
    for sort in sorts:
        pages = await all_rows(http, f"{path}?sort={sort}", 2)
        rows = {(row["topic"], row.get("partition")) for row in pages}
        assert len(rows) == len(pages) == (TOPICS if path == "/api/topics" else PARTITIONS)
    async with http.get(f"{path}?sort=colour") as response:
        assert response.status == 400
        assert "worst" in await response.text()


async def test_topics_by_figure_by_name_and_with_a_fault(
    process: Process, http: aiohttp.ClientSession
) -> None:
    tp = TopicIdPartition(UUID(int=103), "topic-3", 2)
    await process.archive(segment_of(tp, 9_999, 40, 49, segment_leader_epochs=()))
    stopped = of_partition(Kind.PARTITION_STOPPED, tp, "it begins again")
    process.published_conditions.health.hold(stopped, tp)
    await process.collector.update()
    largest = await all_rows(http, "/api/topics?sort=-size_bytes", 100)
    assert largest[0]["topic"] == "topic-3"
    assert largest[0]["lost_offsets"] == 10, "30 to 39 are in no segment"
    worst = await all_rows(http, "/api/topics?sort=worst", 100)
    assert [row["topic"] for row in worst] == [
        "topic-3",
        "topic-0",
        "topic-1",
        "topic-2",
        "topic-4",
    ]
    for query in ("faulty=true", "name_part=IC-3", "faulty=true&name_part=3&sort=topic"):
        assert [row["topic"] for row in await all_rows(http, f"/api/topics?{query}", 100)] == [
            "topic-3"
        ]
    partitions = await all_rows(http, "/api/topics/topic-3/partitions?sort=worst", 3)
    assert [row["partition"] for row in partitions] == [2, 0, 1, 3, 4, 5, 6]
    async with http.get("/api/topics?faulty=perhaps") as response:
        assert response.status == 400
    status = await process.collector(PartitionQuery(rows_max=0, topics_max=2))
    assert [row.topic for row in status.topics] == ["topic-3", "topic-0"]
    totals = status.totals
    assert (totals.topics, totals.partitions, totals.faulty) == (5, 35, 1)
    assert (totals.lost_offsets, totals.lossy) == (10, 1)


def test_the_page_on_disk_is_up_to_date() -> None:
    on_disk = (Path(__file__).parents[2] / "docs/reference/api.md").read_text(encoding="utf-8")
    assert on_disk == api_page(), "run python -m fetchproxy.console.api"


async def test_with_a_token_only_probes_answer_without_it(process: Process, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    wrong = base64.b64encode(f"{TOKEN}:".encode()).decode()
    async with served(process, token_file=file) as http:

        async def status(path: str, authorization: str | None) -> int:
            headers = {} if authorization is None else {"Authorization": authorization}
            async with http.get(path, headers=headers) as response:
                return response.status

        assert await status("/healthz", None) == 200
        assert await status("/readyz", None) == 200
        for path in ("/", "/metrics", "/api/status", "/api/topics", "/api/log", "/console.js"):
            refused = (None, TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {wrong}")
            for authorization in (*refused, "Basic ÿ", "Bearer ", f"Digest {TOKEN}"):
                assert await status(path, authorization) == 401, (path, authorization)
            for authorization in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
                assert await status(path, authorization) == 200, (path, authorization)


async def test_a_short_token_is_refused_at_the_start(process: Process, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("x" * (TOKEN_BYTES_MIN - 1))
    with pytest.raises(ConfigError, match=f"at least {TOKEN_BYTES_MIN} characters"):
        async with served(process, token_file=file):
            pass


@pytest.mark.parametrize("path", [one.path for one in ENDPOINTS if one.guarded])
async def test_log_and_settings_are_not_for_those_behind_a_proxy_without_the_token(
    process: Process, tmp_path: Path, path: str
) -> None:
    passed_on = {"X-Forwarded-For": "203.0.113.9"}
    async with served(process) as http:
        async with http.get(path, headers=passed_on) as response:
            assert response.status == 403
        async with http.get(path) as response:
            assert response.status == 200
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with (
        served(process, token_file=file) as http,
        http.get(path, headers=passed_on | {"Authorization": f"Bearer {TOKEN}"}) as response,
    ):
        assert response.status == 200


async def test_the_process_shows_no_secret(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/process") as response:
        text = await response.text()
        row = (await response.json())["items"][0]
    assert "hunter2" not in text
    assert any(line.startswith("cluster.bootstrap = ") for line in row["settings"])
    assert row["packages"]["aiohttp"]
    assert row["limits"]["ulimit open files"]
    assert row["memory_plan"]


def test_the_ring_of_log_lines_is_bounded() -> None:
    lines = RecentLines(chars_max=10_000)
    for number in range(1_000):
        text = "x" * (number * 10)
        lines.processor(None, "", {"timestamp": str(number), "event": "begun", "text": text})
        assert all(len(one.line) <= LINE_CHARS_MAX for one in lines.newest_first())
        assert sum(len(one.line) for one in lines.newest_first()) <= 10_000
    assert lines.newest_first()[0].at == "999"


async def test_pages_over_twenty_thousand_partitions_are_made_in_short_steps(
    process: Process,
) -> None:
    tps = [TopicIdPartition(UUID(int=9), "wide", number) for number in range(20_000)]
    process.collector._tps = tps
    rows = rows_of(process)
    await rows.topics(PageQuery())  # the lines are made at the first look
    async with longest_turn() as longest:
        page = await rows.topics(PageQuery())
    assert longest[0] < TURN_MAX_S
    assert [row.partitions for row in page.items] == [20_000]
    page_of = await rows.partitions("wide", PageQuery("19000", 1_000))
    assert (len(page_of.items), page_of.next) == (999, None)


@pytest.mark.parametrize("topics", [1, 20_000])
async def test_twenty_thousand_are_sorted_and_summed_in_short_steps(
    process: Process, topics: int
) -> None:
    process.collector._tps = tps = [
        TopicIdPartition(UUID(int=9 + number % topics), f"t-{number % topics:05}", number // topics)
        for number in range(20_000)
    ]
    tps.sort(key=lambda tp: (tp.topic, tp.partition))
    for tp in tps:
        process.published_conditions.hold(Kind.PARTITION_STOPPED, tp, f"{tp}: it begins again")
    rows = rows_of(process)
    query = PageQuery("300", 100, "-lag_offsets")
    await rows.topics(query)  # the lines are made at the first look
    async with longest_turn() as longest:
        await rows.topics(query)
        await rows.partitions("t-00000", query)
        await rows.timeline_of_topic("t-00000", PageQuery())
        await rows.timeline_of_all(PageQuery())
        status = await process.collector(PartitionQuery(rows_max=20, topics_max=0))
        await process.collector.sample()
    assert longest[0] < TURN_MAX_S
    assert (status.totals.topics, status.totals.faulty, status.topics) == (topics, 20_000, ())


async def test_many_callers_do_not_hold_the_loop(process: Process) -> None:
    accounts = process.storage.accounts
    for number in range(10_050):
        client = Client("10.0.0.1", f"c-{number}", "", f"g-{number % 3_000}")
        accounts.account_of(client).served_bytes = number
    assert len(accounts) == 10_000
    rows = rows_of(process)
    async with longest_turn() as longest:
        pages = await asyncio.gather(
            *(rows.groups(PageQuery()) for _ in range(8)),
            *(rows.readers(PageQuery("", LIMIT_MAX)) for _ in range(8)),
        )
    assert all(one.next for one in pages)
    assert longest[0] < TURN_MAX_S
