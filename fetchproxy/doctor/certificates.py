"""Checks of certificates, keys of encryption, and the users' file.

OpenSSL judges certificates, as it does for clients: a client's and the listener's context shake
hands in memory (docs/adr/0076).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from fetchproxy.config.values import mask_text
from fetchproxy.doctor.installation import (
    NOTHING,
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
    Passed,
)
from fetchproxy.doctor.listeners import advertised_hosts, trusting
from fetchproxy.errors import ConfigError
from fetchproxy.model import RemoteLogSegmentId, TopicIdPartition
from fetchproxy.serving.archive_only.logins import Logins
from fetchproxy.storage.ciphers import KEY_BYTES
from fetchproxy.storage.key_rings import KeyRing, key_context
from fetchproxy.storage.remote_storage import at_rest_of
from fetchproxy.tls.alerts import HANDSHAKE_PEER
from fetchproxy.tls.contexts import LoadedContext, client_context, server_context
from fetchproxy.tls.reloading import EXPIRY_WARNING_MS

_DAY_MS = 86_400_000
# OpenSSL's codes (x509_vfy.h): the name, or the address, does not match.
_NAME_MISMATCHES = (62, 64)
_FLIGHTS_MAX = 10  # of a handshake in memory
_HOUR_MS = 3_600_000


class _Peer:
    """The other side of a handshake in memory, for `ServerSideContext`."""

    server_name: str | None = None

    def send(self, data: bytes) -> None:
        """The client's error says what is wrong."""

    def knows(self, server_name: str | None) -> bool:
        return True


async def _listener_loads(installation: Installation) -> Sequence[Finding]:
    await _listener(installation)
    return NOTHING


async def _listener(installation: Installation) -> LoadedContext:
    gateway = installation.config.gateway
    if gateway.tls_certificate_file is None:
        raise DoesNotApply("`gateway.tls_certificate_file` is not set: clients speak plaintext")
    try:
        return await asyncio.to_thread(server_context, gateway, installation.config.tls)
    except ConfigError as error:
        raise _Unusable(str(error), gateway.tls_certificate_file) from error


def _certificate(installation: Installation) -> Path:
    file = installation.config.gateway.tls_certificate_file
    assert file is not None
    return file


class _Unusable(ConfigError):
    def __init__(self, fault: str, file: Path) -> None:
        super().__init__(fault)
        self.words = {"file": file}


async def _upstream_loads(installation: Installation) -> Sequence[Finding]:
    await _upstream(installation)
    return NOTHING


async def _upstream(installation: Installation) -> LoadedContext:
    cluster = installation.config.cluster
    if not cluster.security_protocol.endswith("SSL") or installation.config.archive_only.enabled:
        raise DoesNotApply(f"cluster.security_protocol = {cluster.security_protocol}")
    return await asyncio.to_thread(client_context, cluster, installation.config.tls)


async def _none_has_expired(installation: Installation) -> Sequence[Finding]:
    return [
        Finding(f"{file} expired {-left_ms // _HOUR_MS} hours ago", {"file": file})
        for file, left_ms in await _times_left(installation)
        if left_ms <= 0
    ]


async def _none_expires_soon(installation: Installation) -> Sequence[Finding]:
    return [
        Finding(f"{file} expires in {left_ms // _DAY_MS} days", {"file": file})
        for file, left_ms in await _times_left(installation)
        if left_ms <= EXPIRY_WARNING_MS
    ]


async def _times_left(installation: Installation) -> list[tuple[Path, int]]:
    """(file, ms until the certificate ends) of the proxy's own ones. Raises NotChecked if there is
    none.
    """
    times_left: list[tuple[Path, int]] = []
    config = installation.config
    for load, file in (
        (_listener, config.gateway.tls_certificate_file),
        (_upstream, config.cluster.tls_certificate_file),
    ):
        if file is not None and (ends_s := (await load(installation)).not_after) is not None:
            times_left.append((file, ends_s * 1000 - installation.wall_clock_ms()))
    if not times_left:
        raise DoesNotApply("the proxy has no certificate")
    return times_left


