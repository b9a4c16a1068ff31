"""The page in a real Chromium: at first sight an operator can say what is wrong.

The collector, its server and the archive (in memory) are real. Conditions are those that the parts
report; e2e/test_outages_named causes some of them for real. `PICTURES_OF_THE_PAGE=folder` keeps
pictures.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from segment_values import segment_of
from test_console_collect import CONFIG, Process

from fetchproxy.brokers.broker_watch import BrokersStatus
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.console.collect import ConsoleLimits, StatusCollector, StatusSources
from fetchproxy.console.process import ProcessFacts
from fetchproxy.console.rows import Rows
from fetchproxy.console.server import ConsoleServer
from fetchproxy.errors import StorageDenied
from fetchproxy.metadata.archiver_positions import RecoveryPoint
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.health import Condition, Kind, of_topic
from fetchproxy.segments.description import encode_archive_gap, encode_segment
from fetchproxy.serving.consumer_pacing import ConsumerPaces
from fetchproxy.storage.archive_identity import ArchiveIdentity
from fetchproxy.storage.reader_accounts import Client
from fetchproxy.storage.store_health import StoreOperation
from fetchproxy.writing.leadership import LeadershipState
from lab.browser import Browser, find_browser

PICTURES = os.environ.get("PICTURES_OF_THE_PAGE")
NOW_MS = 1_790_000_000_000  # 2026-09-21 14:13 UTC
HOUR_MS = 3_600_000
ORDERS = [TopicIdPartition(UUID(int=1), "orders", number) for number in range(3)]
ALWAYS = ConsoleLimits(archive_refresh_interval_ms=0)  # each look lists the whole archive
CALM = "✔ All is well"


class Scene:
    """A process whose page a browser shows; tests change what is wrong with it."""

    def __init__(self, process: Process, page: Browser, cluster: Cluster) -> None:
        self.process, self.page = process, page
        self.health = process.health
        self.published = process.published_conditions
        self.brokers = BrokersStatus(known=3)
        self.refused: dict[str, str] = {}
        self.recovery_point: RecoveryPoint | None = None
        self.consumer_paces = ConsumerPaces(asyncio.get_running_loop().time)
        around = StatusSources(
            mode="serve", health=self.health, brokers=lambda: self.brokers,
            archiver=lambda: (LeadershipState("group", "stable", members=2), (3, 1), self.refused),
            published_conditions=lambda: self.published,
            consumer_paces=lambda: self.consumer_paces, clock_ms=lambda: NOW_MS,
            recovery_point=lambda: self.recovery_point,
        )  # fmt: skip
        self.health.watch(process.storage.health.conditions)
        self.collector = StatusCollector(
            CONFIG, process.storage, process.rlmm, cluster, around, process.events, limits=ALWAYS
        )
        facts = ProcessFacts(CONFIG, process.storage.objects, lambda: NOW_MS)
        self.rows = Rows(self.collector, process.storage.accounts, facts, process.lines)

    async def archive(self, tp: TopicIdPartition, start: int, end: int, hours_ago: float) -> None:
        at_ms = NOW_MS - round(hours_ago * HOUR_MS)
        number = tp.topic_id.int * 10**6 + tp.partition * 10**3 + start + 1
        made = segment_of(
            tp, number, start, end, segment_leader_epochs=(), max_timestamp_ms=at_ms,
            segment_size_bytes=64 * 1024 * 1024,
        )  # fmt: skip
        await self.put(made)

    async def put(self, made: RemoteLogSegmentMetadata) -> None:
        await self.process.storage.objects.put_segment_metadata(made, encode_segment(made))

    async def js(self, expression: str) -> Any:
        return await asyncio.to_thread(self.page.evaluate, expression)

    async def text(self, selector: str = "main") -> str:
        return str(await asyncio.to_thread(self.page.text, selector))

    async def sees(self, selector: str, *words: str) -> None:
        """Waits for the words."""
        while True:
            text = await self.text(selector)
            if all(word in text for word in words):
                return
            await asyncio.sleep(0.1)

    async def picture(self, name: str) -> None:
        if PICTURES:
            await asyncio.to_thread(self.page.screenshot, Path(PICTURES) / f"{name}.png")

    async def headline(self, *words: str) -> None:
        await self.sees("#headline", *words)
        box = "document.getElementById('headline').getBoundingClientRect()"
        assert await self.js(f"{box}.top >= 0 && {box}.bottom < innerHeight / 3"), "at first sight"


@pytest.fixture(scope="module")
def browser(find_part: Any) -> Any:
    find_part("browser", find_browser)
    with Browser() as page:
        yield page


@pytest.fixture
async def scene(browser: Browser) -> AsyncIterator[Scene]:
    async with Process() as process, Cluster(CONFIG.cluster) as cluster:
        await process.storage.identity.state(ArchiveIdentity(UUID(int=5), None, "store"))
        scene = Scene(process, browser, cluster)
        for tp in ORDERS:
            for number in range(12):
                await scene.archive(tp, number * 100, number * 100 + 99, 24.0 * (12 - number))
        await scene.collector.update()
        config = ConsoleConfig(listen="127.0.0.1:0")
        server = ConsoleServer(config, scene.collector, CollectorRegistry(), rows=scene.rows)
        async with server:
            await asyncio.to_thread(browser.open, f"http://{server.address}/")
            yield scene


async def test_a_calm_page_says_that_all_is_well(scene: Scene) -> None:
    await scene.headline(CALM, "The store responds", "3 of 3 brokers respond")
    assert await scene.js("document.querySelectorAll('.banner.bad:not([hidden])').length") == 0
    await scene.picture("calm")


async def test_the_store_is_down_and_comes_back(scene: Scene) -> None:
    now = asyncio.get_running_loop().time()
    for operation in (StoreOperation.READ, StoreOperation.WRITE):
        scene.process.storage.health[operation].succeeded(now - 90)
        scene.process.storage.health[operation].failed(now, now - 60, StorageDenied("key refused"))
    await scene.headline(
        "The store is failing",
        "Nothing is archived",
        "wait and keep their position",
        "repair the store",
    )
    await scene.sees("#tiles", "fails")
    await scene.picture("store-down")
    for operation in (StoreOperation.READ, StoreOperation.WRITE):
        scene.process.storage.health[operation].succeeded(asyncio.get_running_loop().time())
    await scene.headline(CALM)


async def test_the_brokers_are_down_and_come_back(scene: Scene) -> None:
    away = ("10.0.0.1:9092", "10.0.0.2:9092", "10.0.0.3:9092")
    scene.brokers = BrokersStatus(known=3, away=away)
    what = (
        "No broker answers: clients are not served and nothing is archived until one does "
        "(connection refused)"
    )
    scene.health.report(Condition(Kind.BROKERS_AWAY, what, missing="brokers"))
    await scene.headline(
        "No broker responds", "No client is served", "Until a broker responds", "start the brokers"
    )
    await scene.sees("main", "Not ready yet: brokers", "0 of 3")
    await scene.picture("brokers-down")
    scene.brokers = BrokersStatus(known=3)
    scene.health.clear(Kind.BROKERS_AWAY)
    await scene.headline(CALM)


async def test_the_margin_runs_out(scene: Scene) -> None:
    until = asyncio.get_running_loop().time() + 2 * 3600 + 600
    what = (
        "orders-1: the records from offset 1200 on are not archived and have used up 75 % of the "
        "brokers' retention; at 100 % the brokers delete them; cause: copies are slower than "
        "producers"
    )
    scene.published.hold(Kind.ARCHIVE_MARGIN_SMALL, ORDERS[1], what, until=until)
    await scene.headline(
        "Time is running out: orders-1", "lost from about 16:20 UTC (in 2 h", "cause:"
    )
    await scene.sees("#tiles", "2 h")
    await scene.sees("#partitions tr:first-child", "orders-1")
    await scene.picture("margin")
    scene.published.hold(
        Kind.UNARCHIVED_RECORDS_DELETED, ORDERS[1], "orders-1: records from 1200 on", (1200, 1300)
    )
    await scene.headline("Records are being lost")
    await scene.picture("loss")
    scene.published.release(Kind.ARCHIVE_MARGIN_SMALL, ORDERS[1])
    scene.published.release(Kind.UNARCHIVED_RECORDS_DELETED, ORDERS[1])
    await scene.headline(CALM)


async def test_an_event_has_its_name_in_the_log(scene: Scene) -> None:
    scene.process.events.note("segment_copied", topic="orders")
    await scene.sees("#events", "segment_copied", "topic=orders")


async def test_the_whole_archive_is_shown_by_date(scene: Scene) -> None:
    await scene.sees("#dates-part", "By date, all topics", "archived since")
    assert await scene.js("document.querySelectorAll('#dates .archived').length") == 1
    await scene.js("location.hash = '#topic=orders'")
    await scene.sees("#place-part", "Topic orders")


async def test_a_gap_is_told_with_its_date(scene: Scene) -> None:
    await scene.archive(ORDERS[2], 1500, 1599, 2)
    gap = encode_archive_gap(ORDERS[2], 1200, 1499)
    await scene.process.storage.objects.put_archive_gap(ORDERS[2], 1200, 1499, gap)
    await scene.collector.update()
    await scene.headline("records were lost earlier", "300 offsets of 1 partition")
    await scene.sees("#problems", "Records of orders-2 were lost", "offsets 1200 to 1499")
    await scene.picture("gap-overview")
    await scene.sees("#tiles", "300")
    await scene.js("location.hash = '#topic=orders&partition=2'")
    await scene.sees("#place-part", "orders-2", "lost: about 09-20")
    assert await scene.js("document.querySelectorAll('#timeline .gap').length") == 1
    await scene.sees("#segments", "1\u202f500 … 1\u202f599")
    await scene.picture("gap")


async def test_what_a_lost_cluster_would_take_along_is_a_tile(scene: Scene) -> None:
    title, records = "If the cluster died now", "8\u202f204 records would be lost"
    await scene.sees("#tiles", "Not archived yet")
    assert title not in await scene.text("#tiles")
    scene.recovery_point = RecoveryPoint(2_100, 8_204)
    await scene.sees("#tiles", f"{title}\n2.1 s\nand {records}")
    scene.recovery_point = None
    await scene.sees("#tiles", "respond\nClient connections")


async def test_a_refused_topic_is_named_with_the_reason(scene: Scene) -> None:
    reason = "its cleanup.policy is compact"
    scene.refused = {"keys": reason}
    scene.published.health.report(of_topic(Kind.TOPIC_REFUSED, "keys", f"keys: {reason}"))
    await scene.headline("Not archived: keys", reason, "exclude it")
    await scene.sees("#topics tr:first-child", "keys", f"not archived: {reason}")
    await scene.picture("refused")
    scene.refused = {}
    scene.published.health.clear(Kind.TOPIC_REFUSED, "keys")
    await scene.headline(CALM)


async def test_from_a_topic_to_its_segments(scene: Scene) -> None:
    await scene.sees("#topics", "orders")
    await scene.js("document.querySelector('#topics a').click()")
    await scene.sees("#place-part", "Topic orders", "archived since")
    await scene.js("document.querySelectorAll('#partitions a')[2].click()")
    await scene.sees("#place-title", "orders-2")
    await scene.sees("#segments", "0 … 99")
    await scene.picture("partition")
    await scene.js("history.back()")
    await scene.sees("#place-title", "Topic orders")
    await scene.js("location.hash = '#topic=gone'")
    await scene.sees("#place-title", "There is no topic gone here")


async def test_who_reads_what_from_which_tier(scene: Scene) -> None:
    orders = (ORDERS[0].topic_id.bytes, 0)
    reader = scene.consumer_paces.reader(("10.0.0.7", "replay"), 1, {}, "kafka-python", paced=False)
    account = scene.process.storage.accounts.account_of(
        Client("10.0.0.7", "replay", "eve", "nightly")
    )
    done = asyncio.Event()

    async def read() -> None:
        offset = 0
        while not done.is_set():
            offset += 100
            reader.responded(100_000)
            reader.fetch_wait_s({orders: (0).to_bytes(4) + offset.to_bytes(8)}, 0)
            account.served_bytes += 100_000
            account.throttle_s += 0.05
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        await scene.sees(
            "#clients", "replay", "nightly", "eve", "orders (1 partition)", "archive", "%"
        )
        await scene.sees("#groups", "nightly")
        await scene.picture("readers")
        done.set()
    reader.close()


async def test_charts_show_the_last_hours(scene: Scene) -> None:
    for minute in range(90):
        scene.process.storage.accounts.others.served_bytes += minute * 10**6
        await scene.collector.sample()
        last = scene.collector.history._samples[-1]
        object.__setattr__(last, "at_ms", NOW_MS - (90 - minute) * 60_000)
    await scene.headline(CALM)
    await scene.js("pollCharts()")
    await scene.sees("#charts", "History to clients")
    assert await scene.js("document.querySelectorAll('#charts polyline').length") == 12
    await scene.picture("charts")


async def test_names_from_outside_are_text(scene: Scene) -> None:
    name = "<img src=x onerror=document.title=1>"
    scene.refused = {name: name}
    scene.published.health.report(of_topic(Kind.TOPIC_REFUSED, name, name))
    reader = scene.consumer_paces.reader((name, name), 1, {}, name, paced=False)
    await scene.sees("#headline", name)
    await scene.sees("#topics", name)
    await scene.sees("#clients", name)
    assert await scene.js("document.querySelectorAll('img').length") == 0
    reader.close()


TOPICS, PARTITIONS = 200, 100


@pytest.mark.slow
async def test_with_20_000_partitions_what_is_wrong_comes_first(scene: Scene) -> None:
    for topic in range(TOPICS):
        for partition in range(PARTITIONS):
            tp = TopicIdPartition(UUID(int=100 + topic), f"events-{topic:03}", partition)
            await scene.archive(tp, 0, 99, 24)
    await scene.collector.update()
    wrong = TopicIdPartition(UUID(int=277), "events-177", 42)
    scene.published.hold(Kind.PARTITION_STOPPED, wrong, "events-177-42: its log begins again")
    await scene.headline("Archiving has stopped for events-177-42")
    await scene.sees("#topics tr:first-child", "events-177")
    await scene.sees("#partitions tr:first-child", "events-177-42")
    await scene.picture("20000")
    begun = time.monotonic()
    await scene.js("location.hash = '#topic=events-177'")
    await scene.sees("#partitions tr:first-child", "events-177-42")
    await scene.sees("#place-part", "archived since")
    print(f"a topic of 20,000 partitions opens in {time.monotonic() - begun:.1f} s")
    await scene.js("location.hash = ''")
    await scene.js("{ const f = document.getElementById('filter'); f.value = 'events-03';"
                   " f.dispatchEvent(new Event('input')); }")  # fmt: skip
    await scene.sees("#topics tr:first-child", "events-030")
    assert await scene.js("document.querySelectorAll('#topics tr').length") == 10
    assert await scene.js("document.querySelectorAll('*').length") < 2_000
