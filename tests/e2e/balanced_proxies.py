"""Two proxies behind a load balancer, all with the configuration files of `deploy/`.

On one machine each needs an address of its own: the balancer has 127.0.0.1, the proxies have
127.0.0.2 and 127.0.0.3. Only addresses and ports of the files are replaced.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

from fetchproxy_command import PROJECT

from lab import limited
from lab.process import ServerProcess, free_ports

HOSTS = {"proxy-a": "127.0.0.2", "proxy-b": "127.0.0.3"}
_PORTS = (9192, 9301, 9302, 9303, 8080)


class Ports:
    """For each port of the files in `deploy/` one that is free here."""

    def __init__(self) -> None:
        first = free_ports(len(_PORTS))
        self._of = {port: first + number for number, port in enumerate(_PORTS)}
        self.bootstrap, self.console = self._of[9192], self._of[8080]

    def adapted(self, file: str, host: str) -> str:
        """The text of a file of `deploy/` for the process with the address `host`."""
        text = (PROJECT / "deploy" / file).read_text("utf-8")
        text = re.sub(
            r"\b(\d{4})\b",
            lambda lines_found: str(self._of.get(int(lines_found[1]), lines_found[1])),
            text,
        )
        text = re.sub(r"(bind |listen )(\*?:)?(?=\d)", rf"\g<1>{host}:", text)
        for name, address in HOSTS.items():
            text = text.replace(name, address)
        text = text.replace("0.0.0.0", host).replace("kafka.example", "127.0.0.1")
        return text.replace('"10.0.0.10"', '"127.0.0.1"')


class BalancedProxy:
    """A process of `fetchproxy serve`; `name` is that of the balancer's files."""

    def __init__(
        self,
        name: str,
        ports: Ports,
        bootstrap: str,
        store: str,
        folder: Path,
        settings: dict[str, object] | None = None,
    ) -> None:
        self.host, self._ports = HOSTS[name], ports
        file = folder / f"{name}.toml"
        file.write_text(ports.adapted("load-balancer.toml", self.host))
        all_settings = settings or {}
        command = [*limited.command(all_settings), "serve", "--config", str(file)]
        command += ["--bootstrap", bootstrap, "--store", store, *limited.options(all_settings)]
        self.process = ServerProcess(name, command, folder / f"{name}.log", cwd=PROJECT)

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(self._is_ready, 120.0)

    def _is_ready(self) -> bool:
        try:
            self._get("/readyz")
        except urllib.error.URLError:
            return False
        return True

    def _get(self, path: str) -> str:
        url = f"http://{self.host}:{self._ports.console}{path}"
        with urllib.request.urlopen(url) as response:
            text: str = response.read().decode()
        return text

    @property
    def connections(self) -> int:
        for line in self._get("/metrics").splitlines():
            if line.startswith("fetchproxy_connections "):
                return int(float(line.split()[1]))
        raise LookupError("fetchproxy_connections")
