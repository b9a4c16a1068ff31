"""Checks of the settings that have been read."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fetchproxy.archive import store_url
from fetchproxy.config.load import Loaded, all_keys
from fetchproxy.config.values import (
    HostPort,
    SecretFile,
    is_any_address,
    is_loopback,
    parse_bootstrap,
    parse_host_port,
)
from fetchproxy.doctor.installation import (
    NOTHING,
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
)

_FILES_WITH_KEYS = ("gateway.tls_key_file", "cluster.tls_key_file")


async def _can_be_used(installation: Installation) -> Sequence[Finding]:
    """They were read; what cannot be read is found by `runner.examine`."""
    return NOTHING


async def _has_a_store(installation: Installation) -> Sequence[Finding]:
    store_url(installation.config)
    return NOTHING


async def _not_itself(installation: Installation) -> Sequence[Finding]:
    return [Finding(f"{address} is `gateway.listen`") for address in own_addresses(installation)]


def own_addresses(installation: Installation) -> list[HostPort]:
    """The bootstrap addresses that are the listener's. Raises DoesNotApply."""
    config = installation.config
    if config.archive_only.enabled:
        raise DoesNotApply("in archive-only mode there are no brokers")
    listen = parse_host_port(config.gateway.listen)
    return [a for a in parse_bootstrap(config.cluster.bootstrap) if _is_same(a, listen)]


def _is_same(address: HostPort, listen: HostPort) -> bool:
    if address.port != listen.port or not listen.port:
        return False
    if address.host.lower() == listen.host.lower():
        return True
    return is_loopback(address.host) and (is_any_address(listen.host) or is_loopback(listen.host))


async def _secrets_are_closed(installation: Installation) -> Sequence[Finding]:
    files = dict(secret_files(installation.loaded, installation.file))
    return await asyncio.to_thread(lambda: list(_open_to_others(files)))


def secret_files(loaded: Loaded, file: Path | None) -> Iterator[tuple[Path, str]]:
    """The files with secrets, and what is in them."""
    for key in all_keys().values():
        value = loaded.value_of(key)
        if value is None:
            continue
        if key.dotted in _FILES_WITH_KEYS and isinstance(value, Path):
            yield value, "a private key"
        if not key.is_secret:
            continue
        if isinstance(value, SecretFile):
            yield value.file, f"the secret {key.dotted}"
        elif file is not None and loaded.place_of(key).startswith(str(file)):
            yield file, f"the secret {key.dotted}"


def _open_to_others(files: Mapping[Path, str]) -> Iterator[Finding]:
    for path, content in files.items():
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # whoever reads it says so
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            reason = f"{path} contains {content}, but its mode is {stat.S_IMODE(mode):04o}"
            yield Finding(reason, {"file": path})


SETTINGS_CHECKS: Mapping[str, CheckFunction] = {
    "FP0001": _can_be_used,
    "FP0002": _has_a_store,
    "FP0003": _not_itself,
    "FP0004": _secrets_are_closed,
}
