"""From a store URL to an ObjectStore. Only this module knows all built-in backends."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fetchproxy.config.schema import StoreConfig
from fetchproxy.config.values import mask_text, parse_bootstrap
from fetchproxy.errors import ConfigError
from fetchproxy.segments.object_keys import normal_prefix
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.storage.stores.hdfs_site import webhdfs_addresses
from fetchproxy.storage.stores.locations import (
    CloudLocation,
    FileLocation,
    HdfsLocation,
    Location,
    PluginLocation,
    S3Location,
)
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.storage.stores.plugins import (
    open_plugin_store,
    plugin_of,
    plugin_schemes,
)

_S3_OPTIONS = ("storage_class", "sse", "sse_kms_key_id", "requester_pays", "addressing", "checksum")
_S3_PARAMETERS = ("endpoint_url", "region", "profile", *_S3_OPTIONS)
# Objects in these storage classes must be restored before they can be read.
_COLD = ("GLACIER", "DEEP_ARCHIVE")
_SSE = ("AES256", "aws:kms", "aws:kms:dsse")
_HDFS_PARAMETERS = ("user",)
# Lower case only; no dots for Azure.
_CLOUD_BUCKETS = {
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}"),
}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}")


def parse_store_url(url: str) -> Location:
    """Accepts the schemes of installed plug-ins and

    `file:///path`, `s3://bucket/prefix?endpoint_url=…&region=…&profile=…` (and the others of
    `S3Location`), `gs://bucket/prefix`, `az://container/prefix`,
    `webhdfs://host:port[,host:port]/path?user=…` (with TLS: `swebhdfs:`), `hdfs://nameservice/path`
    (`hdfs_site`).

    Raises ConfigError.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"store URL: {error}") from error
    if parts.username is not None or parts.password is not None:
        # The error does not quote the URL, which may contain a secret.
        raise ConfigError(
            "store URL: must not contain credentials; each store reads them from the environment"
        )
    try:
        return _location(url, parts)
    except ValueError as error:
        raise ConfigError(f"store URL {mask_text(repr(url))}: {error}") from error


def _location(url: str, parts: SplitResult) -> Location:
    """Raises ValueError, as do the functions below; ConfigError for a plug-in."""
    if (point := plugin_of(parts.scheme, _BUILT_IN)) is not None:
        return PluginLocation(url, point)
    if (parse := _BUILT_IN.get(parts.scheme)) is not None:
        return parse(parts)
    schemes = ", ".join([*_BUILT_IN, *plugin_schemes()])
    raise ValueError(f"unknown scheme {parts.scheme!r}; known: {schemes}")


def same_place(url: str, other: str) -> bool:
    """Raises ConfigError."""
    return parse_store_url(url) == parse_store_url(other)


def is_within(url: str, other: str) -> bool:
    """Whether the place `url` lies inside the place `other`: whatever counts, deletes or ages what
    is below `other` finds it, too. A plug-in's places are not compared. Raises ConfigError.
    """
    inner, outer = parse_store_url(url), parse_store_url(other)
    if isinstance(inner, FileLocation) and isinstance(outer, FileLocation):
        return outer.root.resolve() in inner.root.resolve().parents
    if isinstance(inner, HdfsLocation) and isinstance(outer, HdfsLocation):
        same_nodes = not {*inner.addresses}.isdisjoint(outer.addresses)
        return same_nodes and inner.folder.startswith(f"{outer.folder}/")
    if isinstance(inner, S3Location) and isinstance(outer, S3Location):
        inner_server, outer_server = inner.endpoint_url, outer.endpoint_url
    elif isinstance(inner, CloudLocation) and isinstance(outer, CloudLocation):
        inner_server, outer_server = inner.scheme, outer.scheme
    else:
        return False
    same_bucket = (inner_server, inner.bucket) == (outer_server, outer.bucket)
    return same_bucket and inner.prefix != outer.prefix and inner.prefix.startswith(outer.prefix)


