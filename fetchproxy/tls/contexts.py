"""SSL contexts from the files that the configuration names."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from fetchproxy.config.schema import ClusterConfig, GatewayConfig, TlsConfig
from fetchproxy.config.values import secret_file, secret_from
from fetchproxy.errors import ConfigError
from fetchproxy.tls.alerts import ServerSideContext, on_server_name
from fetchproxy.tls.certificate_dates import first_certificate, not_after

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
    return _loaded(context, config, tls)


def stream_server_context(config: GatewayConfig, tls: TlsConfig) -> LoadedContext:
    """The same for asyncio's own servers, which send no alerts. Raises ConfigError."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config, tls)


def _loaded(context: ssl.SSLContext, config: GatewayConfig, tls: TlsConfig) -> LoadedContext:
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
    files = (config.tls_certificate_file, config.tls_key_file, secret_file(config.tls_key_password))
    return [file for file in (*files, authorities) if file is not None]


def _load_own(context: ssl.SSLContext, section: str, config: GatewayConfig | ClusterConfig) -> int:
    """Loads certificate and key. Returns the epoch seconds when the certificate ends."""
    certificate = config.tls_certificate_file
    assert certificate is not None
    certificate_setting = f"{section}.tls_certificate_file = {certificate}"
    key = config.tls_key_file or certificate
    key_setting = certificate_setting if key is certificate else f"{section}.tls_key_file = {key}"
    try:
        ends = not_after(first_certificate(_read(certificate, certificate_setting)))
    except ValueError as error:
        raise ConfigError(f"{certificate_setting}: {error}") from None
    _read(key, key_setting)
    password = _Password(section, config, key_setting)
    try:
        context.load_cert_chain(certificate, key, password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_load_fault(error, certificate_setting, key_setting, password)) from None
    return ends


class _Password:
    """OpenSSL calls this for an encrypted key. Otherwise it would ask on the terminal."""

    def __init__(
        self, section: str, config: GatewayConfig | ClusterConfig, key_setting: str
    ) -> None:
        self._section, self._config, self._key_setting = section, config, key_setting
        self.was_called = False

    def __call__(self) -> str:
        self.was_called = True
        name = f"{self._section}.tls_key_password"
        secret = secret_from(self._config.tls_key_password, name)
        if secret is None:
            raise ConfigError(f"{self._key_setting}: is encrypted, and {name} is not set")
        return secret


def _load_fault(
    error: ssl.SSLError | ValueError,
    certificate_setting: str,
    key_setting: str,
    password: _Password,
) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return f"{key_setting}: does not belong to {certificate_setting}"
    if password.was_called:
        return f"{key_setting}: cannot be decrypted with the password that is configured"
    return f"{key_setting}: no private key that fits {certificate_setting} ({reason or error})"


def _load_authorities(context: ssl.SSLContext, name: str, file: Path | None) -> None:
    if file is None:
        return
    setting = f"{name} = {file}"
    _read(file, setting)
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        raise ConfigError(f"{setting}: holds no certificates ({error.reason})") from None


def _read(file: Path, setting: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{setting}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: is not PEM") from None
