"""SSL contexts from the files that the configuration names, reloaded while the process runs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol, TypeVar, cast

import structlog

from fetchproxy.config.schema import ClusterConfig, GatewayConfig, TlsConfig
from fetchproxy.config.values import secret_file, secret_from
from fetchproxy.errors import ConfigError
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.metrics import TLS_CERTIFICATE_EXPIRY, TLS_FILES_UNUSABLE, TLS_RELOADS
from fetchproxy.runtime.folders import Stamp, stamp_of
from fetchproxy.tls.protocol import RECEIVE_BYTES, TlsProtocol

_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def first_certificate(pem: str) -> bytes:
    """The DER bytes of the first certificate in a PEM file. Raises ValueError."""
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if begin < 0 or end < begin:
        raise ValueError("holds no certificate")
    return ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)])


def not_after(der: bytes) -> int:
    """Epoch seconds at which the certificate ends (RFC 5280, 4.1.2.5). Reads nothing else of the
    certificate. Raises ValueError.
    """
    try:
        certificate = _content(der, 0, _SEQUENCE)
        fields = _content(certificate, 0, _SEQUENCE)
        at = _behind(fields, 0) if fields[0] == _VERSION else 0
        for _ in range(3):  # serial number, signature algorithm, issuer
            at = _behind(fields, at)
        validity = _content(fields, at, _SEQUENCE)
        at = _behind(validity, 0)
        return _epoch_seconds(validity[at], _content(validity, at, validity[at]))
    except IndexError:
        raise ValueError("is not a certificate") from None


def _header(der: bytes, at: int) -> tuple[int, int]:
    """(where the content of the element at `at` begins, its length)."""
    length = der[at + 1]
    if length < 0x80:
        return at + 2, length
    size = length & 0x7F
    return at + 2 + size, int.from_bytes(der[at + 2 : at + 2 + size])


def _content(der: bytes, at: int, tag: int) -> bytes:
    if der[at] != tag:
        raise ValueError("is not a certificate")
    begin, length = _header(der, at)
    return der[begin : begin + length]


def _behind(der: bytes, at: int) -> int:
    begin, length = _header(der, at)
    return begin + length


def _epoch_seconds(tag: int, text: bytes) -> int:
    digits = text.decode("ascii").removesuffix("Z")
    if tag == _UTC_TIME:
        digits = ("19" if digits >= "50" else "20") + digits
    elif tag != _GENERALIZED_TIME:
        raise ValueError("is not a certificate")
    return int(datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp())


# Failed handshakes in words, as OpenSSL's reasons name its own functions. Pure.

# The first three bytes of a TLS record with a handshake or an alert, versions 3.0 to 3.4.
_RECORD_STARTS = frozenset((kind << 16) | (3 << 8) | minor for kind in (0x15, 0x16)
                           for minor in range(5))  # fmt: skip

_REASONS = {
    # OpenSSL's reasons for bytes that are not TLS; they depend on its version and the bytes.
    "WRONG_VERSION_NUMBER": "plaintext",
    "RECORD_LAYER_FAILURE": "plaintext",
    "PACKET_LENGTH_TOO_LONG": "plaintext",
    "HTTP_REQUEST": "plaintext",
    "UNSUPPORTED_PROTOCOL": "version",
    "NO_PROTOCOLS_AVAILABLE": "version",
    "TLSV1_ALERT_PROTOCOL_VERSION": "version",
    "NO_SHARED_CIPHER": "version",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "no_certificate",
    "CERTIFICATE_VERIFY_FAILED": "certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "certificate_refused",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "certificate_refused",
    "SSLV3_ALERT_BAD_CERTIFICATE": "certificate_refused",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "certificate_refused",
    "CALLBACK_FAILED": "server_name",
    "TLSV1_UNRECOGNIZED_NAME": "server_name",
}
_WORDS = {
    "plaintext": "the other side does not speak TLS, or puts something before it, as the PROXY "
    "protocol does",
    "version": "no TLS version or cipher in common",
    "no_certificate": "a client certificate is required and none was shown",
    "certificate_refused": "the other side does not accept our certificate, or was shown none",
    "server_name": "the server name is not known here",
    "timeout": "the handshake was not finished in time",
    "closed": "closed within the handshake",
}


class HandshakesMax(OSError):
    """The handshake gave way to newer ones."""


def reason_of(error: OSError) -> str:
    """The reason for the error, from a bounded set, for a metric's label."""
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError):
        return "closed"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", "other")
    if isinstance(error, HandshakesMax):
        return "too_many"
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return "timeout"  # as asyncio reports a handshake that takes too long
    return "other"


