"""`hdfs://` URLs: the NameNodes' addresses come from the user's own Hadoop configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ConfigError
from fetchproxy.storage.stores.hdfs_site import namenodes
from fetchproxy.storage.stores.locations import HdfsLocation
from fetchproxy.storage.stores.registry import open_object_store, parse_store_url, same_place

PAIR = {
    "dfs.nameservices": "prod, other",
    "dfs.ha.namenodes.prod": "nn1,nn2",
    "dfs.namenode.http-address.prod.nn1": "a.example:9870",
    "dfs.namenode.http-address.prod.nn2": "b.example:50070",
    "dfs.namenode.https-address.prod.nn1": "a.example:9871",
    "dfs.namenode.https-address.prod.nn2": "0.0.0.0:9871",
    "dfs.namenode.rpc-address.prod.nn1": "a.example:8020",
    "dfs.namenode.rpc-address.prod.nn2": "b.example:8020",
    "dfs.namenode.http-address.other": "c.example:9870",
}


@pytest.mark.parametrize(
    ("more", "authority", "addresses", "tls"),
    [
        ({}, "prod", ("a.example:9870", "b.example:50070"), False),
        ({}, "other", ("c.example:9870",), False),
        ({"fs.defaultFS": "hdfs://prod"}, "", ("a.example:9870", "b.example:50070"), False),
        ({"fs.defaultFS": "hdfs://prod/"}, "", ("a.example:9870", "b.example:50070"), False),
        ({"dfs.http.policy": "HTTPS_ONLY"}, "prod", ("a.example:9871", "b.example:9871"), True),
        ({"dfs.http.policy": "HTTP_AND_HTTPS"}, "other", ("c.example:9870",), False),
        # The host of the RPC address, and the ports of Hadoop 3.
        ({"dfs.http.policy": "HTTPS_ONLY", "dfs.namenode.rpc-address.other": "c:8020"},
         "other", ("c:9871",), True),
        # Without a name service.
        ({}, "d.example:8020", ("d.example:9870",), False),
        ({"dfs.namenode.http-address": "d.example:14000"},
         "d.example:8020", ("d.example:14000",), False),
        ({"dfs.namenode.http-address": "0.0.0.0:14000"}, "[::1]:8020", ("[::1]:14000",), False),
        ({"host": "e", "dfs.namenode.http-address.other": "${host}.example:${port}", "port": "1"},
         "other", ("e.example:1",), False),
    ],
)  # fmt: skip
def test_a_name_service(
    more: Mapping[str, str], authority: str, addresses: tuple[str, ...], *, tls: bool
) -> None:
    assert namenodes(PAIR | more, authority, "conf") == (addresses, tls)


@pytest.mark.parametrize(
    ("more", "authority", "message"),
    [
        ({}, "prud", "'prud' is no name service of dfs.nameservices in conf, and no host:port"),
        ({}, "", "names no host, and conf has no fs.defaultFS of hdfs://"),
        ({"fs.defaultFS": "file:///"}, "", "no fs.defaultFS of hdfs://"),
        ({"dfs.http.policy": "HTTPS_ONLY"}, "other", "has no dfs.namenode.rpc-address.other"),
        ({"dfs.namenode.http-address.other": "c"}, "other", "http-address.other in conf is 'c'"),
        ({"dfs.namenode.http-address.other": "a:1,b:2"}, "other", "is 'a:1,b:2': "),
        ({"dfs.namenode.http-address.other": "${h}:1"}, "other", "has ${h}, which is not set"),
        ({"dfs.namenode.http-address.other": "${h}", "h": "${h}"}, "other", "refers to itself"),
    ],
)
def test_what_is_wrong_in_it_is_named(
    more: Mapping[str, str], authority: str, message: str
) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - its text is compared
        namenodes(PAIR | more, authority, "conf")
    assert message in str(error.value)


def configuration(folder: Path, properties: Mapping[str, str]) -> Path:
    """As Hadoop's `hdfs-site.xml`."""
    entries = "".join(
        f"  <property>\n    <name>{name}</name>\n    <value>{escape(value)}</value>\n"
        "    <final>true</final>\n  </property>\n"
        for name, value in properties.items()
    )
    folder.mkdir(parents=True, exist_ok=True)
    text = f'<?xml version="1.0"?>\n<!-- ours -->\n<configuration>\n{entries}</configuration>\n'
    (folder / "hdfs-site.xml").write_text(text)
    return folder


def test_a_url_by_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    folder = configuration(tmp_path / "etc" / "hadoop", PAIR)
    expected = HdfsLocation(("a.example:9870", "b.example:50070"), "/kafka", user="kafka")
    assert parse_store_url("hdfs://prod/kafka?user=kafka") == expected
    assert same_place("hdfs://other/a", "webhdfs://c.example:9870/a")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "mine"))
    with pytest.raises(ConfigError, match="mine has neither core-site"):
        parse_store_url("hdfs://prod/kafka")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
    (folder / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://prod</value></property>"
        "</configuration>"
    )
    assert parse_store_url("hdfs:///kafka?user=kafka") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<configuration>", "hdfs-site.xml is not XML"),
        ("<configuration><include/></configuration>", "has <include>; only <property>"),
        ("<configuration/>", "has neither core-site.xml nor hdfs-site.xml with properties"),
    ],
)
def test_files_that_are_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "hdfs-site.xml").write_text(text)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(ConfigError) as error:
        open_object_store("hdfs://prod/x", StoreConfig())
    assert message in str(error.value)


def test_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(ConfigError) as error:
        parse_store_url("hdfs://prod/x")
    assert "set HADOOP_CONF_DIR" in str(error.value)
    assert "as in webhdfs://namenode:9870/path" in str(error.value)
