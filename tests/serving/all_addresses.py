"""`fetchproxy serve` on "all addresses", which here are only a few loopback addresses.

A test must not open the machine to others. As a program: `python all_addresses.py serve …`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from proxy_process import PROJECT, ProxyProcess

from fetchproxy.cli.main import main
from lab.process import ServerProcess

ALL = {"0.0.0.0": ["127.0.0.1", "127.0.0.2"], "::": ["::1"]}


class OnAllAddresses(ProxyProcess):
    """`bootstrap`: the brokers' addresses; None: it serves the archive alone."""

    def __init__(
        self,
        bootstrap: str | None,
        store: str,
        folder: Path,
        listen_host: str,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__("unused", store, folder)
        command = [sys.executable, __file__, "serve", "--store", store]
        alone = ["--archive-only", "--set", "archive_only.open_to_anybody=true"]
        command += alone if bootstrap is None else ["--bootstrap", bootstrap]
        command += ["--listen", f"{listen_host}:{self.port}"]
        command += ["--console", f"127.0.0.1:{self.console_port}"]
        for key, value in (settings or {}).items():
            command += ["--set", f"{key}={value}"]
        # So that this program finds the project and its protocol package.
        env = {"PYTHONPATH": f"{PROJECT}:{PROJECT / 'protocol'}"}
        self._process = ServerProcess("fetchproxy", command, self.log, env=env, cwd=PROJECT)

    def _responses(self) -> bool:
        return bool(self.logged("gateway_listening") or self.logged("archive_only_listening"))


def _keep_to_loopback() -> None:
    as_asked = asyncio.BaseEventLoop.create_server

    async def create_server(self, factory, host=None, port=None, **more):  # type: ignore[no-untyped-def]
        return await as_asked(self, factory, ALL.get(host, host), port, **more)

    asyncio.BaseEventLoop.create_server = create_server  # type: ignore[method-assign]


if __name__ == "__main__":
    _keep_to_loopback()
    main()
