"""ArchiveOnlyServer: the listener, the connections behind it, and the limits on both.

One node, one port: whatever a client is told, it dials this listener again.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, cast
from uuid import NAMESPACE_URL, uuid5

import structlog

from fetchproxy.config.schema import Config
from fetchproxy.config.values import is_loopback, parse_host_port
from fetchproxy.metadata.remote_log_metadata_manager import (
    READS_AT_ONCE_MAX,
    RemoteLogMetadataManager,
)
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import CONNECTIONS
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.serving.admission import AnswerBudget, AnswerTurns, ClientRates
from fetchproxy.serving.limits import ConnectionLimits
from fetchproxy.serving.relay.addresses import tells_address_reached, warn_of_address_reached
from fetchproxy.serving.relay.held_readers import SkippedOffsets
from fetchproxy.serving.standalone.committed_offsets import CommittedOffsets
from fetchproxy.serving.standalone.connection import Address, Connection
from fetchproxy.serving.standalone.groups import GroupCoordinator, GroupMemory
from fetchproxy.serving.standalone.limits import StandaloneLimits
from fetchproxy.serving.standalone.logins import Logins, UsersFile
from fetchproxy.serving.standalone.parts import NODE_ID, ArchiveOnlyParts
from fetchproxy.serving.standalone.topics import ArchiveWatch
from fetchproxy.serving.transport import may_half_close
from fetchproxy.tls.acceptor import TlsAcceptor
from fetchproxy.tls.contexts import ReloadingContext

log = structlog.get_logger(__name__)

# Connections that are not read are looked at this often, so many without a breath of the loop.
_SWEEP_INTERVAL_S = 0.5
_SWEPT_AT_ONCE = 200


class _ClientProtocol(StreamReaderProtocol):
    """A stream that tells when its connection is lost, as whoever serves it may be waiting."""

    def __init__(
        self,
        on_made: Callable[[StreamReader, StreamWriter], Callable[[], None]],
    ) -> None:
        self._on_lost: Callable[[], None] = lambda: None

        def made(reader: StreamReader, writer: StreamWriter) -> None:
            self._on_lost = on_made(reader, writer)

        super().__init__(StreamReader(), made)

    # What came together with the end of a TLS handshake is handed over in this way.
    def get_buffer(self, sizehint: int) -> bytearray:
        self._early = bytearray(sizehint)
        return self._early

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._early[:nbytes]))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)

    def eof_received(self) -> bool:
        """A client that sends no more still takes what it has asked for, as from a broker."""
        super().eof_received()
        if not may_half_close(self._transport):
            return False
        self._transport.pause_reading()  # for `Connection.reset_unheard`
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_lost()


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
        self._tls = tls
        self._acceptor: TlsAcceptor | None = None
        self._config = config.gateway
        own = config.archive_only
        memory = GroupMemory(own.groups_bytes_max)
        self._offsets = CommittedOffsets(own.offsets_file, limits.offsets_max, memory)
        self._groups = GroupCoordinator(limits, memory, new_member_id)
        self._archive = ArchiveWatch(rlmm, own.refresh_interval_ms / 1000, READS_AT_ONCE_MAX)
        clock = asyncio.get_running_loop().time
        self._users = None if own.users_file is None else UsersFile(own.users_file)
        self._parts = ArchiveOnlyParts(
            config=own,
            gateway=config.gateway,
            limits=limits,
            cluster_id=cluster_id(config.store.url or ""),
            rlmm=rlmm,
            purgatory=purgatory,
            archive=self._archive,
            groups=self._groups,
            offsets=self._offsets,
            logins=None if self._users is None else Logins(self._users, clock),
            answers=AnswerBudget(
                limits.remote_answer_bytes_max, config.gateway.remote_answers_bytes_max
            ),
            turns=AnswerTurns(
                limits.remote_answer_turns_max, limits.remote_answer_turn_max_ms / 1000
            ),
            rates=ClientRates(config.remote_fetch.client_bytes_per_s_max, clock),
            skipped=SkippedOffsets(),
            warn=SparingWarnings(clock).warn,
            clock=clock,
        )
        self._limits = ConnectionLimits(config.gateway, self._parts.warn)
        self._serving: dict[asyncio.Task[None], Connection] = {}
        self._stack = AsyncExitStack()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            if self._users is not None:
                await self._users.load()
            await opened.enter_async_context(self._offsets)
            await self._archive.load()
            listen = parse_host_port(self._config.listen)
            # Bound before there are tasks: a group of errors would hide that the port is taken.
            make_protocol: Callable[[], asyncio.BaseProtocol]
            self._server = await asyncio.get_running_loop().create_server(
                lambda: make_protocol(),
                listen.host,
                listen.port,
                backlog=1024,
                start_serving=False,
            )
            opened.callback(self._server.close)
            self._tasks = await opened.enter_async_context(asyncio.TaskGroup())
            make_protocol = self._protocol_factory(listen.host)
            await self._server.start_serving()
            self._own_tasks = [
                self._tasks.create_task(self._archive.run(), name="archive-watch"),
                self._tasks.create_task(self._sweep(), name="connection-sweeper"),
            ]
            if self._users is not None:
                self._own_tasks.append(self._tasks.create_task(self._users.run(), name="users"))
            self._stack = opened.pop_all()
        if tells_address_reached(self._config):
            warn_of_address_reached(self._config, "archive_only")
        closed = self._users is not None or self._config.tls_client_auth == "required"
        if not is_loopback(listen.host) and not closed:
            log.warning(
                "archive_open_to_anybody",
                host=listen.host,
                port=self.port,
                hint="archive_only.users_file lets in only users with a password, "
                "gateway.tls_client_auth = required only who has a certificate",
            )
        log.info(
            "archive_only_listening",
            host=listen.host,
            port=self.port,
            topics=len(self._archive.catalogue.by_name),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        if self._acceptor is not None:
            self._acceptor.close()
        self._groups.close()
        for task in (*self._own_tasks, *self._serving):
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
        return self._limits.count(self._acceptor)

    def node_addresses(self) -> dict[int, Address]:
        """What clients are told, by node id."""
        host = parse_host_port(self._config.listen).host
        return {NODE_ID: self._advertised((host, self.port))}

    def _advertised(self, local: Address) -> Address:
        """A listener on all addresses is told by the one that the client has reached."""
        host = self._config.advertise_host or parse_host_port(self._config.listen).host
        return (local[0] if tells_address_reached(self._config) else host), self.port

    def _protocol_factory(self, host: str) -> Callable[[], asyncio.BaseProtocol]:
        if self._tls is None:
            if not is_loopback(host):
                log.warning("plaintext_beyond_loopback", listener="archive_only", host=host)
            return lambda: _ClientProtocol(self._made)
        self._acceptor = TlsAcceptor(
            self._tls,
            self._tasks,
            self._parts.limits.tls_handshake_max_ms,
            admit=self._admit,
            changed=self._count,
            warn=self._parts.warn,
        )
        return self._acceptor.protocol_factory(
            # It has that protocol's methods, but asyncio shall hand it data as to a stream.
            lambda _: cast(asyncio.BufferedProtocol, _ClientProtocol(self._made))
        )

    def _admit(self, client: str) -> bool:
        return self._limits.admit(client, self._acceptor)

    def _made(self, reader: StreamReader, writer: StreamWriter) -> Callable[[], None]:
        """Serve a new connection; the result is called when it is lost."""
        connection = Connection(self._parts, reader, writer, self._advertised)
        if not self._admit(connection.client):
            writer.close()
            return lambda: None
        task = self._tasks.create_task(self._serve(connection), name=f"client-{connection.client}")
        self._serving[task] = connection
        self._limits.opened(connection.client)
        task.add_done_callback(self._gone)
        self._count()
        return lambda: _cancel(task)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve()
        except Exception as error:
            log.error("session_crashed", client=connection.client, error=repr(error), exc_info=True)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._limits.closed(self._serving.pop(task).client)
        self._count()

    async def _sweep(self) -> None:
        """Let go of clients that are gone, where nothing else would tell."""
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            for number, connection in enumerate(list(self._serving.values()), 1):
                if connection.reset_unheard:
                    connection.abort()
                if not number % _SWEPT_AT_ONCE:
                    await asyncio.sleep(0)

    def _count(self) -> None:
        CONNECTIONS.set(self.connections)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def cluster_id(store_url: str) -> str:
    """The same for the same archive, in the form of Kafka's own; says nothing of the URL."""
    address = store_url.partition("?")[0]
    return urlsafe_b64encode(uuid5(NAMESPACE_URL, address).bytes).decode().rstrip("=")
