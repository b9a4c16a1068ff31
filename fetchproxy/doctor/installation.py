"""What the checks look at: the settings, this machine, and the opened parts of the installation.

Everything is opened once for all checks, by the functions that `fetchproxy serve` and `archive`
start with. A `CheckFunction` returns what is wrong, or raises a domain error whose text says it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import uuid4

from fetchproxy.archive import store_url
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.topic_writers import own_principal
from fetchproxy.config.load import Loaded
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort, is_any_address, parse_bootstrap, parse_host_port
from fetchproxy.doctor.machine import Machine
from fetchproxy.errors import ClusterError, ConfigError, RemoteStorageError
from fetchproxy.storage.attached_topics import open_archive
from fetchproxy.storage.remote_storage import RemoteStorage, at_rest_of
from fetchproxy.storage.stores.registry import parse_store_url, without_secrets
from fetchproxy.storage.stores.retries import tried_once
from fetchproxy.tls.reloading import ReloadingContext, upstream_context

# Parts that hang at their end do not hang the command.
_CLOSE_MAX_S = 2.0
NOTHING: Sequence[Finding] = ()

T = TypeVar("T")


class Finding(NamedTuple):
    """`words`: fill the remedy, beside those of `Installation.words`."""

    reason: str
    words: Mapping[str, object] = {}


class NotChecked(Exception):
    """The check cannot tell; its text says why."""


class DoesNotApply(NotChecked):
    """These settings do not need what the check is about."""


class Passed(NamedTuple):
    """Nothing is wrong. `note` is shown behind the check."""

    note: str = ""


@dataclass(kw_only=True)
class Installation:
    """One examination. `before`: nothing runs yet. `present`: the settings of the process that runs
    now, if another file is examined. `file`: the settings' file.
    """

    loaded: Loaded
    machine: Machine
    wall_clock_ms: Callable[[], int]
    before: bool = False
    present: Loaded | None = None
    file: Path | None = None
    id: str = field(default_factory=lambda: uuid4().hex)  # in the names of probe objects
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    _cluster: Cluster | None = None
    _storage: RemoteStorage | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _storage_opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def config(self) -> Config:
        return self.loaded.config

    def check_has_brokers(self) -> None:
        """Raises DoesNotApply in archive-only mode."""
        if self.config.archive_only.enabled:
            raise DoesNotApply("in archive-only mode there are no brokers")

    async def cluster(self) -> Cluster:
        """Raises ConfigError, NotChecked."""
        self.check_has_brokers()
        async with self._opening:
            if self._cluster is None:
                self._cluster = Cluster(self.config.cluster, tls=await self.upstream())
                self.resources.push_async_callback(self._cluster.__aexit__, None, None, None)
        return self._cluster

    async def upstream(self) -> ReloadingContext | None:
        """TLS with the brokers. Raises NotChecked, as another check says what is wrong with it."""
        try:
            # On a thread, because the files' disk may hang.
            config = self.config
            return await asyncio.to_thread(upstream_context, config.cluster, config.tls)
        except ConfigError as error:
            raise NotChecked("the files for TLS with brokers cannot be used") from error

    async def storage(self) -> RemoteStorage:
        """Raises ConfigError, RemoteStorageError, NotChecked."""
        if self.config.store.url is None:
            raise NotChecked("`store.url` is not set")
        parse_store_url(self.config.store.url)
        async with self._storage_opening:
            if self._storage is None:
                try:
                    await asyncio.to_thread(at_rest_of, self.config.store)
                except ConfigError as error:
                    raise NotChecked("the key ring cannot be used") from error
                # On a thread, as the client's modules take half a second to load.
                storage = await asyncio.to_thread(open_archive, self.config)
                self.resources.push_async_callback(storage.__aexit__, None, None, None)
                with tried_once():
                    await storage.__aenter__()
                self._storage = storage
        return self._storage

    @property
    def prefix(self) -> str:
        """Of the archive in its store."""
        return str(getattr(parse_store_url(store_url(self.config)), "prefix", ""))

    @property
    def archives(self) -> bool:
        return self.config.archive.topics is not None

    def clients_address(self) -> HostPort:
        """Where a client on this machine begins."""
        gateway = self.config.gateway
        listen = parse_host_port(gateway.listen)
        host = gateway.sni_bootstrap_host or gateway.advertise_host or listen.host
        if is_any_address(host):
            host = "::1" if ":" in host else "127.0.0.1"
        return HostPort(host, listen.port)

    def words(self) -> dict[str, object]:
        """For remedies: what commands are called with."""
        config = self.config
        first = parse_bootstrap(config.cluster.bootstrap)[0]
        return {
            "bootstrap": config.cluster.bootstrap,
            "host": first.host,
            "port": first.port,
            "address": self.clients_address(),
            "console": config.console.listen or "CONSOLE",
            "principal": own_principal(config.cluster) or "User:NAME",
            "group": config.archive.group_id or "GROUP",
            "user": os.geteuid(),
            "store": without_secrets(config.store.url or ""),
        }

    async def close(self) -> None:
        with suppress(TimeoutError):  # what cannot close in time is left to the process's end
            async with asyncio.timeout(_CLOSE_MAX_S):
                await self.resources.aclose()


CheckFunction = Callable[[Installation], Awaitable[Passed | Sequence[Finding]]]


async def from_brokers(call: Awaitable[T]) -> T:
    """The result of a request to the brokers, for checks about something else than the brokers.
    Raises NotChecked while the brokers do not answer, since other checks report that.
    """
    try:
        return await call
    except ClusterError as error:
        raise NotChecked(f"the brokers do not say ({error})") from error


async def from_store(call: Awaitable[T]) -> T:
    """As `from_brokers`, for the store."""
    try:
        return await call
    except RemoteStorageError as error:
        raise NotChecked(f"the store does not say ({error})") from error
