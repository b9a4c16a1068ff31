"""The console of all workers, beside workers that answer otherwise than it expects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry
from sample_status import STATUS

from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.console.api import DRILL_PATH
from fetchproxy.console.server import ConsoleServer
from fetchproxy.console.status import PartitionQuery, Status
from fetchproxy.workers.console import WorkersConsole


async def source(query: PartitionQuery) -> Status:
    return replace(STATUS, missing=())


def console_config(folder: Path, token: str) -> ConsoleConfig:
    file = folder / token
    file.write_text(token)
    return ConsoleConfig(listen="127.0.0.1:0", token_file=file)


async def test_a_worker_that_has_not_taken_the_new_token_yet_is_left_out(tmp_path: Path) -> None:
    """Its health is open without a token."""
    before, after = "0123456789-before", "0123456789-after"
    worker = ConsoleServer(console_config(tmp_path, before), source, CollectorRegistry())
    async with worker:
        consoles = {0: f"http://{worker.address}"}
        parent = WorkersConsole(
            console_config(tmp_path, after), consoles, CollectorRegistry(), lambda: False, list
        )
        headers = {"Authorization": f"Bearer {after}"}
        async with (
            parent,
            aiohttp.ClientSession(f"http://{parent.address}", headers=headers) as session,
        ):
            statuses = {}
            for path in ("/readyz", "/api/status", "/api/conditions", "/metrics"):
                async with session.get(path) as response:
                    statuses[path] = response.status
    assert statuses == {"/readyz": 200, "/api/status": 503, "/api/conditions": 503, "/metrics": 200}


class SlowWorker:
    """Answers when it `goes_on`. Without a connection to the broker, it refuses a drill that needs
    one.
    """

    def __init__(self, connected: bool) -> None:
        self._connected = connected
        self.requested, self.goes_on, self.requested_again = (asyncio.Event() for _ in range(3))

    async def _begin(self, request: web.Request) -> web.Response:
        if "unconnected" in request.query:
            self.requested_again.set()
            return web.json_response({"fault": "broker-down", "left_s": 1.0})
        self.requested.set()
        await self.goes_on.wait()
        if self._connected:
            return web.json_response({"fault": "broker-down", "left_s": 1.0})
        return web.Response(status=409, text="not connected\n")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post(DRILL_PATH, self._begin)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def test_a_drill_whose_caller_goes_begins_in_all_workers_or_in_none() -> None:
    slow, other = SlowWorker(connected=False), SlowWorker(connected=True)
    other.goes_on.set()
    config = ConsoleConfig(listen="127.0.0.1:0")
    registry = CollectorRegistry()
    async with slow.serving() as first, other.serving() as second:
        consoles = {0: first, 1: second}
        async with WorkersConsole(config, consoles, registry, lambda: False, list) as parent:
            address = parent.address
            _, writer = await asyncio.open_connection(address.host, address.port)
            head = "POST /api/drill?fault=broker-down&for_s=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            writer.write(head.encode())
            await slow.requested.wait()
            writer.close()
            await writer.wait_closed()
            async with aiohttp.ClientSession(f"http://{address}") as session:
                await session.get("/healthz")  # the end of the other was noticed before
            slow.goes_on.set()
            async with asyncio.timeout(20):
                await slow.requested_again.wait()
