"""Several things are wrong at once: page JSON, readiness, metrics and log name the same ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiohttp
from planted_archive import TP, PlantedArchive, batch
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from fetchproxy.app import Limits, Parts
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import (
    ClusterConfig,
    Config,
    ConsoleConfig,
    StoreConfig,
)
from fetchproxy.console.collect import StatusCollector, StatusSources
from fetchproxy.console.server import ConsoleServer
from fetchproxy.errors import StorageDenied
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.observability.health import MEANINGS, Health, Kind, Level, publish_gauges
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.storage.store_health import StoreOperation
from fetchproxy.writing.own_archive import OwnArchive
from fetchproxy.writing.published_conditions import PublishedConditions

NOBODY = "127.0.0.1:1"
CONFIG = Config(
    cluster=ClusterConfig(bootstrap=NOBODY, request_max_ms=200),
    store=StoreConfig(url="s3://bucket"),
    console=ConsoleConfig(listen="127.0.0.1:0"),
)


@asynccontextmanager
async def console(planted: PlantedArchive) -> AsyncIterator[tuple[Parts, aiohttp.ClientSession]]:
    """Of a `serve` that has just started: its parts, and somebody who asks it."""
    async with (
        Cluster(CONFIG.cluster) as cluster,
        StoreBackedRemoteLogMetadataManager(planted.storage, CONFIG.metadata) as rlmm,
    ):
        own_archive = OwnArchive(CONFIG, planted.storage, rlmm, cluster, uuid4, archives=False)
        rng = random.Random(1)
        parts = Parts(
            CONFIG,
            Limits(),
            planted.storage,
            rlmm,
            cluster,
            own_archive,
            Health(),
            rng,
            serves=True,
        )
        published_conditions = PublishedConditions(planted.storage.objects)
        published_conditions.hold(Kind.PARTITION_STOPPED, TP, f"{TP}: it begins again")
        around = StatusSources(
            parts.mode, parts.health, published_conditions=lambda: published_conditions
        )
        collector = StatusCollector(CONFIG, planted.storage, rlmm, cluster, around)
        await parts.brokers.ask_brokers()
        await collector.update()
        fail(parts)
        async with (
            ConsoleServer(CONFIG.console, collector, REGISTRY) as server,
            aiohttp.ClientSession(f"http://{server.address}") as session,
        ):
            await collector.update()
            publish_gauges(parts.health.all(asyncio.get_running_loop().time()))
            yield parts, session


def fail(parts: Parts) -> None:
    now = asyncio.get_running_loop().time()
    reads = parts.storage.health[StoreOperation.READ]
    reads.succeeded(now - 90)
    reads.failed(now, now - 60, StorageDenied("token=hunter2 is refused"))


async def archive_with_a_gap() -> PlantedArchive:
    planted = PlantedArchive()
    for base in (0, 20):
        await planted.add([batch(base)])
    await planted.record_gap(10, 19)
    return planted


async def fetched(http: aiohttp.ClientSession, path: str) -> tuple[int, Any]:
    async with http.get(path) as response:
        return response.status, await response.json()


async def counted(http: aiohttp.ClientSession) -> dict[tuple[str, str], int]:
    async with http.get("/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    return {
        (sample.labels["kind"], sample.labels["level"]): int(sample.value)
        for family in families
        if family.name == "fetchproxy_conditions"
        for sample in family.samples
        if sample.value
    }


async def test_all_places_name_the_same_conditions() -> None:
    with capture_logs() as logs:
        async with console(await archive_with_a_gap()) as (parts, http):
            _, status = await fetched(http, "/api/status?rows_max=200")
            code, ready = await fetched(http, "/readyz")
            metrics = await counted(http)
            own_words = parts.health.conditions(asyncio.get_running_loop().time())
    conditions = status["conditions"]
    kinds = [one["kind"] for one in conditions]
    assert kinds == [
        Kind.BROKERS_AWAY,
        Kind.STORE_FAILING,
        Kind.PARTITION_STOPPED,
        Kind.GATEWAY_NOT_LISTENING,
        Kind.ARCHIVE_GAP,
    ], "the worst first"
    assert [(one["kind"], one["level"]) for one in conditions] == [
        (k, MEANINGS[k].level) for k in kinds
    ]
    # The process itself, metrics, counts and API.
    assert [one.kind for one in own_words] == kinds
    assert metrics == {(one["kind"], one["level"]): 1 for one in conditions}
    assert status["condition_counts"] == dict.fromkeys(kinds, 1)
    # Readiness.
    blocking = [one["missing"] for one in conditions if one["missing"]]
    assert (code, ready) == (503, {"ready": False, "missing": blocking})
    assert status["missing"] == blocking
    assert blocking == ["brokers: none answers", f"gateway listener {CONFIG.gateway.listen}"]
    # What waits for somebody, with what to do.
    waiting = [one for one in conditions if one["waits"]]
    assert status["headlines"] == [one["what"] for one in waiting]
    assert [one["kind"] for one in waiting] == kinds[:3]
    assert all(one["remedy"] and "`" not in one["remedy"] for one in waiting)
    # Since when: the outage of the store began before anybody asked.
    assert (
        60 <= next(one["since_s"] for one in conditions if one["kind"] == Kind.STORE_FAILING) < 90
    )
    # The log has each that begins here, once, by its name; a gap is logged by who finds it.
    logged = {e["event"]: e for e in logs if e["event"] in kinds}
    assert logged.keys() == set(kinds) - {Kind.GATEWAY_NOT_LISTENING, Kind.ARCHIVE_GAP}
    assert [e["event"] for e in logs].count(Kind.BROKERS_AWAY) == 1
    assert {e["log_level"] for e in logged.values()} == {Level.ERROR}
    assert logged[Kind.STORE_FAILING]["operation"] == "read"
    assert logged[Kind.PARTITION_STOPPED]["topic"] == TP.topic


async def test_what_a_failing_store_means_is_in_its_sentence() -> None:
    async with console(await archive_with_a_gap()) as (_, http):
        _, status = await fetched(http, "/api/status")
    [sentence] = [one["what"] for one in status["conditions"] if one["kind"] == Kind.STORE_FAILING]
    assert sentence == (
        "The store's reads have been failing: StorageDenied: token=••• is refused. Reads from "
        "the brokers continue; readers of the archive wait and keep their position."
    )


async def test_what_is_about_a_key_says_nothing_of_the_rest_of_the_archive() -> None:
    why = "the key ring has no key with the id k1"
    async with console(await archive_with_a_gap()) as (parts, http):
        parts.storage.health.locked(uuid4(), "k1", why)
        _, status = await fetched(http, "/api/status")
    [locked] = [one["what"] for one in status["conditions"] if one["kind"] == Kind.SEGMENTS_LOCKED]
    assert locked == f"An encrypted segment cannot be read: {why}"


async def test_what_is_over_is_over_everywhere() -> None:
    with capture_logs() as logs:
        async with console(await archive_with_a_gap()) as (parts, http):
            now = asyncio.get_running_loop().time()
            parts.storage.health[StoreOperation.READ].succeeded(now)
            _, status = await fetched(http, "/api/status")
    assert Kind.STORE_FAILING not in status["condition_counts"]
    [over] = [e for e in logs if e["event"] == f"{Kind.STORE_FAILING}_no_more"]
    assert (over["operation"], over["log_level"]) == ("read", "info")
    assert over["lasted_s"] >= 60
