"""Where an HDFS store is. Apart from its client, which loads that of HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """`addresses` are the NameNodes' host:port of HTTP; `folder` is absolute, without end slash."""

    addresses: tuple[str, ...]
    folder: str
    tls: bool = False
    user: str | None = None
