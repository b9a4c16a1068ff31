"""host:port texts of the configuration, read once and the same way everywhere. Resolves nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from socket import inet_aton

# One part of a name between its dots, as resolvers take it; `_` is in the names of containers.
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NAME_CHARS_MAX = 253


@dataclass(frozen=True, slots=True)
class HostPort:
    """`host` is without the brackets of an IPv6 address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str) -> HostPort:
    """`host:port` or `[IPv6]:port`; port 0 means any free one. Raises ValueError."""
    host, separator, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not separator or not host or any(c.isspace() or c in "[]/@" for c in host):
        raise ValueError("expected host:port")
    if ":" in host and not bracketed:
        raise ValueError("expected [IPv6 address]:port")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("expected a port from 0 to 65535 after the last colon")
    return HostPort(host, int(port))


def parse_host(text: str) -> str:
    """A host that clients can be told: a name or an address, an IPv6 one with or without brackets.

    Raises ValueError, also for an address that stands for all of a machine's.
    """
    host = text.strip()
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not host or any(c.isspace() or c in "[]/@," for c in host):
        raise ValueError("expected a host")
    if ":" in host or bracketed:
        try:
            IPv6Address(host)
        except ValueError:
            raise ValueError("expected a host without a port") from None
    elif not _is_name(host):
        raise ValueError("expected a host name or an IP address")
    if is_any_address(host):
        raise ValueError("expected a host that clients can dial")
    return host


def _is_name(host: str) -> bool:
    """Whether a resolver can know it. Clients give no reason when they cannot resolve a name.

    A name that ends in a number is an IPv4 address.
    """
    labels = host.removesuffix(".").split(".")
    if len(host) > _NAME_CHARS_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        return False
    return not labels[-1].isdigit() or _is_ipv4(host)


def _is_ipv4(host: str) -> bool:
    try:
        inet_aton(host)
    except OSError:
        return False
    return True


def parse_bootstrap(text: str) -> list[HostPort]:
    """`host:port[,host:port…]`, at least one, none with port 0. Raises ValueError."""
    addresses = [parse_host_port(part) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("expected host:port[,host:port…]")
    if any(address.port == 0 for address in addresses):
        raise ValueError("expected a port from 1 to 65535 for each broker")
    return addresses


def is_loopback(host: str) -> bool:
    """Whether only this machine can dial it. A name but `localhost` counts as one that others can,
    as does an empty one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_any_address(host: str) -> bool:
    """Whether it stands for all addresses of a machine: it can be listened on, and not be dialled
    from elsewhere."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        pass
    return _is_ipv4(host) and inet_aton(host) == bytes(4)  # as the resolver reads `0`
