"""A set-up of fetchproxy that the doctor examines. Not a test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from proxy_process import ProxyProcess

from fetchproxy.archive import wall_clock_ms
from fetchproxy.config.load import Loaded, Setting, load
from fetchproxy.doctor.installation import Installation
from fetchproxy.doctor.machine import Machine, read_machine
from fetchproxy.doctor.runner import CHECK_MAX_S, Examination, examine
from fetchproxy.storage.archive_identity import ArchiveIdentity, encode_identity
from lab.process import free_port

MiB = 1024 * 1024
ENOUGH = Machine(1 << 20, 64 << 30, "the machine's memory")
Respond = Callable[[bytes], bytes]


@dataclass(frozen=True)
class SetUp:
    """By default an archiver and proxy before its first start, whose machine has enough of all.
    `values`: of settings; None: not set.
    """

    folder: Path
    values: Mapping[str, object] = field(default_factory=dict)
    before: bool = True
    machine: Machine = ENOUGH
    present: Loaded | None = None
    file: Path | None = None
    check_max_s: float = CHECK_MAX_S
    wall_clock_ms: Callable[[], int] = wall_clock_ms

    def having(self, values: Mapping[str, object] | None = None, **changes: object) -> SetUp:
        """Another one, with these settings and these fields."""
        return replace(self, values={**self.values, **(values or {})}, **changes)  # type: ignore[arg-type]

    def loaded(self) -> Loaded:
        """Raises ConfigError."""
        extra_settings = {k: v for k, v in self.values.items() if v is not None}
        return load(self.file, {}, [Setting(k, v, "--set") for k, v in extra_settings.items()])

    def installation(self) -> Installation:
        return Installation(
            loaded=self.loaded(),
            machine=self.machine,
            wall_clock_ms=self.wall_clock_ms,
            before=self.before,
            present=self.present,
            file=self.file,
        )

    async def examined(self, *skip: str) -> Examination:
        return await examine(self.installation(), skip, self.check_max_s)


def new_set_up(folder: Path, bootstrap: str) -> SetUp:
    """`folder` gets the store and the spool."""
    for name in ("store", "spool"):
        (folder / name).mkdir()
    return SetUp(
        folder,
        {
            "cluster.bootstrap": bootstrap,
            "cluster.request_max_ms": 10_000,
            "store.url": (folder / "store").as_uri(),
            "gateway.listen": f"127.0.0.1:{free_port()}",
            "archive.topics": "orders.*",
            "archive.spool_dir": str(folder / "spool"),
            "archive.spool_bytes_max": 64 * MiB,
            "archive.segment_bytes_max": MiB,
        },
    )


def this_machine() -> Machine:
    return read_machine()


def findings(examination: Examination) -> dict[str, str]:
    """Reasons and remedies of each check that found something, by id."""
    return {
        result.id: "\n".join(f"{one.reason} -> {one.remedy}" for one in result.findings)
        for result in examination.results
        if result.findings
    }


def identified(setup: SetUp, identity: ArchiveIdentity | None = None) -> None:
    """There is an archive in the set-up's store; without `identity` a new one of any cluster."""
    identity = identity or ArchiveIdentity(uuid4(), None, "store")
    (setup.folder / "store" / "remote-log-layout").write_bytes(encode_identity(identity))


@asynccontextmanager
async def running_proxy(setup: SetUp, values: Mapping[str, object]) -> AsyncIterator[SetUp]:
    """A proxy in front of the set-up's brokers, with an archive, that does not archive itself."""
    identified(setup)
    bootstrap, store = str(setup.values["cluster.bootstrap"]), str(setup.values["store.url"])
    proxy = ProxyProcess(bootstrap, store, setup.folder, settings=dict(values))
    try:
        await asyncio.to_thread(proxy.start)
        yield setup.having(
            {
                "gateway.listen": proxy.bootstrap,
                "console.listen": f"127.0.0.1:{proxy.console_port}",
                "archive.topics": None,
                **values,
            },
            before=False,
        )
    finally:
        await asyncio.to_thread(proxy.stop)


@asynccontextmanager
async def a_server(
    respond: Respond | None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """The port of a server that sends `respond(bytes)` for what it gets; None: it says nothing."""
    open_writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        try:
            while heard := await reader.read(65536):
                if respond is not None:
                    writer.write(respond(heard))
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_writers:
            writer.transport.abort()
        await asyncio.sleep(0)


def speaks_http(_: bytes) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
