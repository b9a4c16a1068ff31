"""Where stores are, and what their URLs want of them. Apart from their large clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class FileLocation:
    root: Path


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """`gs`: a bucket of Google Cloud Storage; `az`: a container of Azure Blob Storage."""

    scheme: Literal["gs", "az"]
    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class S3Location:
    """None: as the bucket, or its server, has it."""

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    storage_class: str | None = None  # of logs; what is small and often read has the bucket's
    sse: str | None = None  # how the server encrypts
    sse_kms_key_id: str | None = None
    requester_pays: bool = False
    addressing: str | None = None  # "path" or "virtual"
    profile: str | None = field(default=None, compare=False)  # who asks; it is the same place


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """`addresses` are the NameNodes' host:port of HTTP; `folder` is absolute, without end slash."""

    addresses: tuple[str, ...]
    folder: str
    tls: bool = False
    user: str | None = None


@dataclass(frozen=True, slots=True)
class PluginLocation:
    """Only the plug-in reads the URL; `point` says who that is."""

    url: str
    point: EntryPoint = field(compare=False)


Location = FileLocation | S3Location | CloudLocation | HdfsLocation | PluginLocation
