"""SaslHandshake and SaslAuthenticate of the proxy's own connections. No I/O, no mechanism."""

from __future__ import annotations

from dataclasses import dataclass

from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from fetchproxy.cluster.messages import Request, body_of, versioned


@dataclass(frozen=True, slots=True)
class HandshakeAnswer:
    error_code: int
    mechanisms: tuple[str, ...]  # that the broker's listener has


@dataclass(frozen=True, slots=True)
class AuthenticateAnswer:
    """`session_lifetime_ms` is 0 where the session does not end (KIP-368)."""

    error_code: int
    error_message: str | None
    token: bytes
    session_lifetime_ms: int

    def __repr__(self) -> str:  # the token is nobody's business
        return f"AuthenticateAnswer(error_code={self.error_code})"


def handshake_request(version: int, mechanism: str) -> Request:
    return versioned(SaslHandshakeRequest(mechanism=mechanism), version)


def decode_handshake(payload: memoryview, version: int) -> HandshakeAnswer:
    answer = body_of(SaslHandshakeResponse, payload, version)
    return HandshakeAnswer(answer.error_code, tuple(answer.mechanisms))


def authenticate_request(version: int, token: bytes) -> Request:
    return versioned(SaslAuthenticateRequest(auth_bytes=token), version)


def decode_authenticate(payload: memoryview, version: int) -> AuthenticateAnswer:
    answer = body_of(SaslAuthenticateResponse, payload, version)
    lifetime_ms = answer.session_lifetime_ms if version >= 1 else 0
    return AuthenticateAnswer(
        answer.error_code, answer.error_message, bytes(answer.auth_bytes), lifetime_ms or 0
    )
