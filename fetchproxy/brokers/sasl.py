"""The proxy's own authentication at brokers, and its renewal before a session ends (KIP-368)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth
from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient
from pydantic import SecretStr

from fetchproxy.config.schema import ClusterConfig
from fetchproxy.config.values import SecretFile, is_loopback, parse_bootstrap, secret_from
from fetchproxy.errors import AuthenticationRefused, ClusterUnavailable, ConfigError
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.metrics import CLUSTER_AUTHENTICATION_REFUSALS

# Kafka's minimum (RFC 7677 too). A fake broker that asks for one iteration gets a proof from which
# the password can be guessed as fast as hashes are computed.
_ITERATIONS_MIN = 4_096
# A refusal counts for every broker this long. A wrong password tried at each request would fill
# the brokers' logs, and directories would lock the account.
_REFUSAL_HOLDS_S = 1.0
_SENT_AS_IT_IS = ("PLAIN", "OAUTHBEARER")
# Raises ClusterUnavailable (worth a retry), AuthenticationRefused, ConfigError.
Tokens = Callable[[], Awaitable[str]]

log = structlog.get_logger(__name__)


class _Client(ScramClient):  # type: ignore[misc]  # kafka-python has no types
    """As kafka-python's, with a minimum of iterations."""

    def create_salted_password(self, salt: bytes, iterations: int) -> None:
        if iterations < _ITERATIONS_MIN:
            # The proxy has sent nothing derived from the password yet.
            raise AuthenticationRefused(
                f"the broker uses only {iterations} iterations of SCRAM: expected at least "
                f"{_ITERATIONS_MIN}; set the user's credentials again with more iterations"
            )
        super().create_salted_password(salt, iterations)


# Secrets, passwords and tokens never appear in errors or logs.


class _StaticToken(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class SaslCredentials:
    """The proxy's identity on all of its connections. Raises ConfigError for unreadable files."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self.mechanism: str = config.sasl_mechanism or ""
        self._tokens = _token_source(config)
        self._refused: tuple[AuthenticationRefused, float] | None = None  # and its loop time (s)
        self.health = Health()
        if self._tokens is None:
            self._password()

    @property
    def identity_text(self) -> str:
        name = self._config.sasl_username or self._config.sasl_oauthbearer_client_id
        return f"user {name!r} by {self.mechanism}" if name else f"a token by {self.mechanism}"

    @property
    def refusal(self) -> str | None:
        """The brokers' last response if it was a refusal."""
        return None if self._refused is None else str(self._refused[0])

    async def exchange(self) -> Any:  # Any: kafka-python's mechanisms have no types
        """A fresh mechanism object. Raises ClusterUnavailable, AuthenticationRefused."""
        try:
            if self._tokens is not None:
                token = await self._tokens()
                return SaslMechanismOAuth(sasl_oauth_token_provider=_StaticToken(token))
            password = await asyncio.to_thread(self._password)
        except ConfigError as error:  # the file was there at the start
            raise ClusterUnavailable(str(error)) from None
        username = self._config.sasl_username
        if self.mechanism == "PLAIN":
            return SaslMechanismPlain(sasl_plain_username=username, sasl_plain_password=password)
        # Escaped for SCRAM's comma separated messages (RFC 5802, 5.1: saslname).
        username = (username or "").replace("=", "=3D").replace(",", "=2C")
        scram = SaslMechanismScram(
            sasl_mechanism=self.mechanism,
            sasl_plain_username=username,
            sasl_plain_password=password,
        )
        scram._scram_client = _Client(username, password, self.mechanism)
        return scram

    async def prepare(self) -> None:
        """Called before a connection is opened, because a token endpoint may take longer than a
        connection may. Raises AuthenticationRefused, also while the last refusal still holds, and
        ClusterUnavailable.
        """
        if self._refused is not None:
            error, refused_at = self._refused
            if asyncio.get_running_loop().time() < refused_at + _REFUSAL_HOLDS_S:
                raise AuthenticationRefused(str(error), error.error_code)
        try:
            await self.exchange()
        except AuthenticationRefused as error:
            self.note_refusal(error)
            raise

    def note_refusal(self, error: AuthenticationRefused) -> None:
        CLUSTER_AUTHENTICATION_REFUSALS.inc()
        refused = Kind.CLUSTER_AUTHENTICATION_REFUSED
        condition = Condition(refused, f"The proxy's own credentials are refused: {error}")
        self.health.report(condition, mechanism=self.mechanism)
        self._refused = (error, asyncio.get_running_loop().time())

    def note_success(self) -> None:
        self.health.clear(Kind.CLUSTER_AUTHENTICATION_REFUSED)
        self._refused = None

    def _password(self) -> str:
        return _secret(self._config.sasl_password, "cluster.sasl_password")


def sasl_credentials(config: ClusterConfig) -> SaslCredentials | None:
    """None: the brokers want no SASL. Raises ConfigError. Reads files: call it before the loop."""
    if not config.security_protocol.startswith("SASL_"):
        return None
    _warn_of_plaintext(config)
    return SaslCredentials(config)


def _warn_of_plaintext(config: ClusterConfig) -> None:
    """SCRAM sends no password. PLAIN and OAUTHBEARER send secrets that an eavesdropper can use."""
    if config.security_protocol != "SASL_PLAINTEXT" or config.sasl_mechanism not in _SENT_AS_IT_IS:
        return
    if all(is_loopback(broker.host) for broker in parse_bootstrap(config.bootstrap)):
        return
    log.warning(
        "credentials_in_plaintext",
        mechanism=config.sasl_mechanism,
        brokers=config.bootstrap,
        hint="set cluster.security_protocol = SASL_SSL, or use SCRAM as cluster.sasl_mechanism",
    )


def _token_source(config: ClusterConfig) -> Tokens | None:
    if config.sasl_mechanism != "OAUTHBEARER":
        return None
    if config.sasl_oauthbearer_token_file is None:
        # Loaded only here: it brings an HTTP client, which takes a sixth of a command's start.
        from fetchproxy.brokers.token_endpoint import TokenEndpoint

        return TokenEndpoint(config).token
    key = "cluster.sasl_oauthbearer_token_file"
    read = partial(_secret, config.sasl_oauthbearer_token_file, key)
    read()  # raises now if the file cannot be used
    return partial(asyncio.to_thread, read)


def _secret(secret: SecretStr | SecretFile | Path | None, key: str) -> str:
    return secret_from(secret, key) or ""
