"""From a store URL to an ObjectStore. The only place that knows every backend."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fetchproxy.config.schema import StoreConfig
from fetchproxy.config.values import mask_text, parse_bootstrap
from fetchproxy.errors import ConfigError
from fetchproxy.segments.object_keys import normal_prefix
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.storage.stores.hdfs_location import HdfsLocation
from fetchproxy.storage.stores.object_store import ObjectStore

_S3_PARAMETERS = ("endpoint_url", "region")
_HDFS_PARAMETERS = ("user",)
_HDFS_SCHEMES = ("webhdfs", "swebhdfs")  # Hadoop's own names; the second by TLS
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}")


@dataclass(frozen=True, slots=True)
class FileLocation:
    root: Path


@dataclass(frozen=True, slots=True)
class S3Location:
    bucket: str
    prefix: str
    endpoint_url: str | None
    region: str | None


def parse_store_url(url: str) -> FileLocation | S3Location | HdfsLocation:
    """Raises ConfigError for anything but

    `file:///path`, `s3://bucket/prefix?endpoint_url=…&region=…`,
    `webhdfs://host:port[,host:port]/path?user=…` (by TLS: `swebhdfs:`).
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"store URL: {error}") from error
    if parts.username is not None or parts.password is not None:
        # Not quoted: it may hold a secret.
        raise ConfigError("store URL: credentials do not belong there; S3's are found as by boto3")
    if parts.scheme == "file":
        return _file_location(url, parts)
    if parts.scheme == "s3":
        return _s3_location(url, parts)
    if parts.scheme in _HDFS_SCHEMES:
        return _hdfs_location(url, parts)
    if parts.scheme == "hdfs":
        raise ConfigError(
            f"store URL {mask_text(repr(url))}: HDFS is spoken to by WebHDFS: give the NameNode's "
            "HTTP address, as in webhdfs://namenode:9870/path"
        )
    raise ConfigError(
        f"store URL {mask_text(repr(url))}: unknown scheme {parts.scheme!r}; "
        "known: file, s3, webhdfs, swebhdfs"
    )


def open_object_store(
    url: str, config: StoreConfig, *, create: bool = False
) -> tuple[ObjectStore, str]:
    """The store, not opened yet, and the prefix of the archive in it. Raises ConfigError.

    `create`: a write makes the folder of a `file:` or HDFS store, too.
    """
    location = parse_store_url(url)
    if isinstance(location, FileLocation):
        return FilesystemObjectStore(location.root, create=create), ""
    # Their clients take 10 and 43 MiB in each process that loads them: a Spark worker that reads
    # files does not.
    if isinstance(location, HdfsLocation):
        from fetchproxy.storage.stores.hdfs import HdfsObjectStore

        return HdfsObjectStore(location, create=create, config=config), ""
    from fetchproxy.storage.stores.s3 import S3ObjectStore

    store = S3ObjectStore(
        location.bucket,
        endpoint_url=location.endpoint_url,
        region=location.region,
        config=config,
    )
    return store, location.prefix


def _file_location(url: str, parts: SplitResult) -> FileLocation:
    _query(url, parts, ())
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ConfigError(f"store URL {mask_text(repr(url))}: expected file:///absolute/path")
    return FileLocation(Path(path))


def _s3_location(url: str, parts: SplitResult) -> S3Location:
    query = _query(url, parts, _S3_PARAMETERS)
    if not _BUCKET.fullmatch(parts.netloc):
        raise ConfigError(f"store URL {mask_text(repr(url))}: {parts.netloc!r} is no bucket name")
    try:
        prefix = normal_prefix(unquote(parts.path))
    except ValueError as error:
        raise ConfigError(f"store URL {mask_text(repr(url))}: {error}") from error
    endpoint_url = query.get("endpoint_url")
    if endpoint_url is not None and not re.match(r"https?://[^/]", endpoint_url):
        raise ConfigError(
            f"store URL {mask_text(repr(url))}: endpoint_url has to start with http:// or https://"
        )
    return S3Location(parts.netloc, prefix, endpoint_url, query.get("region"))


def _hdfs_location(url: str, parts: SplitResult) -> HdfsLocation:
    query = _query(url, parts, _HDFS_PARAMETERS)
    try:
        addresses = parse_bootstrap(parts.netloc)
        folder = normal_prefix(unquote(parts.path)).rstrip("/")
    except ValueError as error:
        raise ConfigError(f"store URL {mask_text(repr(url))}: {error}") from error
    return HdfsLocation(
        addresses=tuple(str(address) for address in addresses),
        folder=f"/{folder}" if folder else "",
        tls=parts.scheme == "swebhdfs",
        user=query.get("user") or os.environ.get("HADOOP_USER_NAME"),
    )


def _query(url: str, parts: SplitResult, allowed: tuple[str, ...]) -> dict[str, str]:
    if parts.fragment:
        raise ConfigError(f"store URL {mask_text(repr(url))}: no '#' there")
    known = ", ".join(allowed) or "none"
    found: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in allowed:
            raise ConfigError(
                f"store URL {mask_text(repr(url))}: unknown parameter {name!r}; known: {known}"
            )
        if not value or name in found:
            raise ConfigError(f"store URL {mask_text(repr(url))}: {name} is empty or given twice")
        found[name] = value
    return found
