"""The processes that are attacked, and what is watched of them.

A victim is `fetchproxy serve` as a user runs it, with a limit of memory. `figures()` is what its
/metrics, its log and the kernel know; the difference of two figures is what a case has done to it.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import blown_messages
from fetchproxy_command import COMMAND, output_of
from hostile_broker import TOPIC, HostileBroker
from proxy_process import PROJECT

from fetchproxy.config.schema import MiB
from lab.process import ServerProcess, free_port, free_ports

MEMORY_BYTES_MAX = 512 * MiB  # a usual container
TURN_CPU_S_MAX = 0.05
BYSTANDER_S_MAX = 30.0  # an ordinary client's patience
# Where connections with a PROXY header come from.
BALANCER = "127.0.0.77"
START_S_MAX = 120.0
READY_S_MAX = 90.0
_TURNS = 'fetchproxy_event_loop_cpu_seconds_bucket{le="'
_BAD_EVENTS = ("part_failed", "session_crashed", "library_message", "event_loop_error")
_LOG_LINE = re.compile(r"^\{.*\}$", re.MULTILINE)


@dataclass(frozen=True)
class Figures:
    """`turns`: how many, by the most CPU seconds that they took. `bad`: lines of the log."""

    turns: Mapping[float, int]
    longest_s: float  # of the last minute
    peak_bytes: int
    bad: tuple[str, ...]
    healthy: int  # status of /healthz

    def long_turns(self, since: Figures) -> int:
        """Turns above the limit."""

        def above(figures: Figures) -> int:
            return figures.turns[float("inf")] - figures.turns[TURN_CPU_S_MAX]

        return above(self) - above(since)


class Victim:
    """A context manager. `options`: behind `serve`. `broker`: the one behind it, if any."""

    def __init__(
        self,
        name: str,
        options: Sequence[str],
        folder: Path,
        broker: HostileBroker | None = None,
        *,
        tls: bool = False,
        login: bool = False,
    ) -> None:
        self.name, self.broker, self.tls, self.login = name, broker, tls, login
        self.folder, self.archive = folder, folder
        self._opened: set[asyncio.StreamWriter] = set()
        folder.mkdir(parents=True, exist_ok=True)
        # The relay takes the ports behind its own for the nodes.
        self.port, self.console_port = free_ports(20), free_port()
        self.log = folder / f"{name}.log"
        command = [*COMMAND, "serve", *options]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        command += ["--console", f"127.0.0.1:{self.console_port}"]
        command += ["--set", f"process.memory_bytes_max={MEMORY_BYTES_MAX}"]
        self._process = ServerProcess(name, command, self.log, cwd=PROJECT)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.running

    async def start(self) -> None:
        self._process.start()
        async with asyncio.timeout(START_S_MAX):
            while not await self._accepts():
                assert self.running, self.log_text()[-3000:]
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await asyncio.to_thread(self._process.stop)

    async def restart(self) -> None:
        await self.stop()
        self.log.unlink()
        await self.start()

    async def connected(
        self, port: int, context: ssl.SSLContext | None = None, source: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """`source`: the address it comes from. Raises OSError."""
        local = None if source is None else (source, 0)
        connection = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, limit=1 << 22, local_addr=local
        )
        self._opened.add(connection[1])
        return connection

    def close_what_is_open(self) -> None:
        """Of the present case: an attack may end at any place."""
        for writer in self._opened:
            writer.transport.abort()
        self._opened.clear()

    async def _accepts(self) -> bool:
        for port in (self.port, self.console_port):
            try:
                _, writer = await self.connected(port)
            except OSError:
                return False
            writer.transport.abort()
        return True

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of the console's answer. Raises OSError, TimeoutError."""
        status_and_body = await self._get(path)
        # This process may have been too busy with its attack to send the request in time.
        return status_and_body if status_and_body[0] else await self._get(path)

    async def _get(self, path: str) -> tuple[int, str]:
        async with asyncio.timeout(BYSTANDER_S_MAX):
            reader, writer = await self.connected(self.console_port)
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        if b"chunked" in head:
            body = b"".join(body.split(b"\r\n")[1::2])
        return int(head.split()[1]) if head else 0, body.decode()

    def forget_peak(self) -> None:
        """From now on the kernel notes the highest memory anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    async def figures(self) -> Figures:
        """Raises OSError, TimeoutError."""
        _, text = await self.get("/metrics")
        if f"{_TURNS}+Inf" not in text:
            raise OSError("/metrics is not whole")
        turns = {}
        longest = 0.0
        for line in text.splitlines():
            if line.startswith(_TURNS):
                edge, _, count = line.removeprefix(_TURNS).partition('"} ')
                turns[float(edge)] = int(float(count))
            elif line.startswith("fetchproxy_event_loop_cpu_longest_seconds "):
                longest = float(line.split()[1])
        status = Path(f"/proc/{self.pid}/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
        return Figures(turns, longest, peak, self._bad_lines(), (await self.get("/healthz"))[0])

    async def ready_again(self) -> bool:
        """Whether it gets ready by itself, after a broker may have misled it."""
        until = time.monotonic() + READY_S_MAX
        while (await self.get("/readyz"))[0] != 200:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.2)
        return True

    def _bad_lines(self) -> tuple[str, ...]:
        text = self.log_text()
        bad_lines = [
            line for line in text.splitlines() if not line.startswith("{") and line.strip()
        ]
        for line in _LOG_LINE.findall(text):
            if "Traceback" in line or json.loads(line)["event"] in _BAD_EVENTS:
                bad_lines.append(line)
        return tuple(bad_lines)


class Bystander:
    """An ordinary client without a login: ApiVersions, a fetch, a look-up, again and again.

    It connects again when it is disconnected, as clients do. `asked`: how often it got a response.
    """

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self.requests = 0
        self.fault = ""  # the last one
        shape = blown_messages.Shape(
            names="known", known=TOPIC, fixed={"FetchOffset": 10, "MaxWaitMs": 10, "Timestamp": -1}
        )
        self._requests = [
            blown_messages.request(key, version, shape, client="bystander")
            for key, version in ((18, 0), *(() if victim.login else ((1, 11), (2, 5), (3, 4))))
        ]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._ask()
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                self.fault = repr(error)
            await asyncio.sleep(0.05)

    async def _ask(self) -> None:
        reader, writer = await open_tcp(self._victim)
        try:
            while True:
                for frame in self._requests:
                    writer.write(frame)
                    async with asyncio.timeout(BYSTANDER_S_MAX):
                        (size,) = struct.unpack(">i", await reader.readexactly(4))
                        await reader.readexactly(size)
                    self.requests += 1
                await asyncio.sleep(0.05)
        finally:
            writer.transport.abort()


async def open_tcp(victim: Victim) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Encrypted where the victim's listener is. Raises OSError."""
    context = None
    if victim.tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await victim.connected(victim.port, context)


def users_file(folder: Path) -> Path:
    of = ("reader", "--topic", "*", "--group", "*")
    file = folder / "users.toml"
    file.write_text(output_of("user", *of, stdin="secret-of-reader\n"))
    return file
