"""Texts with a form of their own (addresses, patterns): what is checked, and how it is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from fetchproxy.config.addresses import parse_bootstrap, parse_host_port


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


def _parse_url(text: str) -> object:
    scheme, separator, rest = text.partition("://")
    if not (separator and scheme and rest):
        raise ValueError("expected a URL")
    return scheme


_HOST_PORT = (_checked_by(parse_host_port), TextForm("host:port or [IPv6]:port"))

HostPortText = Annotated[str, *_HOST_PORT]
OptionalHostPortText = Annotated[str | None, *_HOST_PORT]
BootstrapText = Annotated[
    str, _checked_by(parse_bootstrap), TextForm("host:port[,host:port…], ports from 1 to 65535")
]
OptionalPattern = Annotated[
    str | None, _checked_by(_parse_pattern), TextForm("a regular expression")
]
OptionalUrl = Annotated[
    str | None,
    _checked_by(_parse_url),
    TextForm("a URL such as file:///var/lib/archive or s3://bucket/prefix"),
]
