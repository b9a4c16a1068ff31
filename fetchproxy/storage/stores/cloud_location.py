"""Where a store of a cloud is, and what its URL wants of it. Apart from its large client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """`gs`: a bucket of Google Cloud Storage; `az`: a container of Azure Blob Storage."""

    scheme: Literal["gs", "az"]
    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class S3Options:
    """None: as the bucket, or its server, has it."""

    storage_class: str | None = None  # of logs; what is small and often read has the bucket's
    sse: str | None = None  # how the server encrypts
    sse_kms_key_id: str | None = None
    requester_pays: bool = False
    addressing: Literal["path", "virtual"] | None = None


@dataclass(frozen=True, slots=True)
class S3Location:
    bucket: str
    prefix: str
    endpoint_url: str | None
    region: str | None
    options: S3Options = S3Options()
    profile: str | None = field(default=None, compare=False)  # who asks; it is the same place
