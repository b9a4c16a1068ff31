"""The PROXY header: every header that a balancer may send is read, and nothing else is."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fetchproxy.serving.proxy_header import (
    PROXY_HEADER_BYTES_MAX,
    BadProxyHeader,
    ProxyHeader,
    read_proxy_header,
)

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PORTS = st.integers(0, 65_535)
V4, V6 = st.ip_addresses(v=4), st.ip_addresses(v=6)
# Behind the header may be anything: the client's first bytes.
BEHIND = st.binary(max_size=40)


def binary(command: int, family: int, content: bytes) -> bytes:
    return SIGNATURE + struct.pack(">BBH", 0x20 | command, family, len(content)) + content


@given(
    st.one_of(st.tuples(V4, V4), st.tuples(V6, V6)), PORTS, PORTS, st.binary(max_size=600), BEHIND
)
def test_version_2_names_the_client_whatever_fields_follow(
    addresses: tuple[IPv4Address, IPv4Address] | tuple[IPv6Address, IPv6Address],
    source_port: int, port: int, fields: bytes, behind: bytes,
) -> None:  # fmt: skip
    source, destination = addresses
    content = source.packed + destination.packed + struct.pack(">HH", source_port, port)
    header = binary(1, 0x11 if source.version == 4 else 0x21, content + fields)
    assert read_proxy_header(header + behind) == ((str(source), source_port), len(header))
    assert all(read_proxy_header(header[:end]) is None for end in range(1, len(header)))


@given(st.one_of(st.tuples(V4, V4), st.tuples(V6, V6)), PORTS, PORTS, BEHIND)
def test_version_1_names_the_client(
    addresses: tuple[IPv4Address, IPv4Address] | tuple[IPv6Address, IPv6Address],
    source_port: int, port: int, behind: bytes,
) -> None:  # fmt: skip
    source, destination = addresses
    line = f"PROXY TCP{source.version} {source} {destination} {source_port} {port}\r\n".encode()
    assert len(line) <= 107
    assert read_proxy_header(line + behind) == ((str(source), source_port), len(line))
    assert all(read_proxy_header(line[:end]) is None for end in range(1, len(line)))


@pytest.mark.parametrize(
    "header",
    [
        binary(0, 0x00, b""),  # LOCAL: a health check
        binary(0, 0x11, bytes(12)),
        binary(1, 0x00, b""),  # unknown
        binary(1, 0x12, bytes(12)),  # UDP
        binary(1, 0x31, bytes(216)),  # a Unix socket
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n",
    ],
)
def test_a_balancer_may_speak_for_itself(header: bytes) -> None:
    assert read_proxy_header(header + b"rest") == ProxyHeader(None, len(header))


WRONG = {
    "the client speaks Kafka's protocol": struct.pack(">ihhih", 12, 18, 0, 7, 2) + b"me",
    "the client speaks TLS": b"\x16\x03\x01\x02\0\1\0\1\xfc",
    "the client speaks HTTP": b"GET / HTTP/1.1\r\n",
    "is not known": b"\xff\xff\xff\xffxx",
    "version 1 and command 1": SIGNATURE + b"\x11\x11\0\x0c" + bytes(12),
    "version 2 and command 2": SIGNATURE + b"\x22\x11\0\x0c" + bytes(12),
    "11 bytes for the addresses": SIGNATURE + b"\x21\x11\0\x0b" + bytes(11),
    "35 bytes for the addresses": SIGNATURE + b"\x21\x21\0\x23" + bytes(35),
    "has 4097 bytes, over 4096": SIGNATURE + b"\x21\x11" + struct.pack(">H", 4097 - 16),
    "no end within 107 bytes": b"PROXY TCP4 " + b"1" * 100,
    "TCP5": b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
    "1.1.1.256": b"PROXY TCP4 1.1.1.256 1.1.1.1 1 1\r\n",
    "TCP4 ::1": b"PROXY TCP4 ::1 ::1 1 1\r\n",
    "65536": b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
    "-1": b"PROXY TCP4 1.1.1.1 1.1.1.1 -1 1\r\n",
    "TCP4 1.1.1.1  ": b"PROXY TCP4 1.1.1.1  1.1.1.1 1 1\r\n",
    "PROXY '": b"PROXY \r\n",
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_no_header_is_named(says: str) -> None:
    with pytest.raises(BadProxyHeader) as refusal:
        read_proxy_header(WRONG[says])
    assert says in str(refusal.value)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=200).map(lambda rest: SIGNATURE + rest),
        st.binary(max_size=200).map(lambda rest: SIGNATURE + b"\x21\x11" + rest),
        st.binary(max_size=120).map(lambda rest: b"PROXY " + rest),
        st.text("TCP46UNKOW .:f0123456789\r\n", max_size=120).map(lambda t: b"PROXY " + t.encode()),
    )
)
@example(b"PROXY \xff\r\n")
@example(SIGNATURE + b"\x20\0\xff\xff")
def test_any_bytes_are_read_or_refused_within_the_bound(data: bytes) -> None:
    try:
        header = read_proxy_header(data)
    except BadProxyHeader:
        return
    if header is None:
        # More can help: nobody waits for bytes that are beyond the bound.
        assert len(data) < PROXY_HEADER_BYTES_MAX
        return
    assert 0 < header.size <= len(data)
    if header.client is not None:
        host, port = header.client
        assert str(ip_address(host)) == host
        assert 0 <= port < 65_536
