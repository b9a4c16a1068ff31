"""Users of the secured broker, how each client says who it is, and a bare client with SASL."""

from __future__ import annotations

import struct
from typing import Any, Self

from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from raw_fetch import RawConnection

from lab.secured_kafka import unsecured_token

# So long a revoked ACL may still be unknown to the proxies of these tests.
PERMIT_TTL_MS = 1_500
# alice reads, mallory may do nothing, archiver and proxy are fetchproxy's own.
USERS = {user: f"{user}-5ecret" for user in ("alice", "mallory", "archiver", "proxy")}


def as_user(user: str, mechanism: str) -> dict[str, object]:
    """Settings of fetchproxy's own requests."""
    return {
        "cluster.security_protocol": "SASL_PLAINTEXT",
        "cluster.sasl_mechanism": mechanism,
        "cluster.sasl_username": user,
        "cluster.sasl_password": USERS[user],
    }


def confluent_login(user: str, mechanism: str, password: str | None = None) -> dict[str, object]:
    common = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": mechanism}
    if mechanism == "OAUTHBEARER":
        return {
            **common,
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": f"principal={user}",
        }
    return {**common, "sasl.username": user, "sasl.password": password or USERS[user]}


class _Token(AbstractTokenProvider):
    def __init__(self, user: str) -> None:
        self._user = user

    def token(self) -> str:
        return unsecured_token(self._user)


def kafka_python_login(user: str, mechanism: str) -> dict[str, object]:
    common = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return {**common, "sasl_oauth_token_provider": _Token(user)}
    return {**common, "sasl_plain_username": user, "sasl_plain_password": USERS[user]}


def aiokafka_login(user: str, mechanism: str) -> dict[str, object]:
    if mechanism != "OAUTHBEARER":
        return kafka_python_login(user, mechanism)
    from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider

    class Token(AsyncTokenProvider):
        async def token(self) -> str:
            return unsecured_token(user)

    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_oauth_token_provider": Token(),
    }


def java_login(user: str, mechanism: str) -> list[str]:
    """Options of Kafka's console consumer."""
    security = "org.apache.kafka.common.security"
    named = f'username="{user}" password="{USERS[user]}";'
    jaas = {
        "PLAIN": f"{security}.plain.PlainLoginModule required {named}",
        "OAUTHBEARER": f"{security}.oauthbearer.OAuthBearerLoginModule required "
        f'unsecuredLoginStringClaim_sub="{user}";',
    }.get(mechanism, f"{security}.scram.ScramLoginModule required {named}")
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas,
    }
    return [
        word
        for key, value in properties.items()
        for word in ("--consumer-property", f"{key}={value}")
    ]


def log_in(connection: RawConnection, user: str) -> int:
    """By PLAIN, or anew (KIP-368). Returns the session's lifetime in ms; 0: for ever."""
    handshake = SaslHandshakeRequest[1]()
    handshake.mechanism = "PLAIN"
    offered = connection.ask(handshake, SaslHandshakeResponse, 1)
    assert offered.error_code == 0, offered
    authenticate = SaslAuthenticateRequest[2]()
    authenticate.auth_bytes = f"\0{user}\0{USERS[user]}".encode()
    response = connection.ask(authenticate, SaslAuthenticateResponse, 2)
    assert response.error_code == 0, response
    return int(response.session_lifetime_ms)


def log_in_halfway(connection: RawConnection, user: str, mechanism: str) -> None:
    """The first round only. Its answer has no error, also if the broker refuses the token."""
    first_round = {
        "SCRAM-SHA-256": f"n,,n={user},r=anonce",
        "OAUTHBEARER": f"n,,\x01auth=Bearer {unsecured_token(user, lifetime_s=-1.0)}\x01\x01",
    }
    handshake = SaslHandshakeRequest[1]()
    handshake.mechanism = mechanism
    assert connection.ask(handshake, SaslHandshakeResponse, 1).error_code == 0
    authenticate = SaslAuthenticateRequest[2]()
    authenticate.auth_bytes = first_round[mechanism].encode()
    response = connection.ask(authenticate, SaslAuthenticateResponse, 2)
    assert response.error_code == 0, response
    assert response.auth_bytes


class SaslConnection(RawConnection):
    """Logged in as `user` inside its block."""

    def __init__(self, bootstrap: str, user: str) -> None:
        super().__init__(bootstrap)
        self.user = user

    def __enter__(self) -> Self:
        log_in(self, self.user)
        return self


def hangs_up(connection: RawConnection, request: Any) -> bool:
    """Whether the other side closes the connection on this request, without a byte of response."""
    request.with_header(correlation_id=77, client_id="raw")
    try:
        connection.send(request.encode(header=True, framed=True))
        first = connection.receive()
    except (AssertionError, ConnectionError):
        return True
    assert struct.unpack_from(">i", first)[0] == 77
    return False