def in_words(error: OSError) -> str:
    """The error in words, for logs and messages. An error that is not from TLS keeps its text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    words = _WORDS.get(reason_of(error))
    if words is None or not isinstance(error, ssl.SSLError):
        return str(error) or words or type(error).__name__
    return f"{words} ({error.reason or error})"


# The first four bytes of what people connect to a Kafka port by mistake.
_PROXY_PROTOCOL = "the PROXY protocol, which its load balancer must not add"
_FIRST_BYTES = {
    b"\r\n\r\n": _PROXY_PROTOCOL,  # version 2
    b"PROX": _PROXY_PROTOCOL,  # version 1
    b"PRI ": "HTTP/2",
    b"SSH-": "SSH",
    **dict.fromkeys((b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"CONN", b"DELE"), "HTTP"),
    b"HTTP": "HTTP",  # a response
}


def other_protocol(size: int) -> str | None:
    """What the other side speaks instead of Kafka's protocol, by a size prefix that makes no sense.

    A TLS record, for example, begins like a size of about 352 or 336 MiB. None: it may be Kafka's.
    """
    if size >> 8 in _RECORD_STARTS:
        return "TLS"
    return _FIRST_BYTES.get((size & 0xFFFFFFFF).to_bytes(4))


# The server side of TLS with alerts, which asyncio lacks: an alert tells a refused client why.
#
# If a handshake fails, asyncio drops OpenSSL's alert. A client without a certificate would see only
# a closed connection, and would try again for ever.


class Peer(Protocol):
    """An accepted connection whose handshake is under way."""

    server_name: str | None

    def send(self, data: bytes) -> None: ...

    def knows(self, server_name: str | None) -> bool: ...


# The peer whose TLS begins: asyncio calls `wrap_bio` without our arguments.
SHAKING: ContextVar[Peer] = ContextVar("shaking")


class ServerSideObject(ssl.SSLObject):
    peer: Peer
    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            alert = self.outgoing.read()
            if alert:
                self.peer.send(alert)
            raise


class ServerSideContext(ssl.SSLContext):
    """Create with `ServerSideContext(ssl.PROTOCOL_TLS_SERVER)`. Set `SHAKING` before using it."""

    sslobject_class = ServerSideObject

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        tls = cast(
            ServerSideObject,
            super().wrap_bio(incoming, outgoing, server_side, server_hostname, session),
        )
        tls.peer, tls.outgoing = SHAKING.get(), outgoing
        return tls


def on_server_name(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
    """For `sni_callback`: gives the peer the name, and asks whether the name is one of ours."""
    peer = cast(ServerSideObject, tls).peer
    peer.server_name = name
    return None if peer.knows(name) else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class LoadedContext:
    """`not_after`: epoch seconds when our own certificate ends; None: we show no certificate."""

    context: ssl.SSLContext
    not_after: int | None


def server_context(config: GatewayConfig, tls: TlsConfig) -> LoadedContext:
    """The context for the listeners. Raises ConfigError."""
    context = ServerSideContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = on_server_name
    context.minimum_version = ssl.TLSVersion[tls.protocol_min.replace(".", "_")]
    ends = _load_own(context, "gateway", config)
    _load_authorities(context, "gateway.tls_client_ca_file", config.tls_client_ca_file)
    context.verify_mode = _CLIENT_AUTH[config.tls_client_auth]
    return LoadedContext(context, ends)


def client_context(config: ClusterConfig, tls: TlsConfig) -> LoadedContext:
    """The context for connections to brokers. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion[tls.protocol_min.replace(".", "_")]
    context.check_hostname = config.tls_verify_hostname
    if config.tls_ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, "cluster.tls_ca_file", config.tls_ca_file)
    ends = None if config.tls_certificate_file is None else _load_own(context, "cluster", config)
    return LoadedContext(context, ends)


