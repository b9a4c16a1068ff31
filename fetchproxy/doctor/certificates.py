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
from fetchproxy.doctor.listeners import advertised_hosts, trusting
from fetchproxy.doctor.scene import NOTHING, DoesNotApply, Finding, Look, Passed, Scene
from fetchproxy.errors import ConfigError
from fetchproxy.model import RemoteLogSegmentId, TopicIdPartition
from fetchproxy.serving.archive_only.logins import Logins
from fetchproxy.storage.ciphers import KEY_BYTES
from fetchproxy.storage.key_rings import KeyRing, key_context
from fetchproxy.storage.remote_storage import at_rest_of
from fetchproxy.tls.alerts import SHAKING
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


async def _listener_loads(scene: Scene) -> Sequence[Finding]:
    await _listener(scene)
    return NOTHING


async def _listener(scene: Scene) -> LoadedContext:
    gateway = scene.config.gateway
    if gateway.tls_certificate_file is None:
        raise DoesNotApply("`gateway.tls_certificate_file` is not set: clients speak plaintext")
    try:
        return await asyncio.to_thread(server_context, gateway, scene.config.tls)
    except ConfigError as error:
        raise _Unusable(str(error), gateway.tls_certificate_file) from error


def _certificate(scene: Scene) -> Path:
    file = scene.config.gateway.tls_certificate_file
    assert file is not None
    return file


class _Unusable(ConfigError):
    def __init__(self, fault: str, file: Path) -> None:
        super().__init__(fault)
        self.words = {"file": file}


async def _upstream_loads(scene: Scene) -> Sequence[Finding]:
    await _upstream(scene)
    return NOTHING


async def _upstream(scene: Scene) -> LoadedContext:
    cluster = scene.config.cluster
    if not cluster.security_protocol.endswith("SSL") or scene.config.archive_only.enabled:
        raise DoesNotApply(f"cluster.security_protocol = {cluster.security_protocol}")
    return await asyncio.to_thread(client_context, cluster, scene.config.tls)


async def _none_has_ended(scene: Scene) -> Sequence[Finding]:
    return [
        Finding(f"{file} expired {-left_ms // _HOUR_MS} hours ago", {"file": file})
        for file, left_ms in await _times_left(scene)
        if left_ms <= 0
    ]


async def _none_ends_soon(scene: Scene) -> Sequence[Finding]:
    return [
        Finding(f"{file} expires in {left_ms // _DAY_MS} days", {"file": file})
        for file, left_ms in await _times_left(scene)
        if left_ms <= EXPIRY_WARNING_MS
    ]


async def _times_left(scene: Scene) -> list[tuple[Path, int]]:
    """(file, ms until the certificate ends) of the proxy's own ones. Raises NotChecked if there is
    none.
    """
    times_left: list[tuple[Path, int]] = []
    config = scene.config
    for load, file in (
        (_listener, config.gateway.tls_certificate_file),
        (_upstream, config.cluster.tls_certificate_file),
    ):
        if file is not None and (ends_s := (await load(scene)).not_after) is not None:
            times_left.append((file, ends_s * 1000 - scene.wall_clock_ms()))
    if not times_left:
        raise DoesNotApply("the proxy has no certificate")
    return times_left


async def _is_for_the_names(scene: Scene) -> Sequence[Finding]:
    loaded, file = await _listener(scene), _certificate(scene)
    findings: list[Finding] = []
    for name in await advertised_hosts(scene):
        error = shaken(loaded.context, trusting(file), name)
        if error is not None and error.verify_code in _NAME_MISMATCHES:
            reason = f"{file} is not for {name}: {error.verify_message}"
            findings.append(Finding(reason, {"name": name, "file": file}))
    return findings


async def _can_be_verified(scene: Scene) -> Sequence[Finding]:
    loaded, file = await _listener(scene), _certificate(scene)
    error = shaken(loaded.context, trusting(file), None) or shaken(
        loaded.context, trusting(file, last_only=True), None
    )
    return [] if error is None else [Finding(f"{file}: {error.verify_message}", {"file": file})]


def shaken(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str | None
) -> ssl.SSLCertVerificationError | None:
    """Why `client` refuses `server`'s certificate for `name` (None: for whatever name); None: it
    accepts it. The contexts are used for nothing else afterwards.
    """
    server.verify_mode = ssl.CERT_NONE
    client.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    token = SHAKING.set(_Peer())
    try:
        server_half = server.wrap_bio(to_server, to_client, server_side=True)
    finally:
        SHAKING.reset(token)
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


async def _ring(scene: Scene) -> KeyRing:
    """Raises ConfigError, NotChecked."""
    at_rest = await asyncio.to_thread(at_rest_of, scene.config.store)
    if at_rest.keys is None:
        raise DoesNotApply("`store.encryption_keys` is not set")
    return at_rest.keys


async def _ring_opens(scene: Scene) -> Sequence[Finding]:
    await (await _ring(scene)).close()
    return NOTHING


async def _ring_works(scene: Scene) -> Sequence[Finding]:
    ring = await _ring(scene)
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


async def _ring_is_active(scene: Scene) -> Sequence[Finding]:
    ring = await _ring(scene)
    await ring.close()
    if not scene.archives or ring.writes:
        return NOTHING
    ring_url = mask_text(scene.config.store.encryption_keys or "")
    return [Finding(f"the key ring {ring_url} has no active key, and this process archives")]


async def _users_can_be_read(scene: Scene) -> Passed | Sequence[Finding]:
    file = scene.config.archive_only.users_file
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


CERTIFICATE_LOOKS: Mapping[str, Look] = {
    "FP0401": _listener_loads,
    "FP0402": _upstream_loads,
    "FP0403": _none_has_ended,
    "FP0404": _none_ends_soon,
    "FP0405": _is_for_the_names,
    "FP0406": _can_be_verified,
    "FP0407": _ring_opens,
    "FP0408": _ring_works,
    "FP0409": _ring_is_active,
    "FP0410": _users_can_be_read,
}
