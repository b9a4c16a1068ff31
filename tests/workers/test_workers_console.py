"""The console of all workers, beside workers that answer otherwise than it expects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import aiohttp
from prometheus_client import CollectorRegistry
from sample_status import STATUS

from fetchproxy.config.schema import ConsoleConfig
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
