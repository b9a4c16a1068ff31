"""The console's HTTP side: health, metrics, status as JSON, and the page that shows it.

DNS rebinding makes the name of a foreign page point at this machine. To prevent it, the Host header
must be an IP address, a loopback name, this machine's name, the listener's own host or one of
`console.allowed_hosts`. Health checks may use any name. The console refuses requests that a browser
makes for another site's page, except for a link that the user follows to the console's page.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from importlib import resources
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any, Self

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from fetchproxy.config.reloading import Reload
from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.config.values import (
    HostPort,
    harmless,
    is_loopback,
    parse_host_port,
    secret_from,
)
from fetchproxy.console.api import ENDPOINTS, Endpoint, openapi
from fetchproxy.console.archived_records import (
    ArchivedRecords,
    BadQuery,
    NothingThere,
    parse_record_query,
)
from fetchproxy.console.drill import add_drill
from fetchproxy.console.limited_connections import LimitedConnection, OpenConnections
from fetchproxy.console.rows import BadPage, NotThere, Page, Rows, page_query
from fetchproxy.console.status import NO_PARTITIONS, PartitionQuery, Status, StatusSource
from fetchproxy.errors import ConfigError, FetchProxyError
from fetchproxy.observability.health import Kind
from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.runtime.drills import Drill

log = structlog.get_logger(__name__)

# Health probes have no token.
OPEN_PATHS = frozenset(("/healthz", "/readyz"))
TOKEN_BYTES_MIN = 16
_OPENAPI = json.dumps(openapi(), separators=(",", ":"))
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
METRICS_A_STEP = 8
# One metric takes 4 ms to sum up over 10,000 partitions. Steps end after this, too.
STEP_S = 0.005
# An item takes about 40 µs.
ITEMS_A_STEP = 50
ROWS_DIGITS_MAX = 6
_SHUTDOWN_SECONDS_MAX = 1.0
_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/topics.js": ("topics.js", "text/javascript"),
    "/readers.js": ("readers.js", "text/javascript"),
    "/records.js": ("records.js", "text/javascript"),
}
_http_log = logging.getLogger("fetchproxy.console.http")


def host_allowed(host_header: str, names: frozenset[str]) -> bool:
    """`host_header` as sent, with or without a port; `names` in lower case."""
    host = host_header.strip().lower()
    try:
        host = parse_host_port(host).host
    except ValueError:
        host = host.removeprefix("[").removesuffix("]")
    if host in names:
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True  # an address needs no DNS, so nothing was rebound


def allowed_names(listen: str, further: str) -> frozenset[str]:
    """This machine's name, and those in `console.listen` and the comma-separated
    `console.allowed_hosts`.
    """
    machine = socket.gethostname().lower()
    names = {"localhost", machine, machine.partition(".")[0], parse_host_port(listen).host.lower()}
    names.update(name.strip().lower() for name in further.split(",") if name.strip())
    return frozenset(names)


def is_cross_site(request: web.Request) -> bool:
    """Judges by headers that only browsers send (Fetch Metadata, Origin)."""
    headers = request.headers
    origin = headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != headers.get("Host"):
        return True
    if headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none"):
        return False
    return headers.get("Sec-Fetch-Mode") != "navigate" or request.path != "/"


def host_guard(names: Callable[[], frozenset[str]]) -> Middleware:
    """Answers 421 to a Host header that `host_allowed` refuses, except at `OPEN_PATHS`, and 403 to
    another site's page.
    """

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        if request.path not in OPEN_PATHS and not host_allowed(host, names()):
            return web.Response(
                status=421,
                text="The console does not know this host name: add it to console.allowed_hosts, "
                "or use an IP address.\n",
            )
        if is_cross_site(request):
            return web.Response(status=403, text="The console answers only its own pages.\n")
        return await handler(request)

    return guard


def token_of(config: ConsoleConfig) -> bytes | None:
    """The token of `console.token_file`. Raises ConfigError."""
    if config.token_file is None:
        return None
    token = (secret_from(config.token_file, "console.token_file") or "").strip().encode()
    if len(token) < TOKEN_BYTES_MIN:
        raise ConfigError(
            f"the file of console.token_file: a token has at least {TOKEN_BYTES_MIN} characters; "
            "make one with `openssl rand -hex 32`"
        )
    return token


def has_token(authorization: str, token: bytes) -> bool:
    """Whether a request's Authorization header has the token: as bearer, or as any user's password.
    It takes the same time for each wrong token.
    """
    scheme, _, value = authorization.partition(" ")
    token_bytes = value.strip().encode(errors="replace")
    if scheme.lower() == "basic":
        try:
            token_bytes = base64.b64decode(token_bytes, validate=True).partition(b":")[2]
        except ValueError:
            token_bytes = b""
    elif scheme.lower() != "bearer":
        token_bytes = b""
    return hmac.compare_digest(token_bytes, token)


def token_guard(token_now: Callable[[], bytes | None]) -> Middleware:
    """Answers 401 to all but `OPEN_PATHS` without the token. None: no token is needed."""

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        token = token_now()
        is_open = token is None or request.path in OPEN_PATHS
        if token is None or is_open or has_token(request.headers.get("Authorization", ""), token):
            return await handler(request)
        return web.Response(
            status=401,
            text="The token of console.token_file is missing or wrong.\n",
            headers={"WWW-Authenticate": 'Basic realm="fetchproxy", charset="UTF-8"'},
        )

    return guard


def is_of_this_machine(request: web.Request) -> bool:
    """False also for what a proxy on this machine passes on for others, as far as it says so."""
    is_forwarded = any(name in request.headers for name in ("Forwarded", "X-Forwarded-For", "Via"))
    return is_loopback(request.remote or "") and not is_forwarded


@web.middleware
async def changes_are_whole(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """A page ends with its caller. What changes something does not: a drill begins in all workers
    or in none.
    """
    if request.method in ("GET", "HEAD"):
        return await handler(request)
    return await asyncio.shield(handler(request))


async def add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """For aiohttp's `on_response_prepare`, so that errors and refusals also get the headers."""
    response.headers.update(SECURITY_HEADERS)


