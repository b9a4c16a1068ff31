"""The dates of a certificate in PEM, read from its DER."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def first_certificate(pem: str) -> bytes:
    """The DER bytes of the first certificate in a PEM file. Raises ValueError."""
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if begin < 0 or end < begin:
        raise ValueError("holds no certificate")
    return ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)])


def not_after(der: bytes) -> int:
    """Epoch seconds at which the certificate ends (RFC 5280, 4.1.2.5). Reads nothing else of the
    certificate. Raises ValueError.
    """
    try:
        certificate = _content(der, 0, _SEQUENCE)
        fields = _content(certificate, 0, _SEQUENCE)
        at = _behind(fields, 0) if fields[0] == _VERSION else 0
        for _ in range(3):  # serial number, signature algorithm, issuer
            at = _behind(fields, at)
        validity = _content(fields, at, _SEQUENCE)
        at = _behind(validity, 0)
        return _epoch_seconds(validity[at], _content(validity, at, validity[at]))
    except IndexError:
        raise ValueError("is not a certificate") from None


def _header(der: bytes, at: int) -> tuple[int, int]:
    """(where the content of the element at `at` begins, its length)."""
    length = der[at + 1]
    if length < 0x80:
        return at + 2, length
    size = length & 0x7F
    return at + 2 + size, int.from_bytes(der[at + 2 : at + 2 + size])


def _content(der: bytes, at: int, tag: int) -> bytes:
    if der[at] != tag:
        raise ValueError("is not a certificate")
    begin, length = _header(der, at)
    return der[begin : begin + length]


def _behind(der: bytes, at: int) -> int:
    begin, length = _header(der, at)
    return begin + length


def _epoch_seconds(tag: int, text: bytes) -> int:
    digits = text.decode("ascii").removesuffix("Z")
    if tag == _UTC_TIME:
        digits = ("19" if digits >= "50" else "20") + digits
    elif tag != _GENERALIZED_TIME:
        raise ValueError("is not a certificate")
    return int(datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp())
