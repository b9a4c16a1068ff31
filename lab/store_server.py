"""The common part of all object store servers on loopback: a process, a folder and outages."""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from pathlib import Path

from lab.errors import PartFailed
from lab.process import OneProcess, ServerProcess, free_port, port_responses

_START_ATTEMPTS_MAX = 3


class StoreServer(OneProcess):
    """A server process with a folder of its own.

    A `start()` after `kill()` uses the same port.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lab-store-"))
        self._port = 0

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def _command(self, port: int) -> list[str]: ...

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Address and credentials, as environment variables for the vendor's own clients."""

    @abstractmethod
    def store_url(self, bucket: str, prefix: str = "") -> str:
        """The store URL for fetchproxy's `--store`."""

    @abstractmethod
    def create_bucket(self, bucket: str) -> str:
        """Creates `bucket` and returns its name."""

    @property
    def port(self) -> int:
        return self._port

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when the server accepts connections. After `kill()`, it uses the same port."""
        if self._process is not None:
            self._start_once(self._process)
            return
        for attempt in range(1, _START_ATTEMPTS_MAX + 1):
            self._port = free_port()
            process = ServerProcess(
                self.name, self._command(self._port), self._folder / "server.log", self._env()
            )
            try:
                self._start_once(process)
            except PartFailed as failure:
                if "in use" not in str(failure) or attempt == _START_ATTEMPTS_MAX:
                    raise
            else:
                self._process = process
                return

    def stop(self) -> None:
        """Ends the server and removes everything it stored."""
        if self._process is not None:
            self._process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _env(self) -> dict[str, str]:
        return {}

    def _start_once(self, process: ServerProcess) -> None:
        process.start()
        try:
            process.wait_until(lambda: port_responses(self._port), timeout_s=60.0)
        except BaseException:
            process.kill()
            raise
