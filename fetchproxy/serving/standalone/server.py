"""ArchiveOnlyServer: an archive, its groups and its users behind one listener.

One node, one port: whatever a client is told, it dials this listener again.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self
from uuid import NAMESPACE_URL, uuid5

import structlog

from fetchproxy.config.schema import Config
from fetchproxy.config.values import is_loopback, parse_host_port
from fetchproxy.metadata.remote_log_metadata_manager import (
    READS_AT_ONCE_MAX,
    RemoteLogMetadataManager,
)
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.serving.admission import admission_of
from fetchproxy.serving.listener import (
    Listener,
    tells_address_reached,
    warn_of_address_reached,
)
from fetchproxy.serving.skipped_offsets import SkippedOffsets
from fetchproxy.serving.standalone.committed_offsets import CommittedOffsets
from fetchproxy.serving.standalone.groups import GroupCoordinator, GroupMemory
from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts
from fetchproxy.serving.standalone.limits import StandaloneLimits
from fetchproxy.serving.standalone.logins import Logins, UsersFile
from fetchproxy.serving.standalone.session import Address, StandaloneSession
from fetchproxy.serving.standalone.topics import ArchiveWatch
from fetchproxy.tls.contexts import ReloadingContext

log = structlog.get_logger(__name__)


class ArchiveOnlyServer:
    """An async context manager: the listener opens when the archive has been listed once.

    `new_member_id(prefix)` makes an id that was never used before. Raises OSError where it cannot
    listen, ConfigError, RemoteStorageError where retrying cannot help. With `tls` clients speak TLS
    and nothing else; its owner keeps it fresh.
    """

    def __init__(
        self,
        config: Config,
        rlmm: RemoteLogMetadataManager,
        purgatory: RemoteFetchPurgatory,
        new_member_id: Callable[[str], str],
        tls: ReloadingContext | None = None,
        limits: StandaloneLimits = StandaloneLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._config = config.gateway
        own = config.archive_only
        clock = asyncio.get_running_loop().time
        memory = GroupMemory(own.groups_bytes_max)
        self._offsets = CommittedOffsets(own.offsets_file, limits.offsets_max, memory)
        self._groups = GroupCoordinator(limits, memory, new_member_id)
        self._archive = ArchiveWatch(rlmm, own.refresh_interval_ms / 1000, READS_AT_ONCE_MAX)
        self._users = None if own.users_file is None else UsersFile(own.users_file)
        self._logins = None if self._users is None else Logins(self._users, clock)
        self._parts = ArchiveOnlyParts(
            config=own,
            limits=limits,
            cluster_id=cluster_id(config.store.url or ""),
            rlmm=rlmm,
            purgatory=purgatory,
            archive=self._archive,
            groups=self._groups,
            offsets=self._offsets,
            clients_log_in=self._logins is not None,
            admission=admission_of(config, limits, clock),
            skipped=SkippedOffsets(),
            clock=clock,
        )
        self._listener = Listener(
            config.gateway, limits, tls, SparingWarnings(clock), "archive_only"
        )
        self._stack = AsyncExitStack()
        self._own_tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            if self._users is not None:
                await self._users.load()
            await opened.enter_async_context(self._offsets)
            await self._archive.load()
            tasks = (await opened.enter_async_context(self._listener)).tasks
            try:
                port = parse_host_port(self._config.listen).port
                self._server = await self._listener.listen(port, self._new_session)
            except OSError:
                # Not through the tasks' own end: a group of errors would hide what it is.
                await opened.aclose()
                raise
            self._own_tasks = [
                tasks.create_task(self._archive.run(), name="archive-watch"),
                tasks.create_task(self._listener.sweep(), name="connection-sweeper"),
            ]
            if self._users is not None:
                self._own_tasks.append(tasks.create_task(self._users.run(), name="users"))
            self._stack = opened.pop_all()
        self._say_open()
        return self

    def _say_open(self) -> None:
        host, closed = self._listener.host, self._logins is not None
        if tells_address_reached(self._config):
            warn_of_address_reached(self._config, "archive_only")
        if not is_loopback(host) and not closed and self._config.tls_client_auth != "required":
            log.warning(
                "archive_open_to_anybody",
                host=host,
                port=self.port,
                hint="archive_only.users_file lets in only users with a password, "
                "gateway.tls_client_auth = required only who has a certificate",
            )
        log.info(
            "archive_only_listening",
            host=host,
            port=self.port,
            topics=len(self._archive.catalogue.by_name),
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        self._groups.close()
        for task in self._own_tasks:
            task.cancel()
        await self._stack.aclose()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Those that still shake hands included."""
        return self._listener.connections

    def node_addresses(self) -> dict[int, Address]:
        """What clients are told, by node id."""
        return {NODE_ID: self._advertised((self._listener.host, self.port))}

    def _advertised(self, local: Address) -> Address:
        """A listener on all addresses is told by the one that the client has reached."""
        host = self._config.advertise_host or self._listener.host
        return (local[0] if tells_address_reached(self._config) else host), self.port

    def _new_session(self, server_name: str | None) -> StandaloneSession:
        return StandaloneSession(self._listener, self._parts, self._logins, self._advertised)


def cluster_id(store_url: str) -> str:
    """The same for the same archive, in the form of Kafka's own; says nothing of the URL."""
    address = store_url.partition("?")[0]
    return urlsafe_b64encode(uuid5(NAMESPACE_URL, address).bytes).decode().rstrip("=")
