"""The console's HTTP side: health, metrics, status as JSON, and the page that shows it.

Read-only: no request changes anything. It must never slow the relay, so every answer is made from
what the process already knows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib import resources
from itertools import islice
from types import TracebackType
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from fetchproxy.config.addresses import HostPort, is_loopback, parse_host_port
from fetchproxy.config.sections import ConsoleConfig
from fetchproxy.console.guard import add_security_headers, allowed_names, host_guard
from fetchproxy.console.limited_connections import LimitedConnections
from fetchproxy.console.status import NO_PARTITIONS, Asked, Status, StatusSource
from fetchproxy.errors import ConfigError
from fetchproxy.many_items import each_of

log = structlog.get_logger(__name__)

METRICS_A_STEP = 8
# One takes some 40 µs.
ITEMS_A_STEP = 50
ROWS_DIGITS_MAX = 6

_SHUTDOWN_SECONDS_MAX = 1.0
_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
}


def build_console(
    listen: str, allowed_hosts: str, source: StatusSource, registry: CollectorRegistry
) -> web.Application:
    app = web.Application(middlewares=[host_guard(allowed_names(listen, allowed_hosts))])
    app.on_response_prepare.append(add_security_headers)
    answers = _Answers(source, registry)
    app.router.add_get("/healthz", answers.healthz)
    app.router.add_get("/readyz", answers.readyz)
    app.router.add_get("/metrics", answers.metrics)
    app.router.add_get("/api/status", answers.status)
    static = resources.files("fetchproxy.console") / "static"
    for path, (name, content_type) in _PAGE_FILES.items():
        content = (static / name).read_text(encoding="utf-8")
        app.router.add_get(path, _PageFile(content, content_type).answer)
    return app


class _PageFile:
    """One file of the page, held in memory; there are three."""

    def __init__(self, content: str, content_type: str) -> None:
        self._content = content
        self._content_type = content_type

    async def answer(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._content, content_type=self._content_type)


class _Answers:
    def __init__(self, source: StatusSource, registry: CollectorRegistry) -> None:
        self._source = source
        self._registry = registry

    async def healthz(self, _request: web.Request) -> web.Response:
        """The loop turns, so the process lives.

        Says nothing of store or brokers on purpose: a restart would mend neither.
        """
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """The listeners are open, and a broker answers.

        An outage of the store does not count, nor that the brokers refuse the proxy's own
        credentials (said here all the same): the tail works without.
        """
        status = await self._source(NO_PARTITIONS)
        missing = status.missing
        answer: dict[str, object] = {"ready": not missing, "missing": list(missing)}
        if status.cluster_refusal is not None:
            answer["cluster_refusal"] = status.cluster_refusal
        return web.json_response(answer, status=503 if missing else 200)

    async def metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await _in_steps(self._registry, encode)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def status(self, request: web.Request) -> web.Response:
        """`?rows_max=200&name_part=orders`: so many partitions at most, with that in their name."""
        rows = request.query.get("rows_max", "")
        if rows and not (rows.isascii() and rows.isdigit() and len(rows) <= ROWS_DIGITS_MAX):
            return web.Response(status=400, text=f"rows_max is no number of rows: {rows[:20]!r}\n")
        asked = Asked(int(rows) if rows else None, request.query.get("name_part", ""))
        text = await _as_json(await self._source(asked))
        return web.Response(body=text, content_type="application/json", charset="utf-8")


async def _as_json(status: Status) -> bytes:
    """In pieces, as there may be very many partitions, and a concern of each."""
    parts: list[str] = []
    for field in fields(status):
        value = getattr(status, field.name)
        if not isinstance(value, tuple):
            text = _json(value)
        else:
            items = [_json(item) async for item in each_of(value, ITEMS_A_STEP)]
            text = f"[{','.join(items)}]"
        parts.append(f'"{field.name}":{text}')
    return f"{{{','.join(parts)}}}".encode()


def _json(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Some:
    """A part of what a registry has, as encoders ask for it."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


async def _in_steps(registry: CollectorRegistry, encode: Callable[[Any], bytes]) -> bytes:
    """As `encode(registry)`: all metrics at once take 6 ms, for which the tail would wait."""
    end = encode(_Some(()))  # of the whole text, in some formats
    metrics = iter(registry.collect())
    texts = []
    while some := list(islice(metrics, METRICS_A_STEP)):
        texts.append(encode(_Some(some)).removesuffix(end))
        await asyncio.sleep(0)
    return b"".join([*texts, end])


class ConsoleServer:
    """`async with ConsoleServer(...)`: listens inside, `address` is where. Raises ConfigError."""

    def __init__(
        self, config: ConsoleConfig, source: StatusSource, registry: CollectorRegistry
    ) -> None:
        if config.listen is None:
            raise ConfigError("console.listen is not set")
        self._listen = config.listen
        self._runner = web.AppRunner(
            build_console(config.listen, config.allowed_hosts, source, registry),
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS_MAX,
            keepalive_timeout=0,  # one request a connection, so that time limits are of that one
        )
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> HostPort:
        assert self._server is not None  # it listens
        host, port = self._server.sockets[0].getsockname()[:2]
        return HostPort(host, port)

    async def __aenter__(self) -> ConsoleServer:
        address = parse_host_port(self._listen)
        await self._runner.setup()
        try:
            await self._listen_at(address)
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"console.listen = {self._listen}: cannot listen there: {error.strerror}"
            ) from error
        log.info("console_listening", address=f"http://{self.address}")
        if not is_loopback(address.host):
            log.warning("plaintext_beyond_loopback", listener="console", host=address.host)
        return self

    async def _listen_at(self, address: HostPort) -> None:
        assert self._runner.server is not None  # it is set up
        connections = LimitedConnections(self._runner.server)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(connections, address.host, address.port)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
