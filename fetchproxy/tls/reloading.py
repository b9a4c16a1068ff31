"""TLS contexts whose files are read again when they change."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from fetchproxy.config.schema import ClusterConfig, GatewayConfig, TlsConfig
from fetchproxy.errors import ConfigError
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.metrics import TLS_CERTIFICATE_EXPIRY, TLS_FILES_UNUSABLE, TLS_RELOADS
from fetchproxy.runtime.folders import Stamp, stamp_of
from fetchproxy.tls.contexts import LoadedContext, client_context, files_of, server_context
from fetchproxy.tls.protocol import RECEIVE_BYTES, TlsProtocol

log = structlog.get_logger(__name__)

EXPIRY_WARNING_INTERVAL_S = 86_400.0
# Time between two checks of the files of certificates, keys and authorities: a stat each.
RELOAD_INTERVAL_MS = 10_000
# A certificate with less time left than this causes a warning once a day. ACME renews 30 days
# ahead; at half of that, renewing has failed, and there is time to repair it.
EXPIRY_WARNING_MS = 14 * 24 * 3_600_000


@dataclass(eq=False, repr=False)
class ReloadingContext:
    """A context that is reloaded when its files change; new connections use the new context.
    `receive` is the buffer into which all of them receive, so they have to be of one loop.

    If new files cannot be used, the old context stays in use; this is logged once and shown as a
    metric. `place` is "listener" or "upstream". Raises ConfigError if the first load fails.
    """

    place: str
    load: Callable[[], LoadedContext]
    files: Sequence[Path]

    def __post_init__(self) -> None:
        self._loaded_stamps = self._stamps()
        self._fault: str | None = None
        self._loaded = self.load()
        self.receive = memoryview(bytearray(RECEIVE_BYTES))
        self._warned_at: float | None = None
        self.health = Health()
        self._show()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new connections."""
        return self._loaded.context

    def protocol(
        self,
        app: asyncio.BaseProtocol,
        waiter: asyncio.Future[None],
        handshake_max_s: float,
        server_hostname: str | None = None,
    ) -> TlsProtocol:
        """TLS for a new connection, see `TlsProtocol`."""
        return TlsProtocol(
            self.receive, app, self.context, waiter, handshake_max_s, server_hostname
        )

    async def reload_if_changed(self) -> None:
        """Reloads if a file has changed, or could not be used at the last check."""
        stamps = await asyncio.to_thread(self._stamps)
        if stamps == self._loaded_stamps and self._fault is None:
            return
        try:
            loaded = await asyncio.to_thread(self.load)
        except ConfigError as error:
            TLS_FILES_UNUSABLE.labels(self.place).set(1)
            if str(error) != self._fault:  # another error: report it again
                self.health.forget(Kind.TLS_FILES_UNUSABLE, self.place)
            self._fault = str(error)
            message = f"The {self.place}'s new TLS files cannot be used; the old ones stay: {error}"
            self.health.report(
                Condition(Kind.TLS_FILES_UNUSABLE, message, self.place), error=self._fault
            )
            return
        # Stamps from before the load: a file that changed meanwhile is loaded at the next check.
        self._loaded_stamps, self._loaded, self._fault = stamps, loaded, None
        self._warned_at = None
        self.health.clear(Kind.TLS_FILES_UNUSABLE, self.place)
        TLS_RELOADS.labels(self.place).inc()
        log.info("tls_files_reloaded", place=self.place)
        self._show()

    def warn_of_expiry(self, wall_clock_ms: int, warning_ms: int) -> None:
        """Warns at most once a day."""
        ends = self._loaded.not_after
        if ends is None or ends * 1000 - wall_clock_ms > warning_ms:
            self.health.forget(Kind.TLS_CERTIFICATE_EXPIRES, self.place)
            return
        now = asyncio.get_running_loop().time()
        until = now + ends - wall_clock_ms / 1000
        message = f"The {self.place}'s certificate {'ends soon' if until > now else 'has ended'}"
        self.health.hold(Condition(Kind.TLS_CERTIFICATE_EXPIRES, message, self.place, until=until))
        if self._warned_at is not None and now - self._warned_at < EXPIRY_WARNING_INTERVAL_S:
            return
        self._warned_at = now
        hours_left = (ends * 1000 - wall_clock_ms) // 3_600_000
        event = "tls_certificate_expires" if hours_left >= 0 else "tls_certificate_expired"
        log.warning(event, place=self.place, hours_left=hours_left)

    def _show(self) -> None:
        TLS_FILES_UNUSABLE.labels(self.place).set(0)
        if self._loaded.not_after is not None:
            TLS_CERTIFICATE_EXPIRY.labels(self.place).set(self._loaded.not_after)

    def _stamps(self) -> list[Stamp]:
        return [stamp_of(file) for file in self.files]


def listener_context(config: GatewayConfig, tls: TlsConfig) -> ReloadingContext | None:
    """None: clients speak plaintext. Raises ConfigError."""
    if config.tls_certificate_file is None:
        return None
    return ReloadingContext("listener", lambda: server_context(config, tls), files_of(config))


def upstream_context(config: ClusterConfig, tls: TlsConfig) -> ReloadingContext | None:
    """None: `cluster.security_protocol` has no TLS. Raises ConfigError."""
    if not config.security_protocol.endswith("SSL"):
        return None
    return ReloadingContext("upstream", lambda: client_context(config, tls), files_of(config))


async def keep_fresh(
    contexts: Iterable[ReloadingContext | None],
    wall_clock_ms: Callable[[], int],
    interval_ms: int = RELOAD_INTERVAL_MS,
) -> None:
    """Reloads and warns until cancelled. `wall_clock_ms` returns epoch milliseconds."""
    in_use = [context for context in contexts if context is not None]
    while True:
        for context in in_use:
            await context.reload_if_changed()
            context.warn_of_expiry(wall_clock_ms(), EXPIRY_WARNING_MS)
        await asyncio.sleep(interval_ms / 1000)
