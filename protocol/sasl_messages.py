"""Field tables of SaslHandshake and SaslAuthenticate (KIP-152). Source: Kafka's message JSON."""

from __future__ import annotations

from protocol.messages import BYTES, I16, I64, NULLABLE_TEXT, TEXT, Array, Field, Structure

SASL_HANDSHAKE_REQUEST = Structure(Field("mechanism", TEXT))
SASL_HANDSHAKE_RESPONSE = Structure(
    Field("error_code", I16, default=0), Field("mechanisms", Array(TEXT), default=())
)
SASL_AUTHENTICATE_REQUEST = Structure(Field("auth_bytes", BYTES))
SASL_AUTHENTICATE_RESPONSE = Structure(
    Field("error_code", I16, default=0),
    Field("error_message", NULLABLE_TEXT),
    Field("auth_bytes", BYTES, default=b""),
    Field("session_lifetime_ms", I64, since=1, default=0),  # 0: it does not end
)