async def _is_for_the_names(installation: Installation) -> Sequence[Finding]:
    loaded, file = await _listener(installation), _certificate(installation)
    findings: list[Finding] = []
    for name in await advertised_hosts(installation):
        error = certificate_error(loaded.context, trusting(file), name)
        if error is not None and error.verify_code in _NAME_MISMATCHES:
            reason = f"{file} is not for {name}: {error.verify_message}"
            findings.append(Finding(reason, {"name": name, "file": file}))
    return findings


async def _can_be_verified(installation: Installation) -> Sequence[Finding]:
    loaded, file = await _listener(installation), _certificate(installation)
    error = certificate_error(loaded.context, trusting(file), None) or certificate_error(
        loaded.context, trusting(file, last_only=True), None
    )
    return [] if error is None else [Finding(f"{file}: {error.verify_message}", {"file": file})]


def certificate_error(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str | None
) -> ssl.SSLCertVerificationError | None:
    """Why `client` refuses `server`'s certificate for `name` (None: for whatever name); None: it
    accepts it. The contexts are used for nothing else afterwards.
    """
    server.verify_mode = ssl.CERT_NONE
    client.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    token = HANDSHAKE_PEER.set(_Peer())
    try:
        server_half = server.wrap_bio(to_server, to_client, server_side=True)
    finally:
        HANDSHAKE_PEER.reset(token)
    other = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(_FLIGHTS_MAX):
        for side in (other, server_half):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error
            if side is other:
                return None
    return None


# --- keys of encryption, and users ---


async def _ring(installation: Installation) -> KeyRing:
    """Raises ConfigError, NotChecked."""
    at_rest = await asyncio.to_thread(at_rest_of, installation.config.store)
    if at_rest.keys is None:
        raise DoesNotApply("`store.encryption_keys` is not set")
    return at_rest.keys


async def _ring_opens(installation: Installation) -> Sequence[Finding]:
    await (await _ring(installation)).close()
    return NOTHING


async def _ring_works(installation: Installation) -> Sequence[Finding]:
    ring = await _ring(installation)
    try:
        if not ring.writes:
            raise DoesNotApply("the key ring has no active key")
        nothing = TopicIdPartition(UUID(int=0), "doctor", 0)
        context = key_context(RemoteLogSegmentId(nothing, UUID(int=0)), "")
        data_key = os.urandom(KEY_BYTES)
        same = await ring.unwrap(await ring.wrap(data_key, context), context) == data_key
    finally:
        await ring.close()
    return NOTHING if same else [Finding("the key ring returned a different key")]


async def _ring_is_active(installation: Installation) -> Sequence[Finding]:
    ring = await _ring(installation)
    await ring.close()
    if not installation.archives or ring.writes:
        return NOTHING
    ring_url = mask_text(installation.config.store.encryption_keys or "")
    return [Finding(f"the key ring {ring_url} has no active key, and this process archives")]


async def _users_can_be_read(installation: Installation) -> Passed | Sequence[Finding]:
    file = installation.config.archive_only.users_file
    if file is None:
        raise DoesNotApply("`archive_only.users_file` is not set")
    try:
        logins = Logins(file)
        try:
            await logins.load()
        finally:
            logins.close()
    except ConfigError as error:
        raise _Unusable(str(error), file) from error
    return Passed(f"{len(logins.users)} users")


CERTIFICATE_CHECKS: Mapping[str, CheckFunction] = {
    "FP0401": _listener_loads,
    "FP0402": _upstream_loads,
    "FP0403": _none_has_expired,
    "FP0404": _none_expires_soon,
    "FP0405": _is_for_the_names,
    "FP0406": _can_be_verified,
    "FP0407": _ring_opens,
    "FP0408": _ring_works,
    "FP0409": _ring_is_active,
    "FP0410": _users_can_be_read,
}
