"""`/api/drill` of the parent: what is asked of it reaches every worker.

Each worker ends its drill by itself, as a single process does. A worker that starts during a drill
has none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
from aiohttp import web
from yarl import URL

from fetchproxy.console.api import DRILL_PATH
from fetchproxy.console.drill import UNCONNECTED, refused_as_remote


@dataclass(frozen=True, slots=True)
class _WorkerResponse:
    status: int
    text: str


@dataclass(frozen=True, slots=True)
class DrillOfAll:
    """`consoles`: the URLs of the workers that run now, by number."""

    consoles: Mapping[int, str]
    session: Callable[[], aiohttp.ClientSession]

    def add_to(self, app: web.Application) -> None:
        app.router.add_post(DRILL_PATH, self._begin)
        app.router.add_get(DRILL_PATH, self._pass_on)
        app.router.add_delete(DRILL_PATH, self._pass_on)

    async def _begin(self, request: web.Request) -> web.Response:
        """In every worker or in none."""
        if (refusal := refused_as_remote(request)) is not None:
            return refusal
        query = request.rel_url.raw_query_string
        responses = await self._ask("POST", query, self.consoles)
        refused = [
            number for number, response in responses.items() if response.status != HTTPStatus.OK
        ]
        if len(refused) < len(responses):  # one worker has a connection to the broker
            responses |= await self._ask("POST", f"{query}&{UNCONNECTED}", refused)
        began = [
            number for number, response in responses.items() if response.status == HTTPStatus.OK
        ]
        if len(began) < len(responses):
            await self._ask("DELETE", "", began)
        return _of_all(responses)

    async def _pass_on(self, request: web.Request) -> web.Response:
        if (refusal := refused_as_remote(request)) is not None:
            return refusal
        return _of_all(await self._ask(request.method, "", self.consoles))

    async def _ask(
        self, method: str, query: str, numbers: Iterable[int]
    ) -> dict[int, _WorkerResponse]:
        """The responses of those workers that give one."""
        urls = {n: URL(f"{self.consoles[n]}{DRILL_PATH}?{query}", encoded=True) for n in numbers}
        async with self.session() as session, asyncio.TaskGroup() as tasks:
            requests = {n: tasks.create_task(_ask(session, method, urls[n])) for n in urls}
        responses = {number: request.result() for number, request in requests.items()}
        return {number: response for number, response in responses.items() if response is not None}


async def _ask(session: aiohttp.ClientSession, method: str, url: URL) -> _WorkerResponse | None:
    """None: the worker is ending, or has ended."""
    try:
        async with session.request(method, url) as response:
            return _WorkerResponse(response.status, await response.text())
    except (aiohttp.ClientError, TimeoutError):
        return None


def _of_all(responses: Mapping[int, _WorkerResponse]) -> web.Response:
    """The first refusal, else the state of the drill that lasts longest."""
    if not responses:
        return web.Response(status=503, text="no worker runs\n")
    for response in responses.values():
        if response.status != HTTPStatus.OK:
            return web.Response(status=response.status, text=response.text)
    states = [json.loads(response.text) for response in responses.values()]
    return web.json_response(max(states, key=lambda state: float(state["left_s"])))
