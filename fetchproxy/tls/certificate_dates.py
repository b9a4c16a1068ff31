"""The end of a certificate's validity, read from a PEM file.

Nothing else of the certificate is read: OpenSSL, which loads the same file, judges it. So a
certificate that OpenSSL serves is never refused here for a field that only stricter parsers mind
(docs/adr/0076).
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

# OpenSSL loads a certificate under each of these labels.
_PEM = re.compile(
    r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(?P<base64>.*?)-----END ", re.DOTALL
)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


def first_certificate(pem: str) -> bytes:
    """The DER bytes of the first certificate in a PEM file. Raises ValueError."""
    match = _PEM.search(pem)
    if match is None:
        raise ValueError("holds no certificate")
    try:
        return b64decode(match["base64"])
    except ValueError:
        raise ValueError("is not a certificate") from None


def not_after(der: bytes) -> int:
    """Epoch seconds at which the certificate ends (RFC 5280, 4.1.2.5). Raises ValueError."""
    try:
        _, certificate = next(_elements(der))
        _, to_be_signed = next(_elements(certificate))
        fields = list(islice(_elements(to_be_signed), 5))
        # Behind the serial number, the signature's algorithm and the issuer.
        _, validity = fields[4 if fields[0][0] == _VERSION else 3]
        _, (tag, ends) = _elements(validity)
        return _epoch_seconds(tag, ends.decode("ascii").removesuffix("Z"))
    except (IndexError, StopIteration, ValueError):
        raise ValueError("is not a certificate") from None


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """The tag and the content of each element. Raises IndexError and ValueError."""
    position = 0
    while position < len(der):
        tag, length = der[position], der[position + 1]
        position += 2
        if length >= 0x80:  # the size of the length
            size = length & 0x7F
            length = int.from_bytes(der[position : position + size])
            position += size
        if position + length > len(der):
            raise ValueError("an element is cut off")
        yield tag, der[position : position + length]
        position += length


def _epoch_seconds(tag: int, digits: str) -> int:
    if tag == _UTC_TIME:
        digits = ("19" if digits >= "50" else "20") + digits
    elif tag != _GENERALIZED_TIME:
        raise ValueError("is no time")
    return int(datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp())
