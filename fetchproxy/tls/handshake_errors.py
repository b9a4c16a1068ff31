"""Failed handshakes in words, as OpenSSL's reasons name its own functions. Pure."""

from __future__ import annotations

import ssl

from fetchproxy.errors import system_error_in_words

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
    "plaintext": "the other side does not speak TLS, or sends something before it, such as a "
    "PROXY header",
    "version": "no TLS version or cipher in common",
    "no_certificate": "a client certificate is required and none was shown",
    "certificate_refused": "the other side does not accept our certificate, or was shown none",
    "server_name": "the server name is not known here",
    "timeout": "the handshake was not finished in time",
    "closed": "closed within the handshake",
}
# The first four bytes of what people connect to a Kafka port by mistake.
_PROXY_PROTOCOL = "the PROXY protocol"
_FIRST_BYTES = {
    b"\r\n\r\n": _PROXY_PROTOCOL,  # version 2
    b"PROX": _PROXY_PROTOCOL,  # version 1
    b"PRI ": "HTTP/2",
    b"SSH-": "SSH",
    **dict.fromkeys((b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"CONN", b"DELE"), "HTTP"),
    b"HTTP": "HTTP",  # a response
}
_HTTP_HINT = "the page, metrics and health checks have a separate port: console.listen"
_HINTS = {
    "TLS": "set gateway.tls_certificate_file, or a security.protocol without SSL at the client",
    _PROXY_PROTOCOL: "add the load balancer's address to gateway.proxy_protocol_from, or switch "
    "its PROXY protocol off",
    "HTTP": _HTTP_HINT,
    "HTTP/2": _HTTP_HINT,
}


class NotTls(OSError):
    """The other side begins as another protocol does."""

    def __init__(self, other: str) -> None:
        super().__init__(f"the client speaks {other}, but this listener expects TLS")
        self.hint = hint_for(other)


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
    if isinstance(error, NotTls):
        return "plaintext"
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return "timeout"  # as asyncio reports a handshake that takes too long
    return "other"


def handshake_error_in_words(error: OSError) -> str:
    """The error in words, for logs and messages."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    words = _WORDS.get(reason_of(error))
    if words is None or not isinstance(error, ssl.SSLError):
        return system_error_in_words(error) if str(error) else words or type(error).__name__
    return f"{words} ({error.reason or error})"


def other_protocol(size: int) -> str | None:
    """What the other side speaks instead of Kafka's protocol, by a size prefix that makes no sense.

    A TLS record, for example, begins like a size of about 352 or 336 MiB. None: it may be Kafka's.
    """
    if size >> 8 in _RECORD_STARTS:
        return "TLS"
    return _FIRST_BYTES.get((size & 0xFFFFFFFF).to_bytes(4))


def hint_for(other: str) -> str:
    """What to do if a client speaks `other`, a name from `other_protocol`."""
    return _HINTS.get(other, "this is the port of a Kafka broker: correct the client")