def files_of(config: GatewayConfig | ClusterConfig) -> list[Path]:
    """Every file from which a context is made."""
    authorities = (
        config.tls_client_ca_file if isinstance(config, GatewayConfig) else config.tls_ca_file
    )
    own = (config.tls_certificate_file, config.tls_key_file, secret_file(config.tls_key_password))
    return [file for file in (*own, authorities) if file is not None]


def _load_own(context: ssl.SSLContext, section: str, config: GatewayConfig | ClusterConfig) -> int:
    """Loads certificate and key. Returns the epoch seconds when the certificate ends."""
    certificate = config.tls_certificate_file
    assert certificate is not None
    certificate_said = f"{section}.tls_certificate_file = {certificate}"
    key = config.tls_key_file or certificate
    key_said = certificate_said if key is certificate else f"{section}.tls_key_file = {key}"
    try:
        ends = not_after(first_certificate(_read(certificate, certificate_said)))
    except ValueError as error:
        raise ConfigError(f"{certificate_said}: {error}") from None
    _read(key, key_said)
    password = _Password(section, config, key_said)
    try:
        context.load_cert_chain(certificate, key, password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_load_fault(error, certificate_said, key_said, password)) from None
    return ends


class _Password:
    """OpenSSL calls this for an encrypted key. Otherwise it would ask on the terminal."""

    def __init__(self, section: str, config: GatewayConfig | ClusterConfig, key_said: str) -> None:
        self._section, self._config, self._key_said = section, config, key_said
        self.was_asked = False

    def __call__(self) -> str:
        self.was_asked = True
        name = f"{self._section}.tls_key_password"
        secret = secret_from(self._config.tls_key_password, name)
        if secret is None:
            raise ConfigError(f"{self._key_said}: is encrypted, and {name} is not set")
        return secret


def _load_fault(
    error: ssl.SSLError | ValueError, certificate_said: str, key_said: str, password: _Password
) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return f"{key_said}: does not belong to {certificate_said}"
    if password.was_asked:
        return f"{key_said}: cannot be decrypted with the password that is configured"
    return f"{key_said}: no private key that fits {certificate_said} ({reason or error})"


def _load_authorities(context: ssl.SSLContext, name: str, file: Path | None) -> None:
    if file is None:
        return
    said = f"{name} = {file}"
    _read(file, said)
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        raise ConfigError(f"{said}: holds no certificates ({error.reason})") from None


