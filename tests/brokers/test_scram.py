"""Who poses as a broker gets neither a password nor a hash that gives it away."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from pydantic import SecretStr
from structlog.testing import capture_logs

from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.sasl import SaslCredentials, sasl_credentials
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.config.values import HostPort
from fetchproxy.errors import AuthenticationRefused


class AskingBroker(BrokerConnection):
    """Answers the first message with its number of iterations, and has no second answer."""

    def __init__(self, iterations: str) -> None:
        super().__init__(HostPort("broker", 9092), config())
        self._iterations = iterations
        self.tokens: list[bytes] = []
        self.closed = False

    async def ask(self, message: Any, response: Any, extra_ms: int = 0) -> Any:
        if response is SaslHandshakeResponse:
            return SaslHandshakeResponse(error_code=0, mechanisms=["SCRAM-SHA-256"])
        self.tokens.append(bytes(message.auth_bytes))
        if len(self.tokens) == 2:
            return SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b"")
        nonce = message.auth_bytes.decode().partition(",r=")[2]
        salt = base64.b64encode(b"salt").decode()
        server_first = f"r={nonce}more,s={salt},i={self._iterations}".encode()
        return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=server_first)

    def close(self) -> None:
        self.closed = True


def config(**more: Any) -> ClusterConfig:
    values: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": "archiver",
        "sasl_password": SecretStr("5ecret"),
    }
    return ClusterConfig(**(values | more))


@pytest.mark.parametrize("iterations", ["1", "4095", "0", "-5", "+1"])
async def test_too_few_iterations_get_no_proof(iterations: str) -> None:
    broker = AskingBroker(iterations)
    with pytest.raises(AuthenticationRefused, match=r"broker:9092.*expected at least 4096"):
        await broker.authenticate(SaslCredentials(config()))
    assert len(broker.tokens) == 1
    assert broker.closed


async def test_kafkas_least_is_taken() -> None:
    broker = AskingBroker("4096")
    with pytest.raises(AuthenticationRefused, match="no"):
        await broker.authenticate(SaslCredentials(config()))
    assert b",p=" in broker.tokens[1]


@pytest.mark.parametrize(
    ("mechanism", "protocol", "bootstrap", "warned"),
    [
        ("PLAIN", "SASL_PLAINTEXT", "kafka:9092", True),
        ("PLAIN", "SASL_PLAINTEXT", "127.0.0.1:9092,kafka:9092", True),
        ("PLAIN", "SASL_PLAINTEXT", "127.0.0.1:9092,[::1]:9092", False),
        ("PLAIN", "SASL_SSL", "kafka:9092", False),
        ("SCRAM-SHA-512", "SASL_PLAINTEXT", "kafka:9092", False),
    ],
)
def test_a_password_in_plaintext_is_warned_of(
    mechanism: str, protocol: str, bootstrap: str, warned: bool
) -> None:
    with capture_logs() as logs:
        sasl_credentials(
            config(sasl_mechanism=mechanism, security_protocol=protocol, bootstrap=bootstrap)
        )
    warnings = [line for line in logs if line["event"] == "credentials_in_plaintext"]
    assert len(warnings) == warned
    assert "5ecret" not in str(logs)
