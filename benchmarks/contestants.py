"""The ways to one broker that a benchmark compares: directly and through each proxy."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.request import urlopen

from lab import limited
from lab.errors import PartMissing
from lab.kafka import KafkaServer
from lab.kroxylicious import KroxyliciousProxy
from lab.process import ServerProcess, free_port, port_responses

DIRECT = "direct"
KROXYLICIOUS = "kroxylicious"
FETCHPROXY = "fetchproxy"
BARE_RELAY = "bare-relay"
FETCHPROXY_COMMAND = [sys.executable, "-m", "fetchproxy"]
_PROJECT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to the broker. `pid`: the proxy's process, None if there is no proxy."""

    name: str
    bootstrap: str
    pid: int | None


class FetchproxyServer:
    """`fetchproxy serve`. Without a `store` its archive is empty, so only the relay is measured.

    `environment`: the store's credentials. `settings`: values for `--set`, and limits.
    """

    def __init__(
        self,
        upstream: str,
        settings: Mapping[str, str] | None = None,
        store: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._console = f"127.0.0.1:{free_port()}"
        self._folder = tempfile.TemporaryDirectory(prefix="fetchproxy-benchmark-")
        folder = Path(self._folder.name)
        all_settings = settings or {}
        command = [
            *limited.command(all_settings),
            "serve",
            "--bootstrap",
            upstream,
            "--listen",
            self.bootstrap,
        ]
        command += ["--store", store or f"file://{folder}/store", "--console", self._console]
        command += limited.options(all_settings)
        (folder / "store").mkdir()
        self.log = folder / "log"
        self._process = ServerProcess("fetchproxy", command, self.log, environment, _PROJECT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str) -> str:
        """From the console. Raises OSError."""
        with urlopen(f"http://{self._console}{path}", timeout=10) as response:
            text: str = response.read().decode()
            return text

    def metric(self, name: str) -> float:
        """The sum over all labels in /metrics. Raises OSError."""
        lines = self.get("/metrics").splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{"))
        )

    def __enter__(self) -> Self:
        port = int(self.bootstrap.rpartition(":")[2])
        try:
            self._process.start()
            self._process.wait_until(lambda: port_responses(port), timeout_s=60.0)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._folder.cleanup()


@contextmanager
def contestants(
    kafka: KafkaServer,
    left_out: frozenset[str],
    settings: Mapping[str, str] | None = None,
    pem: Path | None = None,
) -> Iterator[tuple[list[Contestant], list[str]]]:
    """Yields the contestants that run, and a line for each one that cannot.

    `settings`: values for fetchproxy's `--set`. `pem`: a certificate and its key, in one file.
    With it, clients of both proxies speak TLS, and there is no direct way.
    """
    settings = dict(settings or {})
    if pem is not None:
        settings["gateway.tls_certificate_file"] = str(pem)
    with ExitStack() as running:
        present = [Contestant(DIRECT, kafka.bootstrap, None)] if pem is None else []
        absent: list[str] = []
        if KROXYLICIOUS not in left_out:
            peer = KroxyliciousProxy(kafka.bootstrap, pem=pem)
            try:
                running.enter_context(peer)
            except PartMissing as missing:
                absent.append(f"{KROXYLICIOUS}: {missing}")
            else:
                present.append(Contestant(KROXYLICIOUS, peer.bootstrap, peer.pid))
        proxy = running.enter_context(FetchproxyServer(kafka.bootstrap, settings))
        present.append(Contestant(FETCHPROXY, proxy.bootstrap, proxy.pid))
        yield present, absent
