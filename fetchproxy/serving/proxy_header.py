"""The header of the PROXY protocol, in which a load balancer names its client. Pure.

A balancer opens connections of its own, so its address hides the client's. With this header it
begins each connection by saying whose it is. Version 2 is binary (HAProxy's `send-proxy-v2`, AWS's
Network Load Balancer); version 1 is a line of text, the only one that nginx can send. The rule for
both: HAProxy's doc/proxy-protocol.txt.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from fetchproxy_protocol.headers import REQUEST_HEADER_BYTES_MIN

from fetchproxy.config.schema import KiB
from fetchproxy.tls.handshake_errors import other_protocol

# Of version 2. Its further fields (TLVs) are skipped; a client's certificate, the largest that
# balancers add, has 2 KiB.
PROXY_HEADER_BYTES_MAX = 4 * KiB
_LINE_BYTES_MAX = 107  # of version 1
_LINE_START = b"PROXY "
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"  # of version 2
_FIXED = struct.Struct(">12sBBH")  # signature, version and command, family and transport, length
_LOCAL, _PROXY = 0, 1
# By family and transport, of TCP alone: source and destination address, their ports.
_ADDRESSES = {0x11: struct.Struct(">4s4sHH"), 0x21: struct.Struct(">16s16sHH")}
# No request begins with a larger size (`gateway.frame_bytes_max` is below it by default).
_REQUEST_BYTES_MAX = 1 << 28


class BadProxyHeader(Exception):
    """The connection does not begin with a header, or with a wrong one."""


class ProxyHeader(NamedTuple):
    """What a header says. `client`: its address and port. None: the balancer speaks for itself (a
    health check), or does not know. `size`: bytes of the header.
    """

    client: tuple[str, int] | None
    size: int


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header with which `data` begins; None: more bytes have to come. Raises BadProxyHeader."""
    if _SIGNATURE.startswith(data[: len(_SIGNATURE)]):
        return _read_binary(data)
    if _LINE_START.startswith(data[: len(_LINE_START)]):
        return _read_line(data)
    if len(data) < 4:
        return None  # what it is instead can be told by four bytes
    raise BadProxyHeader(f"it begins without a PROXY header: {_spoken(data)}")


def _spoken(data: bytes) -> str:
    size = int.from_bytes(data[:4], signed=True)
    if (other := other_protocol(size)) is not None:
        return f"the client speaks {other}"
    if REQUEST_HEADER_BYTES_MIN <= size < _REQUEST_BYTES_MAX:
        return "the client speaks Kafka's protocol"
    return "what the client speaks is not known"


def _read_binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED.size:
        return None
    _, version_and_command, family, length = _FIXED.unpack_from(data)
    version, command = divmod(version_and_command, 16)
    if version != 2 or command not in (_LOCAL, _PROXY):
        raise BadProxyHeader(f"its PROXY header has version {version} and command {command}")
    size = _FIXED.size + length
    if size > PROXY_HEADER_BYTES_MAX:
        raise BadProxyHeader(f"its PROXY header has {size} bytes, over {PROXY_HEADER_BYTES_MAX}")
    if len(data) < size:
        return None
    addresses = _ADDRESSES.get(family)
    if command == _LOCAL or addresses is None:
        return ProxyHeader(None, size)
    if length < addresses.size:
        raise BadProxyHeader(f"its PROXY header has {length} bytes for the addresses")
    source, _, port, _ = addresses.unpack_from(data, _FIXED.size)
    ip = IPv4Address(source) if len(source) == 4 else IPv6Address(source)
    return ProxyHeader((str(ip), port), size)


def _read_line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _LINE_BYTES_MAX)
    if end < 0:
        if len(data) < _LINE_BYTES_MAX:
            return None
        raise BadProxyHeader(f"its PROXY header has no end within {_LINE_BYTES_MAX} bytes")
    words = data[:end].decode("ascii", "replace").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(None, end + 2)
    try:
        _, family, source, destination, source_port, port = words
        of_family = {"TCP4": IPv4Address, "TCP6": IPv6Address}[family]
        client = str(of_family(source)), _port(source_port)
        of_family(destination), _port(port)
    except (KeyError, ValueError) as error:
        raise BadProxyHeader(f"its PROXY header is wrong: {data[:end]!r}") from error
    return ProxyHeader(client, end + 2)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 1 << 16):
        raise ValueError(text)
    return int(text)