def _read(file: Path, said: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{said}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{said}: is not PEM") from None


log = structlog.get_logger(__name__)

EXPIRY_WARNING_INTERVAL_S = 86_400.0


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
        self._seen = self._stamps()
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

    async def look(self) -> None:
        """Reloads if a file has changed, or could not be used at the last look."""
        stamps = await asyncio.to_thread(self._stamps)
        if stamps == self._seen and self._fault is None:
            return
        try:
            loaded = await asyncio.to_thread(self.load)
        except ConfigError as error:
            TLS_FILES_UNUSABLE.labels(self.place).set(1)
            if str(error) != self._fault:  # another error: report it again
                self.health.forget(Kind.TLS_FILES_UNUSABLE, self.place)
            self._fault = str(error)
            what = f"The {self.place}'s new TLS files cannot be used; the old ones stay: {error}"
            self.health.report(
                Condition(Kind.TLS_FILES_UNUSABLE, what, self.place), error=self._fault
            )
            return
        # Stamps from before the load: a file that changed meanwhile is loaded at the next look.
        self._seen, self._loaded, self._fault = stamps, loaded, None
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
        what = f"The {self.place}'s certificate {'ends soon' if until > now else 'has ended'}"
        self.health.hold(Condition(Kind.TLS_CERTIFICATE_EXPIRES, what, self.place, until=until))
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


# Time between two looks at the files of certificates, keys and authorities. A look is a stat each.
RELOAD_INTERVAL_MS = 10_000
# A certificate with less time left than this causes a warning once a day. ACME renews 30 days
# ahead; at half of that, renewing has failed, and there is time to repair it.
EXPIRY_WARNING_MS = 14 * 24 * 3_600_000


async def keep_fresh(
    contexts: Iterable[ReloadingContext | None],
    wall_clock_ms: Callable[[], int],
    interval_ms: int = RELOAD_INTERVAL_MS,
) -> None:
    """Reloads and warns until cancelled. `wall_clock_ms` returns epoch milliseconds."""
    in_use = [context for context in contexts if context is not None]
    while True:
        for context in in_use:
            await context.look()
            context.warn_of_expiry(wall_clock_ms(), EXPIRY_WARNING_MS)
        await asyncio.sleep(interval_ms / 1000)


# A host name may stand for many addresses. The next one is tried after this pause, so that one dead
# address does not use up the time for all of them.
_NEXT_ADDRESS_AFTER_S = 0.25
# The caller limits the whole dial, in a shorter time.
HANDSHAKE_MAX_S = 60.0
P = TypeVar("P", bound=asyncio.BaseProtocol)


async def dial(
    factory: Callable[[], P], host: str, port: int, upstream: ReloadingContext | None
) -> tuple[asyncio.Transport, P]:
    """Connect to a broker. Raises only OSError, also for an address that nobody can dial.

    Kafka accepts host names and ports that Python refuses by other errors than OSError: a label
    that is empty or longer than 63 characters, a NUL, a port that is no port.
    """
    # With this option asyncio leaves a socket open if it is cancelled at the wrong moment, so an IP
    # address, which is alone, does without.
    pause_s = None if _is_ip_address(host) else _NEXT_ADDRESS_AFTER_S
    connect = partial(
        asyncio.get_running_loop().create_connection,
        host=host,
        port=port,
        happy_eyeballs_delay=pause_s,
    )
    try:
        if upstream is None:
            return await connect(factory)
        return await _dial_tls(connect, factory(), host, upstream)
    # A UnicodeError is a ValueError. asyncio raises IndexError if each try failed by any of these.
    except ssl.SSLError:  # one about a certificate is a ValueError, too
        raise
    except (ValueError, OverflowError, IndexError) as error:
        raise OSError(f"this address cannot be used: {error}") from error


def server_name(host: str) -> str:
    """The name of a broker that is dialed as `host`, in TLS."""
    return host.rstrip(".")


async def _dial_tls(
    connect: Callable[..., Awaitable[tuple[asyncio.Transport, asyncio.BaseProtocol]]],
    app: P,
    host: str,
    upstream: ReloadingContext,
) -> tuple[asyncio.Transport, P]:
    """`host` is the name that the cluster advertises or that the bootstrap list has. The
    certificate has to be for `host`, which is also sent as server name unless it is an IP address.
    """
    waiter = asyncio.get_running_loop().create_future()
    of_app: list[asyncio.Transport] = []

    def begin() -> TlsProtocol:
        tls = upstream.protocol(app, waiter, HANDSHAKE_MAX_S, server_name(host))
        of_app.append(tls.app_transport)
        return tls

    raw, _ = await connect(begin)
    try:
        await waiter
    except BaseException:
        raw.abort()
        raise
    return of_app[0], app


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