# Only a drill changes anything. The console must never slow the relay, so it makes every response
# from what the process already knows.


class _NotOfClients(logging.Filter):
    """Leaves out what aiohttp says of requests that are no HTTP: any client may send them."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


_http_log.addFilter(_NotOfClients())


async def _as_json(status: Status | Page) -> bytes:
    """Encodes in steps, as there may be very many partitions and a condition for each."""
    parts: list[str] = []
    for field in fields(status):
        value = getattr(status, field.name)
        if not isinstance(value, tuple):
            text = _json(value)
        else:
            items = [_json(item) async for item in cooperative(value, ITEMS_A_STEP)]
            text = f"[{','.join(items)}]"
        parts.append(f'"{field.name}":{text}')
    return f"{{{','.join(parts)}}}".encode()


def _json(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def _in_steps(
    registry: CollectorRegistry, encode: Callable[[Any], bytes], turn: asyncio.Lock
) -> bytes:
    """As `encode(registry)`, in steps: all metrics at once would delay the relay by 6 ms. Whoever
    has the `turn` makes one step in a turn of the loop: 64 first steps together took 90 ms.
    """

    def encoded(metrics: list[Metric]) -> bytes:
        return encode(SimpleNamespace(collect=lambda: metrics))

    end = encoded([])  # the end of the whole text, in some formats
    metrics = iter(registry.collect())
    texts: list[bytes] = []
    while True:
        async with turn:
            if not (batch := _next_of(metrics)):
                return b"".join([*texts, end])
            texts.append(encoded(batch).removesuffix(end))
            await asyncio.sleep(0)


def _next_of(metrics: Iterator[Metric]) -> list[Metric]:
    clock = asyncio.get_running_loop().time
    batch: list[Metric] = []
    until = clock() + STEP_S
    for metric in metrics:
        batch.append(metric)
        if len(batch) == METRICS_A_STEP or clock() >= until:
            break
    return batch


def refused_rows(request: web.Request) -> web.Response | None:
    """The response to a `rows_max` or `topics_max` that is no number."""
    for name in ("rows_max", "topics_max"):
        rows = request.query.get(name, "")
        if rows and not (rows.isascii() and rows.isdigit() and len(rows) <= ROWS_DIGITS_MAX):
            return web.Response(status=400, text=f"{name} is not a row count: {rows[:20]!r}\n")
    return None


class HttpConsole(ABC):
    """The console's HTTP server. `async with` it: it listens at `address`. Raises ConfigError."""

    def __init__(self, config: ConsoleConfig) -> None:
        if config.listen is None:
            raise ConfigError("console.listen is not set")
        self._config, self._listen = config, config.listen
        self._server: asyncio.Server | None = None
        self.token = token_of(config)
        guards = [
            changes_are_whole,
            host_guard(self._names),
            token_guard(lambda: self.token),
        ]
        self._app = app = web.Application(middlewares=guards)
        app.on_response_prepare.append(add_security_headers)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/api/status", self._status)
        app.router.add_get("/api/records", self._records)
        app.router.add_get("/api/openapi.json", _description)
        static = resources.files("fetchproxy.console") / "static"
        for path, (name, content_type) in _PAGE_FILES.items():
            content = (static / name).read_text(encoding="utf-8")
            app.router.add_get(path, partial(_page_file, content, content_type))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_http_log,
            shutdown_timeout=_SHUTDOWN_SECONDS_MAX,
            keepalive_timeout=0,  # one request a connection, so that time limits apply to it
            # No body reaches it (LimitedConnection): it must not wait for one.
            lingering_time=0,
            auto_decompress=False,
            # Else work for clients that ask and go would pile up without a limit.
            handler_cancellation=True,
        )

    @property
    def address(self) -> HostPort:
        assert self._server is not None  # it listens
        host, port = self._server.sockets[0].getsockname()[:2]
        return HostPort(host, port)

    async def read_token(self, reload: Reload) -> Reload:
        """Takes the token of `reload`, whose file may have changed. Returns `reload`, with a fault
        if the file cannot be used; then nothing is to be taken.
        """
        if reload.fault:
            return reload
        try:
            self.token = await asyncio.to_thread(token_of, reload.config.console)
        except ConfigError as error:
            return replace(reload, fault=str(error))
        return reload

    def refused_as_guarded(self, endpoint: Endpoint, request: web.Request) -> web.Response | None:
        """The refusal of a guarded endpoint, unless the caller is on this machine or a token is
        needed anyway.
        """
        if not endpoint.guarded or self.token is not None or is_of_this_machine(request):
            return None
        return web.Response(
            status=403,
            text="Open only to callers on this machine; to open it to others, set "
            "console.token_file.\n",
        )

    def _names(self) -> frozenset[str]:
        return allowed_names(self._listen, self._config.allowed_hosts)

    async def __aenter__(self) -> Self:
        address = parse_host_port(self._listen)
        await self._runner.setup()
        try:
            assert self._runner.server is not None  # it is set up
            make_connection = partial(LimitedConnection, self._runner.server, OpenConnections())
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(make_connection, address.host, address.port)
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"console.listen = {self._listen}: cannot listen there: {error.strerror}"
            ) from error
        log.info("console_listening", address=f"http://{self.address}")
        if not is_loopback(address.host):
            log.warning(
                "plaintext_beyond_loopback",
                listener="console",
                host=address.host,
                hint="let the console listen on 127.0.0.1, behind a proxy with TLS and a login",
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        """200 if the event loop runs.

        It ignores store and brokers on purpose, as a restart would repair neither.
        """
        return web.Response(text="ok\n")

    @abstractmethod
    async def _readyz(self, request: web.Request) -> web.Response: ...

    @abstractmethod
    async def _metrics(self, request: web.Request) -> web.Response: ...

    @abstractmethod
    async def _status(self, request: web.Request) -> web.Response: ...

    @abstractmethod
    async def _records(self, request: web.Request) -> web.Response: ...


class ConsoleServer(HttpConsole):
    """The console of one process."""

    def __init__(
        self,
        config: ConsoleConfig,
        source: StatusSource,
        registry: CollectorRegistry,
        records: Callable[[], ArchivedRecords | None] = lambda: None,
        rows: Rows | None = None,
        drill: Drill | None = None,
    ) -> None:
        """`records`: None while this process does not read the archive, or may not show it. `rows`:
        None: without the API's pages.
        """
        super().__init__(config)
        self._rows = rows
        for endpoint in ENDPOINTS if rows is not None else ():
            self._app.router.add_get(endpoint.path, partial(self._page, endpoint))
        if drill is not None:
            add_drill(self._app, drill)
        self._source = source
        self._registry = registry
        self._archived_records = records
        self._turn = asyncio.Lock()

    async def _readyz(self, _request: web.Request) -> web.Response:
        """200 if the listeners are open and a broker answers.

        The relay works even if the store is away or the brokers refuse the proxy's own credentials,
        so both leave the process ready. The response still names refused credentials.
        """
        status = await self._source(NO_PARTITIONS)
        missing = status.missing
        response: dict[str, object] = {"ready": not missing, "missing": list(missing)}
        for condition in status.conditions:
            if condition["kind"] == Kind.CLUSTER_AUTHENTICATION_REFUSED:
                response["cluster_refusal"] = condition["what"]
        return web.json_response(response, status=503 if missing else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await _in_steps(self._registry, encode, self._turn)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _status(self, request: web.Request) -> web.Response:
        """`?rows_max=200&name_part=orders`: at most 200 partitions with `orders` in their name.
        `topics_max`: at most so many topics.
        """
        if (refusal := refused_rows(request)) is not None:
            return refusal
        rows, topics = (request.query.get(name, "") for name in ("rows_max", "topics_max"))
        query = PartitionQuery(
            int(rows) if rows else None,
            request.query.get("name_part", ""),
            int(topics) if topics else None,
        )
        text = await _as_json(await self._source(query))
        return web.Response(body=text, content_type="application/json", charset="utf-8")

    async def _records(self, request: web.Request) -> web.Response:
        """`?topic=orders&partition=0&offset=12&count=20&as=hex`: archived records from an offset,
        or from the first one at or after `timestamp_ms`.
        """
        if not self._config.show_records:
            text = "The console shows no records: console.show_records is not set.\n"
            return web.Response(status=403, text=text)
        records = self._archived_records()
        if records is None:
            text = "This process does not read the archive (yet). Ask one that serves clients.\n"
            return web.Response(status=404, text=text)
        try:
            page = await records.page(parse_record_query(request.query))
        except BadQuery as error:
            return web.Response(status=400, text=f"{error}\n")
        except NothingThere as error:
            return web.Response(status=404, text=f"{error}\n")
        except (FetchProxyError, TimeoutError) as error:
            return web.Response(status=503, text=f"The archive cannot be read: {error}\n")
        items = [_json(item) async for item in cooperative(page.pop("records"), ITEMS_A_STEP)]
        text = f'{_json(page)[:-1]},"records":[{",".join(items)}]}}'
        return web.Response(text=text, content_type="application/json")

    async def _page(self, endpoint: Endpoint, request: web.Request) -> web.Response:
        """One page of rows."""
        assert self._rows is not None  # else there is no route to here
        if (refusal := self.refused_as_guarded(endpoint, request)) is not None:
            return refusal
        try:
            query = page_query(request.query.items())
            page = await endpoint.rows(self._rows, request.match_info, query)
        except BadPage as error:
            return web.Response(status=400, text=f"{error}\n")
        except NotThere as error:
            return web.Response(status=404, text=f"not known here: {harmless(str(error))}\n")
        text = await _as_json(page)
        return web.Response(body=text, content_type="application/json", charset="utf-8")


async def _description(_request: web.Request) -> web.Response:
    return web.Response(text=_OPENAPI, content_type="application/json")


async def _page_file(content: str, content_type: str, _request: web.Request) -> web.Response:
    return web.Response(text=content, content_type=content_type)
