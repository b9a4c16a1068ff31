"""Texts with a form of their own (addresses, patterns): what is checked, and how it is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator

from fetchproxy.config.addresses import parse_bootstrap, parse_host, parse_host_port
from fetchproxy.config.attachments import parse_attachments
from fetchproxy.config.node_map import parse_node_map
from fetchproxy.config.retention_overrides import overrides_text, parse_retention_overrides


@dataclass(frozen=True, slots=True)
class TextForm:
    """Says in messages and documentation what a text must look like."""

    expected: str


def _checked_by(parse: Callable[[str], object]) -> AfterValidator:
    """Keeps the text as it is, if `parse` takes it; None (not set) passes."""

    def check(text: str | None) -> str | None:
        if text is not None:
            parse(text)
        return text

    return AfterValidator(check)


def _parse_pattern(text: str) -> object:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error


def parse_paths(text: str) -> tuple[Path, ...]:
    """Raises ValueError where one is not absolute."""
    paths = tuple(Path(part.strip()) for part in text.split(","))
    if not all(path.is_absolute() for path in paths):
        raise ValueError("expected absolute paths")
    return paths


def _parse_url(text: str) -> object:
    scheme, separator, rest = text.partition("://")
    if not (separator and scheme and rest):
        raise ValueError("expected a URL")
    return scheme


def _parse_http_url(text: str) -> object:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("expected a URL without credentials")
    return parts.port  # raises ValueError for one that is none


_HOST_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(\.(?!-)[a-z0-9-]{1,63})*", re.IGNORECASE)


def _parse_host_name(text: str) -> object:
    # An address of digits would never be sent as a server name (RFC 6066, 3).
    if len(text) > 253 or not _HOST_NAME.fullmatch(text) or text.replace(".", "").isdigit():
        raise ValueError("expected a host name")
    return text


def _parse_node_names(text: str) -> object:
    before, separator, after = text.partition("{node_id}")
    if not separator or "{node_id}" in after:
        raise ValueError("expected {node_id} once")
    return _parse_host_name(f"{before}2147483647{after}")


def _read_host(text: str | None) -> str | None:
    return None if text is None else parse_host(text)


_HOST_PORT = (_checked_by(parse_host_port), TextForm("host:port or [IPv6]:port"))

HostPortText = Annotated[str, *_HOST_PORT]
OptionalHostPortText = Annotated[str | None, *_HOST_PORT]
BootstrapText = Annotated[
    str, _checked_by(parse_bootstrap), TextForm("host:port[,host:port…], ports from 1 to 65535")
]
OptionalAdvertisedHost = Annotated[
    str | None,
    AfterValidator(_read_host),
    TextForm(
        "a host name or an IP address that clients can dial (0.0.0.0 and :: are none), without a "
        "port: each broker has one of its own (see gateway.node_map, or, under TLS, "
        "gateway.sni_port_advertised)"
    ),
]
OptionalNodeMap = Annotated[
    str | None,
    _checked_by(parse_node_map),
    TextForm(
        "NODE=PORT, NODE=HOST:PORT or NODE=PORT/HOST:PORT, by commas, nothing twice, no HOST that "
        "clients cannot dial (0.0.0.0, ::)"
    ),
]
OptionalPattern = Annotated[
    str | None, _checked_by(_parse_pattern), TextForm("a regular expression")
]
OptionalPaths = Annotated[
    str | None, _checked_by(parse_paths), TextForm("absolute paths, comma-separated")
]
OptionalAttachments = Annotated[
    str | None,
    _checked_by(parse_attachments),
    TextForm("NAME=STORE_URL#TOPIC, separated by spaces, no name twice"),
]
OptionalUrl = Annotated[
    str | None,
    _checked_by(_parse_url),
    TextForm("a URL such as file:///var/lib/archive or s3://bucket/prefix"),
]
OptionalHttpUrl = Annotated[
    str | None,
    _checked_by(_parse_http_url),
    TextForm("an http:// or https:// URL without credentials in it"),
]
OptionalHostName = Annotated[
    str | None, _checked_by(_parse_host_name), TextForm("a host name, not an address")
]
OptionalNodeNames = Annotated[
    str | None, _checked_by(_parse_node_names), TextForm("a host name with {node_id} in it, once")
]
OptionalRetentionOverrides = Annotated[
    str | None,
    BeforeValidator(overrides_text),
    _checked_by(parse_retention_overrides),
    TextForm(
        "a table (as text: JSON) of patterns, each with remote_log_retention_ms, "
        "remote_log_retention_bytes, local_retention_ms or local_retention_bytes, at least -1"
    ),
]
