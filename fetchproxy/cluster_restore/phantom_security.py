"""What the brokers' own listener demands of the phantoms: TLS with a certificate that the brokers
trust, and SASL, by which each broker logs in at its leader.

The phantom has to know the brokers' user: it is the server. With PLAIN it learns their password.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fetchproxy_protocol.apis import ApiKey, ErrorCode, WireError
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.messages import MessageFields, read_request, write_response

from fetchproxy.cluster_restore.new_cluster import InterBrokerListener
from fetchproxy.config.schema import Config
from fetchproxy.config.values import secret_from
from fetchproxy.errors import ConfigError
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only.logins import (
    HASHES,
    ITERATIONS_MADE,
    PLAIN,
    Login,
    LoginRefused,
    Logins,
    Names,
    User,
    Users,
    credential_of,
    mechanisms_of,
    parse_users,
)
from fetchproxy.serving.archive_only.schemas import request_of, response_of
from fetchproxy.tls.contexts import client_context, stream_server_context

_SALT_BYTES = 24
BROKER_LOGIN_VERSIONS: Mapping[ApiKey, tuple[int, int]] = {
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}


@dataclass(frozen=True, slots=True)
class PhantomSecurity:
    """`context`: None: no TLS. `users`: by whose passwords brokers log in; None: no SASL.

    `as_broker`: TLS of a client that looks at our certificate as a broker does. `as_nobody`: TLS of
    a client without a certificate. None: no TLS.
    """

    context: ssl.SSLContext | None = None
    users: Users | None = None
    as_broker: ssl.SSLContext | None = None
    as_nobody: ssl.SSLContext | None = None


def phantom_security(
    config: Config, listener: InterBrokerListener, users_file: Path | None
) -> PhantomSecurity:
    """Reads files, and hashes a password. Raises ConfigError, naming listener and option."""
    users = _users(config, listener, users_file) if listener.has_sasl else None
    if not listener.has_tls:
        return PhantomSecurity(users=users)
    context = _context(config, listener)
    strict = config.cluster.model_copy(update={"tls_verify_hostname": True})
    nobody = config.cluster.model_copy(update={"tls_certificate_file": None})
    as_broker, as_nobody = (client_context(one, config.tls).context for one in (strict, nobody))
    return PhantomSecurity(context, users, as_broker, as_nobody)


def _context(config: Config, listener: InterBrokerListener) -> ssl.SSLContext:
    if config.gateway.tls_certificate_file is None:
        raise ConfigError(
            f"the brokers use {listener.protocol} among themselves, on listener {listener.name}, "
            "so this command needs a certificate that they trust, for the host of --advertise: set "
            "gateway.tls_certificate_file and gateway.tls_key_file"
        )
    return stream_server_context(config.gateway, config.tls).context


def _users(config: Config, listener: InterBrokerListener, users_file: Path | None) -> Users:
    where = (
        f"the brokers log in to each other on listener {listener.name} ({listener.protocol}) with "
        f"{listener.mechanism or 'GSSAPI'}"
    )
    if listener.mechanism not in (PLAIN, *HASHES):
        raise ConfigError(
            f"{where}, but this command supports only PLAIN and SCRAM. Give the new cluster "
            "another sasl.mechanism.inter.broker.protocol until it is restored"
        )
    users = _own_user(config) if users_file is None else _users_of(users_file)
    if not users:
        raise ConfigError(
            f"{where}: name their user with --broker-users FILE (fetchproxy user prints its "
            "lines), or set cluster.sasl_username and cluster.sasl_password to theirs"
        )
    if listener.mechanism != PLAIN and listener.mechanism not in mechanisms_of(users):
        raise ConfigError(f"{where}, and no user of {users_file} has a password for it")
    return users


def _users_of(file: Path) -> Users:
    try:
        return parse_users(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--broker-users {file}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # also a UnicodeDecodeError
        raise ConfigError(f"--broker-users {file}: {error}") from None


def _own_user(config: Config) -> Users:
    """Brokers may be the same user as this command."""
    name = config.cluster.sasl_username
    password = secret_from(config.cluster.sasl_password, "cluster.sasl_password")
    if not name or not password:
        return {}
    credentials = {
        mechanism: credential_of(
            mechanism, password.encode(), os.urandom(_SALT_BYTES), ITERATIONS_MADE
        )
        for mechanism in HASHES
    }
    return {name: User(name, Names.of(()), Names.of(()), credentials)}


def logins_of(users: Users) -> Logins:
    """The caller closes it. No file is read."""
    logins = Logins(Path())
    logins.users = users
    return logins


class BrokerLogin:
    """The login of one connection."""

    def __init__(self, logins: Logins, address: str) -> None:
        # Whether a password may come in plaintext is what the listener's protocol decides.
        self._login = Login(logins, address, _secret_path=True)
        self.refusal = ""  # why it was refused; then the connection ends after the response

    @property
    def is_done(self) -> bool:
        return self._login.user is not None

    async def respond(self, request: bytes, head: RequestHead, client: str) -> bytes:
        """The response to SaslHandshake or SaslAuthenticate. Raises WireError."""
        key = ApiKey(head.api_key)
        low, high = BROKER_LOGIN_VERSIONS[key]
        if not low <= head.api_version <= high:
            raise WireError(f"{key.name} version {head.api_version}")
        steps = read_request(
            request_of(key), request, head.body_position, head.api_key, head.api_version
        )
        fields = at_once(steps)
        if key is ApiKey.SASL_HANDSHAKE:
            return _written(self._handshake(fields["mechanism"]), head)
        try:
            token = await self._login.step(fields["auth_bytes"], client)
        except LoginRefused as error:
            self.refusal = f"user {self._login.name!r}: {error}"
            return _written(
                {
                    "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
                    "error_message": "authentication failed",
                },
                head,
            )
        return _written({"auth_bytes": token}, head)

    def _handshake(self, mechanism: str) -> MessageFields:
        error = ErrorCode.NONE
        if not self._login.choose(mechanism):
            self.refusal = f"SASL mechanism {mechanism} is not offered"
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return {"error_code": error, "mechanisms": list(self._login.mechanisms)}


def _written(fields: MessageFields, head: RequestHead) -> bytes:
    key = head.api_key
    steps = write_response(response_of(key), fields, key, head.api_version, head.correlation_id)
    return bytes(at_once(steps))
