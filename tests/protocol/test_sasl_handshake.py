"""The refusal of SaslHandshake v0 as kafka-python reads it."""

from __future__ import annotations

from fetchproxy_protocol.sasl_handshake import handshake_refusal
from kafka.protocol.sasl import SaslHandshakeResponse


def test_handshake_refusal() -> None:
    decoded = SaslHandshakeResponse[0].decode(handshake_refusal(31), header=True)
    assert decoded.header.correlation_id == 31
    assert decoded.error_code == 35
    assert decoded.mechanisms == []
