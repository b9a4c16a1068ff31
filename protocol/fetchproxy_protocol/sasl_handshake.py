"""The one SASL message that the proxy makes itself; all others are relayed unread."""

from __future__ import annotations

from struct import Struct

from fetchproxy_protocol.apis import ErrorCode

_HANDSHAKE_REFUSAL = Struct(">ihi")


def handshake_refusal(correlation_id: int) -> bytes:
    """The answer to SaslHandshake v0, without a size prefix: error 35, no mechanisms.

    After v0 a client sends bare SASL tokens that no frame header announces (KIP-152 replaced
    that by v1), which a relay of frames cannot tell from requests.
    """
    return _HANDSHAKE_REFUSAL.pack(correlation_id, ErrorCode.UNSUPPORTED_VERSION, 0)