def without_secrets(url: str) -> str:
    """The URL without a user and a password before the host, as a plug-in's URL may have them."""
    scheme, separator, remainder = url.partition("://")
    authority, slash, path = remainder.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def open_object_store(
    url: str, config: StoreConfig, *, create: bool = False
) -> tuple[ObjectStore, str]:
    """The store, not opened yet, and the prefix of the archive in it. Raises ConfigError.

    `create`: a write also makes the folder of a `file:` or HDFS store.
    """
    location = parse_store_url(url)
    if isinstance(location, FileLocation):
        return FilesystemObjectStore(location.root, create=create), ""
    if isinstance(location, PluginLocation):
        return open_plugin_store(location.point, location.url, config, create), ""
    # Imported late: their clients take 10 to 43 MiB, which a Spark worker that reads files saves.
    if isinstance(location, CloudLocation):
        from fetchproxy.storage.stores.clouds import open_cloud_store

        return open_cloud_store(location, config), location.prefix
    if isinstance(location, HdfsLocation):
        from fetchproxy.storage.stores.hdfs import HdfsObjectStore

        return HdfsObjectStore(location, create=create, config=config), ""
    from fetchproxy.storage.stores.s3 import S3ObjectStore

    return S3ObjectStore(location, config=config), location.prefix


def _file_location(parts: SplitResult) -> FileLocation:
    _query(parts, ())
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ValueError("expected file:///absolute/path")
    return FileLocation(Path(path))


def _s3_location(parts: SplitResult) -> S3Location:
    query = _query(parts, _S3_PARAMETERS)
    bucket_and_prefix = _named(parts, _BUCKET), normal_prefix(unquote(parts.path))
    endpoint_url = query.get("endpoint_url")
    if endpoint_url is not None and not re.match(r"https?://[^/]", endpoint_url):
        raise ValueError("endpoint_url has to start with http:// or https://")
    if query.get("storage_class") in _COLD:
        raise ValueError(f"storage_class {query['storage_class']} does not allow immediate reads")
    if query.get("sse") not in (None, *_SSE):
        raise ValueError(f"sse has to be one of {', '.join(_SSE)}")
    if "sse_kms_key_id" in query and not query.get("sse", "").startswith("aws:kms"):
        raise ValueError("sse_kms_key_id needs sse=aws:kms")
    pays = query.pop("requester_pays", "false")
    if pays not in ("true", "false"):
        raise ValueError("requester_pays has to be true or false")
    if query.get("addressing") not in (None, "path", "virtual"):
        raise ValueError("addressing has to be path or virtual")
    if query.get("checksum") not in (None, "none"):
        raise ValueError("checksum can only be none; without it, the server decides")
    return S3Location(*bucket_and_prefix, **query, requester_pays=pays == "true")


def _cloud_location(parts: SplitResult) -> CloudLocation:
    scheme: Literal["gs", "az"] = "gs" if parts.scheme == "gs" else "az"
    _query(parts, ())
    bucket = _named(parts, _CLOUD_BUCKETS[scheme])
    return CloudLocation(scheme, bucket, normal_prefix(unquote(parts.path)))


def _named(parts: SplitResult, bucket: re.Pattern[str]) -> str:
    if not bucket.fullmatch(parts.netloc):
        raise ValueError(f"{parts.netloc!r} is not a bucket name")
    return parts.netloc


def _hdfs_location(parts: SplitResult) -> HdfsLocation:
    query = _query(parts, _HDFS_PARAMETERS)
    if parts.scheme == "hdfs":
        addresses, tls = webhdfs_addresses(parts.netloc)
    else:
        addresses = tuple(str(address) for address in parse_bootstrap(parts.netloc))
        tls = parts.scheme == "swebhdfs"
    folder = normal_prefix(unquote(parts.path)).rstrip("/")
    return HdfsLocation(
        addresses=addresses,
        folder=f"/{folder}" if folder else "",
        tls=tls,
        user=query.get("user") or os.environ.get("HADOOP_USER_NAME"),
    )


def _query(parts: SplitResult, allowed: tuple[str, ...]) -> dict[str, str]:
    if parts.fragment:
        raise ValueError("no '#' there")
    known_names = ", ".join(allowed) or "none"
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in allowed:
            raise ValueError(f"unknown parameter {name!r}; known: {known_names}")
        if not value or name in parameters:
            raise ValueError(f"{name} is empty or given twice")
        parameters[name] = value
    return parameters


_BUILT_IN: Mapping[str, Callable[[SplitResult], Location]] = {
    "file": _file_location,
    "s3": _s3_location,
    "gs": _cloud_location,
    "az": _cloud_location,
    "hdfs": _hdfs_location,  # by the user's own hdfs-site.xml
    "webhdfs": _hdfs_location,  # Hadoop's own names
    "swebhdfs": _hdfs_location,  # with TLS
}
