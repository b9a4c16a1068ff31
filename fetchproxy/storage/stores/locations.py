"""The places and options that store URLs name. This module imports none of the large clients."""

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
    """None: the default of the bucket or its server."""

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    storage_class: str | None = None  # of logs; small, often read objects use the bucket's
    sse: str | None = None  # how the server encrypts
    sse_kms_key_id: str | None = None
    requester_pays: bool = False
    addressing: str | None = None  # "path" or "virtual"
    checksum: str | None = None  # "none": writes have none
    profile: str | None = field(default=None, compare=False)  # who asks, not which place


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """`addresses`: the NameNodes' HTTP host:port. `folder`: absolute, without a trailing slash."""

    addresses: tuple[str, ...]
    folder: str
    tls: bool = False
    user: str | None = None


@dataclass(frozen=True, slots=True)
class PluginLocation:
    """Only the plug-in parses the URL. `point`: the plug-in's entry point."""

    url: str
    point: EntryPoint = field(compare=False)


Location = FileLocation | S3Location | CloudLocation | HdfsLocation | PluginLocation
