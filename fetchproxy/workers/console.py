"""One console for all workers: their figures together, and the page of the one that archives.

Pages of the archive (topics, partitions, segments, timelines, conditions) are the first worker's
that answers, and so are archived records. What processes know is merged: readers, groups,
conditions, the history, the log and the processes themselves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from yarl import URL

from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.console.api import ENDPOINTS, Endpoint
from fetchproxy.console.history import merged_samples
from fetchproxy.console.rows import LIMIT_MAX, BadPage, page_query, skipped_rows
from fetchproxy.console.server import HttpConsole, refused_rows
from fetchproxy.workers.drill import DrillOfAll
from fetchproxy.workers.merging import (
    concatenated,
    merged_conditions,
    merged_groups,
    merged_lines,
    merged_metrics,
    merged_readers,
    merged_status,
)

_Merge = Callable[[Sequence[list[dict[str, Any]]]], list[dict[str, Any]]]
GROUPS = "/api/groups"  # its pages go on after a name, those of the others after a number
PROCESSES = "/api/process"
# Of each worker's list, the first LIMIT_MAX rows are merged.
MERGED: Mapping[str, _Merge] = {
    "/api/history": merged_samples,
    "/api/readers": merged_readers,
    GROUPS: merged_groups,
    "/api/conditions": merged_conditions,
    "/api/log": merged_lines,
    PROCESSES: concatenated,
}
# A worker answers within a turn of its loop; archived records come from the store.
_WORKER_MAX_S, _RECORDS_MAX_S = 5.0, 60.0
_RESPONDS = (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)  # 503 of /readyz has a body, too
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
        settings: Callable[[], Iterable[str]],
    ) -> None:
        """`settings`: those of all workers together, with secrets masked."""
        super().__init__(config)
        self._settings = settings
        self._registry = registry
        self._consoles = consoles
        self._leaving = leaving
        for endpoint in ENDPOINTS:
            merge = MERGED.get(endpoint.path)
            handler = self._of_first
            if merge is not None:
                handler = partial(self._merged_page, endpoint, merge)
            self._app.router.add_get(endpoint.path, handler)
        DrillOfAll(consoles, self._session).add_to(self._app)

    async def _readyz(self, request: web.Request) -> web.Response:
        """200 if one worker is ready: it has the same ports as all others."""
        statuses = [json.loads(text) for text in (await self._responses("/readyz")).values()]
        ready = not self._leaving() and any(status["ready"] for status in statuses)
        missing = sorted({name for status in statuses for name in status["missing"]})
        if not statuses:
            missing = ["workers: none runs"]
        response = {"ready": ready, "missing": [] if ready else missing, "workers": len(statuses)}
        return web.json_response(response, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        of_workers = await self._responses("/metrics")
        of_parent = generate_latest(self._registry.restricted_registry(_OF_PARENT)).decode()
        text = await asyncio.to_thread(merged_metrics, of_workers, of_parent)
        return web.Response(body=text.encode(), headers={"Content-Type": _TEXT})

    async def _status(self, request: web.Request) -> web.Response:
        if (refusal := refused_rows(request)) is not None:
            return refusal
        texts = await self._responses(f"/api/status?{request.query_string}")
        if not texts:
            return web.Response(status=503, text="no worker runs\n")
        text = await asyncio.to_thread(_merged_text, texts)
        return web.Response(text=text, content_type="application/json", charset="utf-8")

    async def _records(self, request: web.Request) -> web.Response:
        return await self._of_first(request, _RECORDS_MAX_S)

    async def _of_first(
        self, request: web.Request, wait_max_s: float = _WORKER_MAX_S
    ) -> web.Response:
        """The response of the first worker that responds."""
        path = request.rel_url.raw_path_qs  # begins with a slash, whatever the client wrote
        async with self._session(wait_max_s) as session:
            for _, url in sorted(self._consoles.items()):
                try:
                    async with session.get(URL(url + path, encoded=True)) as response:
                        return web.Response(
                            status=response.status,
                            body=await response.read(),
                            content_type=response.content_type,
                            charset="utf-8",
                        )
                except (aiohttp.ClientError, TimeoutError):
                    continue  # it is ending, or has ended
        return web.Response(status=503, text="no worker runs\n")

    async def _merged_page(
        self, endpoint: Endpoint, merge: _Merge, request: web.Request
    ) -> web.Response:
        if (refusal := self.refused_as_guarded(endpoint, request)) is not None:
            return refusal
        by_name = request.path == GROUPS
        try:
            query = page_query(request.query.items())
            skipped = 0 if by_name else skipped_rows(query)
        except BadPage as error:
            return web.Response(status=400, text=f"{error}\n")
        texts = await self._responses(f"{request.path}?limit={LIMIT_MAX}")
        if not texts:
            return web.Response(status=503, text="no worker runs\n")
        rows = await asyncio.to_thread(_merged_rows, merge, texts.values())
        if request.path == PROCESSES:
            settings = list(self._settings())
            rows = [{**row, "settings_of_all": settings} for row in rows]
        if by_name:
            rows = [row for row in rows if row["group"] > query.after]
        page_rows, rows_after = rows[skipped : skipped + query.limit], rows[skipped + query.limit :]
        last = page_rows[-1]["group"] if by_name and rows_after else str(skipped + query.limit)
        page = {"items": page_rows, "next": last if rows_after else None}
        return web.json_response(page)

    async def _responses(self, path: str) -> dict[int, str]:
        """The answers of all workers that give one, by number."""
        consoles = sorted(self._consoles.items())
        async with self._session() as session, asyncio.TaskGroup() as tasks:
            requests = [
                (number, tasks.create_task(_get(session, url + path))) for number, url in consoles
            ]
        return {number: text for number, task in requests if (text := task.result()) is not None}

    def _session(self, wait_max_s: float = _WORKER_MAX_S) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=wait_max_s)
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token.decode()}"}
        return aiohttp.ClientSession(timeout=timeout, headers=headers)


async def _get(session: aiohttp.ClientSession, url: str) -> str | None:
    """None: the worker is ending, has ended, or refuses, as while a new token is on its way."""
    try:
        async with session.get(url) as response:
            return await response.text() if response.status in _RESPONDS else None
    except (aiohttp.ClientError, TimeoutError):
        return None


def _merged_rows(merge: _Merge, pages: Iterable[str]) -> list[dict[str, Any]]:
    return merge([json.loads(page)["items"] for page in pages])


def _merged_text(texts: Mapping[int, str]) -> str:
    statuses: list[dict[str, Any]] = [json.loads(text) for text in texts.values()]
    return json.dumps(merged_status(statuses), ensure_ascii=False, separators=(",", ":"))
