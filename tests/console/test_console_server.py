"""The console over real HTTP on a loopback socket, fed by a status of our own."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter as Counts
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace

import aiohttp
import pytest
from loop_turns import loop_turns
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from sample_status import STATUS, STATUS_IN_OUTAGE, condition_rows

from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.console.server import ITEMS_A_STEP, METRICS_A_STEP, SECURITY_HEADERS, ConsoleServer
from fetchproxy.console.status import PartitionQuery, Status
from fetchproxy.errors import ConfigError
from fetchproxy.observability.health import Condition, Kind


class Source:
    def __init__(self) -> None:
        self.status = STATUS

    async def __call__(self, query: PartitionQuery) -> Status:
        return replace(self.status, partitions=self.status.partitions[: query.rows_max])


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def http(source: Source) -> AsyncIterator[aiohttp.ClientSession]:
    registry = CollectorRegistry()
    Counter("things_done", "Things done", registry=registry).inc(3)
    config = ConsoleConfig(listen="127.0.0.1:0", allowed_hosts="Console.Example, other")
    async with (
        ConsoleServer(config, source, registry) as console,
        aiohttp.ClientSession(f"http://{console.address}") as session,
    ):
        yield session


async def test_healthz_lives(http: aiohttp.ClientSession, source: Source) -> None:
    source.status = STATUS_IN_OUTAGE
    async with http.get("/healthz") as response:
        assert (response.status, await response.text()) == (200, "ok\n")


async def test_readyz_says_what_is_missing(http: aiohttp.ClientSession, source: Source) -> None:
    async with http.get("/readyz") as response:
        assert (response.status, await response.json()) == (200, {"ready": True, "missing": []})
    source.status = STATUS_IN_OUTAGE
    async with http.get("/readyz") as response:
        assert response.status == 503
        assert await response.json() == {
            "ready": False,
            "missing": ["gateway listener 127.0.0.1:9193"],
        }


async def test_a_failing_store_does_not_make_it_unready(
    http: aiohttp.ClientSession, source: Source
) -> None:
    source.status = replace(STATUS_IN_OUTAGE, missing=())
    async with http.get("/readyz") as response:
        assert response.status == 200


async def test_refused_credentials_are_shown_and_do_not_make_it_unready(
    http: aiohttp.ClientSession, source: Source
) -> None:
    refused = Condition(Kind.CLUSTER_AUTHENTICATION_REFUSED, "user 'p': refused")
    source.status = replace(STATUS_IN_OUTAGE, missing=(), conditions=condition_rows(refused))
    async with http.get("/readyz") as response:
        assert response.status == 200
        assert (await response.json())["cluster_refusal"] == "user 'p': refused"


async def test_metrics_in_the_text_format(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        assert "things_done_total 3.0" in await response.text()
    async with http.get("/metrics", headers={"Accept": "application/openmetrics-text"}) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await response.text()).endswith("# EOF\n")


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
@pytest.mark.parametrize("count", [0, METRICS_A_STEP - 1, METRICS_A_STEP, 5 * METRICS_A_STEP + 1])
async def test_metrics_are_made_in_steps_and_are_the_same(
    accept: str, count: int, source: Source
) -> None:
    registry = CollectorRegistry()
    looked_at: list[int] = []  # in which turn of the loop

    class Numbered(Collector):
        def __init__(self, number: int) -> None:
            self.number = number

        def collect(self) -> Iterator[Metric]:
            looked_at.append(turns.count)
            yield CounterMetricFamily(f"things_{self.number}", "Some", value=self.number)

    for number in range(count):
        registry.register(Numbered(number))
    encode, _ = choose_encoder(accept)
    config = ConsoleConfig(listen="127.0.0.1:0")
    async with (
        ConsoleServer(config, source, registry) as console,
        aiohttp.ClientSession(f"http://{console.address}") as session,
        loop_turns() as turns,
    ):
        looked_at.clear()

        async def ask() -> bytes:
            async with session.get("/metrics", headers={"Accept": accept}) as response:
                return await response.read()

        together = await asyncio.gather(*(ask() for _ in range(10)))
        if count:
            assert max(Counts(looked_at).values()) <= METRICS_A_STEP
        assert set(together) == {encode(registry)}


async def test_status_is_the_sources_status(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/status") as response:
        assert response.content_type == "application/json"
        assert await response.json() == json.loads(json.dumps(asdict(STATUS)))


async def test_so_many_partitions_as_are_asked_for(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/status?rows_max=2") as response:
        assert [p["partition"] for p in (await response.json())["partitions"]] == [0, 1]
    for wrong in ("-1", "x", "1e3", "9999999", "²"):
        async with http.get("/api/status", params={"rows_max": wrong}) as response:
            assert response.status == 400
            assert wrong in await response.text()


async def test_a_status_of_very_many_is_made_in_pieces(
    http: aiohttp.ClientSession, source: Source
) -> None:
    source.status = replace(STATUS, partitions=STATUS.partitions * 1_000)
    async with loop_turns() as turns, http.get("/api/status") as response:
        assert len((await response.json())["partitions"]) == 4_000
        assert turns.count > 4_000 / ITEMS_A_STEP


async def test_the_page_needs_nothing_from_elsewhere(http: aiohttp.ClientSession) -> None:
    async with http.get("/") as response:
        assert response.content_type == "text/html"
        page = await response.text()
    assert re.findall(r"(?:src|href)=\"(?:https?:)?//", page) == []
    names = re.findall(r"(?:src|href)=\"(\w+\.(?:js|css))\"", page)
    assert len(names) == 6
    for name in names:
        async with http.get(f"/{name}") as response:
            assert response.status == 200
            assert not re.search(r"url\(|@import|innerHTML", await response.text())


async def scripts(http: aiohttp.ClientSession) -> str:
    async with http.get("/") as response:
        names = re.findall(r"src=\"(\w+\.js)\"", await response.text())
    texts = []
    for name in names:
        async with http.get(f"/{name}") as response:
            texts.append(await response.text())
    return "\n".join(texts)


async def test_every_element_the_script_asks_for_is_on_the_page(
    http: aiohttp.ClientSession,
) -> None:
    async with http.get("/") as response:
        ids = set(re.findall(r'id="([\w-]+)"', await response.text()))
    script = await scripts(http)
    ids_in_script = set(re.findall(r'\$\("([\w-]+)"\)', script))
    assert ids_in_script
    assert ids_in_script <= ids


async def test_the_script_reads_only_fields_that_the_status_has(
    http: aiohttp.ClientSession,
) -> None:
    script = await scripts(http)
    for part in ("relay", "cache", "store"):
        fields = set(re.findall(rf"\b{part}\.(\w+)", script))
        assert fields
        assert fields <= set(asdict(STATUS)[part])
    fields = set(re.findall(r"\bremote\.(\w+)", script))
    assert fields <= set(asdict(STATUS)["remote_reads"])
    fields = set(re.findall(r"\bclient\.(\w+)", script))
    assert fields == set(asdict(STATUS)["clients"][0])
    fields = set(re.findall(r"\bp\.(\w+)", script))
    assert fields <= set(asdict(STATUS)["partitions"][0])


@pytest.mark.parametrize("path", ["/", "/api/status", "/no-such-page", "/metrics"])
async def test_security_headers_are_on_every_answer(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        for name, value in SECURITY_HEADERS.items():
            assert response.headers[name] == value


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:1", "127.0.0.1:80", "[::1]:80", "[::1]", "10.1.2.3", "OTHER:99",
     "console.example", f"{socket.gethostname()}:8080"],
)  # fmt: skip
async def test_hosts_that_may(http: aiohttp.ClientSession, host: str) -> None:
    async with http.get("/api/status", headers={"Host": host}) as response:
        assert response.status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "evil:80", "", "1.2.3"])
async def test_hosts_that_may_not(http: aiohttp.ClientSession, host: str) -> None:
    async with http.get("/api/status", headers={"Host": host}) as response:
        assert response.status in (400, 421)  # 400: aiohttp's own, for a host that is none
        assert "orders" not in await response.text()
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_health_check_may_use_any_host(http: aiohttp.ClientSession, path: str) -> None:
    """As that of a load balancer, which knows the machine by another name."""
    async with http.get(path, headers={"Host": "proxy-a.example:8080"}) as response:
        assert response.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_nothing_can_be_changed(http: aiohttp.ClientSession, method: str) -> None:
    async with http.request(method, "/api/status") as response:
        assert response.status == 405


@pytest.mark.parametrize(
    "data", [b"GET /" + b"a" * 100_000, b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
async def test_what_is_no_http_is_not_logged(
    http: aiohttp.ClientSession, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Each such request wrote a traceback into the log."""
    assert http._base_url is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", http._base_url.port)
    writer.write(data + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.read()
    writer.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_taken_port_is_a_clear_error(source: Source) -> None:
    async with ConsoleServer(
        ConsoleConfig(listen="127.0.0.1:0"), source, CollectorRegistry()
    ) as first:
        second = ConsoleConfig(listen=str(first.address))
        with pytest.raises(ConfigError, match=r"console\.listen = 127\.0\.0\.1:\d+: cannot listen"):
            async with ConsoleServer(second, source, CollectorRegistry()):
                pass


async def test_it_stops_listening_at_the_end(source: Source) -> None:
    async with ConsoleServer(
        ConsoleConfig(listen="127.0.0.1:0"), source, CollectorRegistry()
    ) as console:
        address = console.address
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({}, "/api/status", 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, "/api/status", 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, "/metrics", 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, "/", 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, "/api/status", 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, "/", 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, "/api/status", 403),
        ({"Origin": "https://evil.example"}, "/api/status", 403),
        ({"Origin": "null"}, "/api/status", 403),
        ({"Origin": "http://console.example", "Host": "console.example"}, "/api/status", 200),
    ],
)
async def test_other_sites_pages_are_told_nothing(
    http: aiohttp.ClientSession, headers: dict[str, str], path: str, status: int
) -> None:
    async with http.get(path, headers=headers) as response:
        assert response.status == status
        assert status == 200 or "orders" not in await response.text()
