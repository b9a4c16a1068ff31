"""Handshakes that failed, in words: OpenSSL's reasons name its own functions. Pure."""

from __future__ import annotations

import ssl

# The two first bytes of a TLS record with a handshake or an alert, versions 3.0 to 3.4.
_RECORD_STARTS = frozenset((kind << 16) | (3 << 8) | minor for kind in (0x15, 0x16)
                           for minor in range(5))  # fmt: skip

_REASONS = {
    # What OpenSSL makes of bytes that are no TLS record, by its version and by the bytes.
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
    "plaintext": "the other side does not speak TLS",
    "version": "no TLS version or cipher in common",
    "no_certificate": "a client certificate is required and none was shown",
    "certificate_refused": "the other side does not accept our certificate, or was shown none",
    "server_name": "the server name is not known here",
    "timeout": "the handshake was not finished in time",
    "closed": "closed within the handshake",
}


def reason_of(error: OSError) -> str:
    """One of a bounded set, for a metric's label."""
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError):
        return "closed"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", "other")
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return "timeout"  # asyncio's word for a handshake that takes too long
    return "other"


def in_words(error: OSError) -> str:
    """For logs and messages; an error that is none of TLS in its own words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    words = _WORDS.get(reason_of(error))
    if words is None or not isinstance(error, ssl.SSLError):
        return str(error) or words or type(error).__name__
    return f"{words} ({error.reason or error})"


def looks_like_tls(size: int) -> bool:
    """Whether a size prefix (bytes) is the beginning of a TLS record: about 352 or 336 MiB."""
    return size >> 8 in _RECORD_STARTS
