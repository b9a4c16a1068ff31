"""Contexts that follow their files: what is new is used for new connections, without a restart.

Files that cannot be used leave the old context in force, which is said once and shown as a metric.
Connections that are open keep the context they began with.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from fetchproxy.config.sections import ClusterConfig, GatewayConfig, TlsConfig
from fetchproxy.errors import ConfigError
from fetchproxy.observability.metrics import (
    TLS_CERTIFICATE_EXPIRY,
    TLS_FILES_UNUSABLE,
    TLS_RELOADS,
)
from fetchproxy.tls.contexts import LoadedContext, client_context, files_of, server_context

log = structlog.get_logger(__name__)

EXPIRY_WARNING_INTERVAL_S = 86_400.0

Stamp = tuple[int, int, int] | None


class ReloadingContext:
    """`place` is "listener" or "upstream". Raises ConfigError where the first load fails."""

    def __init__(
        self, place: str, load: Callable[[], LoadedContext], files: Sequence[Path]
    ) -> None:
        self.place = place
        self._load = load
        self._files = files
        self._seen = self._stamps()
        self._fault: str | None = None
        self._loaded = load()
        self._warned_at: float | None = None
        self._show()

    @property
    def context(self) -> ssl.SSLContext:
        """For the connection that is made now."""
        return self._loaded.context

    async def look(self) -> None:
        """Load anew if a file has changed, or could not be used at the last look."""
        stamps = await asyncio.to_thread(self._stamps)
        if stamps == self._seen and self._fault is None:
            return
        try:
            loaded = await asyncio.to_thread(self._load)
        except ConfigError as error:
            TLS_FILES_UNUSABLE.labels(self.place).set(1)
            if str(error) != self._fault:
                log.error("tls_files_unusable", place=self.place, error=str(error))
            self._fault = str(error)
            return
        # Stamps from before the load: a file that changed meanwhile is loaded at the next look.
        self._seen, self._loaded, self._fault = stamps, loaded, None
        self._warned_at = None
        TLS_RELOADS.labels(self.place).inc()
        log.info("tls_files_reloaded", place=self.place)
        self._show()

    def warn_of_expiry(self, wall_clock_ms: int, warning_ms: int) -> None:
        """At most once a day."""
        ends = self._loaded.not_after
        if ends is None or ends * 1000 - wall_clock_ms > warning_ms:
            return
        now = asyncio.get_running_loop().time()
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
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> Stamp:
    """Follows symbolic links, which is how Kubernetes swaps a secret."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


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
    contexts: Iterable[ReloadingContext | None], config: TlsConfig, wall_clock_ms: Callable[[], int]
) -> None:
    """Until cancelled. `wall_clock_ms` gives epoch milliseconds."""
    in_use = [context for context in contexts if context is not None]
    while True:
        for context in in_use:
            await context.look()
            context.warn_of_expiry(wall_clock_ms(), config.expiry_warning_ms)
        await asyncio.sleep(config.reload_interval_ms / 1000)
