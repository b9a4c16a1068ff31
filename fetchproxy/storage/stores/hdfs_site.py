"""The NameNodes of `hdfs://nameservice/path`, from the user's own Hadoop configuration.

Hadoop's clients find a name service in `core-site.xml` and `hdfs-site.xml`, in HADOOP_CONF_DIR or
HADOOP_HOME/etc/hadoop. Here the same keys give the addresses of WebHDFS. The rules are those of
Hadoop's `DFSUtil.getInfoServer`, `DFSUtil.getHttpClientScheme` and `Configuration`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from fetchproxy.config.values import HostPort, parse_host_port

Properties = Mapping[str, str]

_FILES = ("core-site.xml", "hdfs-site.xml")
_HTTP_PORT, _HTTPS_PORT = 9870, 9871  # Hadoop's defaults since version 3
_ANY_HOST = "0.0.0.0"
_VARIABLE = re.compile(r"\$\{([^{}$\s]+)\}")
_NESTED_MAX = 20  # as in Hadoop


def webhdfs_addresses(authority: str) -> tuple[tuple[str, ...], bool]:
    """The `host:port` of each NameNode of `hdfs://authority`, and whether they speak TLS.

    An empty authority means the file system of `fs.defaultFS`. Raises ValueError, naming the file
    or the key.
    """
    folder = _folder()
    return namenodes(read_properties(folder), authority, str(folder))


def namenodes(
    properties: Properties, authority: str, source_name: str
) -> tuple[tuple[str, ...], bool]:
    """As `webhdfs_addresses`; `source_name` is for errors. Pure."""
    keys = _Keys(properties, source_name)
    if not authority:
        default = keys.get("fs.defaultFS") or ""
        scheme, _, remainder = default.partition("://")
        authority = remainder.partition("/")[0]
        if scheme != "hdfs" or not authority:
            raise ValueError(f"it names no host, and {source_name} has no fs.defaultFS of hdfs://")
    tls = (keys.get("dfs.http.policy") or "").upper() == "HTTPS_ONLY"
    if authority in keys.names("dfs.nameservices"):
        ids = keys.names(f"dfs.ha.namenodes.{authority}")
        suffixes = [f".{authority}.{id_}" for id_ in ids] or [f".{authority}"]
        return tuple(str(keys.http_address(suffix, tls=tls)) for suffix in suffixes), tls
    if not authority.rpartition(":")[2].isdecimal():
        raise ValueError(
            f"{authority!r} is no name service of dfs.nameservices in {source_name}, and no "
            "host:port"
        )
    return (str(keys.http_address("", authority, tls=tls)),), tls


def read_properties(folder: Path) -> dict[str, str]:
    """Raises ValueError if there is no such file, or one is no Hadoop configuration."""
    properties: dict[str, str] = {}
    for name in _FILES:
        file = folder / name
        try:
            root = ElementTree.parse(file).getroot()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ValueError(f"cannot read {file}: {error.strerror}") from None
        except ElementTree.ParseError as error:
            raise ValueError(f"{file} is not XML: {error}") from None
        for entry in root:
            if entry.tag != "property":
                raise ValueError(f"{file} has <{entry.tag}>; only <property> is understood")
            key, value = entry.findtext("name"), entry.findtext("value")
            if key is not None and value is not None:
                properties[key.strip()] = value.strip()
    if not properties:
        raise ValueError(f"{folder} has neither {' nor '.join(_FILES)} with properties")
    return properties


def _folder() -> Path:
    if folder := os.environ.get("HADOOP_CONF_DIR"):
        return Path(folder)
    if home := os.environ.get("HADOOP_HOME"):
        return Path(home) / "etc" / "hadoop"
    raise ValueError(
        "to find the NameNodes, set HADOOP_CONF_DIR to the folder of core-site.xml and "
        "hdfs-site.xml, or name their HTTP addresses, as in webhdfs://namenode:9870/path"
    )


class _Keys:
    """The properties, with `${other.key}` replaced in their values."""

    def __init__(self, properties: Properties, source_name: str) -> None:
        self._properties = properties
        self._where = source_name

    def get(self, key: str) -> str | None:
        value = self._properties.get(key)
        for _ in range(_NESTED_MAX):
            if value is None or (variable := _VARIABLE.search(value)) is None:
                return value or None
            value = value.replace(variable[0], self._value_of(key, variable[1]))
        raise ValueError(f"{key} in {self._where} refers to itself")

    def names(self, key: str) -> list[str]:
        return [name for name in re.split(r"[,\s]+", self.get(key) or "") if name]

    def http_address(self, suffix: str, rpc_address: str | None = None, *, tls: bool) -> HostPort:
        """Of one NameNode; the keys about it end with `suffix`. It may be set as a port of all
        addresses of the host that speaks RPC, and need not be set.
        """
        key = f"dfs.namenode.{'https' if tls else 'http'}-address{suffix}"
        default = f"{_ANY_HOST}:{_HTTPS_PORT if tls else _HTTP_PORT}"
        address = self._address(key, self.get(key) or default)
        if address.host != _ANY_HOST:
            return address
        key = f"dfs.namenode.rpc-address{suffix}"
        rpc_address = rpc_address or self.get(key)
        if rpc_address is None:
            raise ValueError(f"{self._where} has no {key}")
        return HostPort(self._address(key, rpc_address).host, address.port)

    def _address(self, key: str, value: str) -> HostPort:
        try:
            return parse_host_port(value)
        except ValueError as error:
            raise ValueError(f"{key} in {self._where} is {value!r}: {error}") from None

    def _value_of(self, key: str, variable: str) -> str:
        if variable.startswith("env."):
            value = os.environ.get(variable.removeprefix("env."))
        else:
            value = self._properties.get(variable)
        if value is None:
            raise ValueError(f"{key} in {self._where} has ${{{variable}}}, which is not set")
        return value
