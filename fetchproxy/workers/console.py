"""One console for all workers: their figures together, and the page of the one that archives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.console.server import HttpConsole, refused_rows
from fetchproxy.workers.merging import merged_metrics, merged_status

# A worker answers within a turn of its loop.
_WORKER_MAX_S = 5.0
_OF_PARENT = ("fetchproxy_worker_restarts_total",)
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class WorkersConsole(HttpConsole):
    """`consoles`: the URLs of the workers that run now, by number."""

    def __init__(
        self,
        config: ConsoleConfig,
        consoles: Mapping[int, str],
        registry: CollectorRegistry,
        leaving: Callable[[], bool],
    ) -> None:
        super().__init__(config)
        self._registry = registry
        self._consoles = consoles
        self._leaving = leaving

    async def _readyz(self, request: web.Request) -> web.Response:
        """200 if one worker is ready: it has the same ports as all others."""
        found = [json.loads(text) for text in (await self._asked("/readyz")).values()]
        ready = not self._leaving() and any(one["ready"] for one in found)
        missing = sorted({name for one in found for name in one["missing"]})
        if not found:
            missing = ["workers: none runs"]
        response = {"ready": ready, "missing": [] if ready else missing, "workers": len(found)}
        return web.json_response(response, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        of_workers = await self._asked("/metrics")
        of_parent = generate_latest(self._registry.restricted_registry(_OF_PARENT)).decode()
        text = await asyncio.to_thread(merged_metrics, of_workers, of_parent)
        return web.Response(body=text.encode(), headers={"Content-Type": _TEXT})

    async def _status(self, request: web.Request) -> web.Response:
        if (refusal := refused_rows(request)) is not None:
            return refusal
        found = await self._asked(f"/api/status?{request.query_string}")
        if not found:
            return web.Response(status=503, text="no worker runs\n")
        text = await asyncio.to_thread(_merged_text, found)
        return web.Response(text=text, content_type="application/json", charset="utf-8")

    async def _records(self, request: web.Request) -> web.Response:
        text = "with several workers, the page shows no records\n"
        return web.Response(status=404, text=text)

    async def _asked(self, path: str) -> dict[int, str]:
        """The answers of all workers that give one, by number."""
        consoles = sorted(self._consoles.items())
        timeout = aiohttp.ClientTimeout(total=_WORKER_MAX_S)
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token.decode()}"}
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            asyncio.TaskGroup() as tasks,
        ):
            requests = [
                (number, tasks.create_task(_get(session, url + path))) for number, url in consoles
            ]
        return {number: text for number, task in requests if (text := task.result()) is not None}


async def _get(session: aiohttp.ClientSession, url: str) -> str | None:
    """None: the worker is ending, or has ended."""
    try:
        async with session.get(url) as response:
            return await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return None


def _merged_text(found: Mapping[int, str]) -> str:
    statuses: list[dict[str, Any]] = [json.loads(text) for text in found.values()]
    return json.dumps(merged_status(statuses), ensure_ascii=False, separators=(",", ":"))
