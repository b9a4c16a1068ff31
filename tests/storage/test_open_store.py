from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ArchiveMissing, ConfigError, StorageUnavailable
from fetchproxy.storage.archive_identity import ArchiveIdentity
from fetchproxy.storage.remote_storage import open_store
from fetchproxy.storage.stores.locations import CloudLocation, HdfsLocation
from fetchproxy.storage.stores.registry import FileLocation, S3Location, parse_store_url


def test_file_urls() -> None:
    assert parse_store_url("file:///srv/my%20archive") == FileLocation(Path("/srv/my archive"))
    assert parse_store_url("file://localhost/srv") == FileLocation(Path("/srv"))


def test_s3_urls() -> None:
    assert parse_store_url("s3://bucket") == S3Location("bucket", "", None, None)
    assert parse_store_url(
        "s3://bucket/team/archive/?endpoint_url=http://127.0.0.1:7070&region=eu-north-1"
    ) == S3Location("bucket", "team/archive/", "http://127.0.0.1:7070", "eu-north-1")
    assert parse_store_url("s3://bucket/?endpoint_url=https%3A%2F%2Fs3.example%2Fx") == S3Location(
        "bucket", "", "https://s3.example/x", None
    )


def test_options_of_s3() -> None:
    url = "s3://bucket/p?storage_class=STANDARD_IA&sse=aws:kms&sse_kms_key_id=k&requester_pays=true"
    assert parse_store_url(url + "&addressing=virtual") == S3Location(
        "bucket",
        "p/",
        storage_class="STANDARD_IA",
        sse="aws:kms",
        sse_kms_key_id="k",
        requester_pays=True,
        addressing="virtual",
    )


def test_cloud_urls() -> None:
    assert parse_store_url("gs://my.bucket_1") == CloudLocation("gs", "my.bucket_1", "")
    assert parse_store_url("az://my-container/a/b/") == CloudLocation("az", "my-container", "a/b/")


def test_hdfs_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    assert parse_store_url("webhdfs://nn:9870") == HdfsLocation(("nn:9870",), "")
    assert parse_store_url("swebhdfs://nn1:9871,nn2:9871/team/a/?user=kafka") == HdfsLocation(
        ("nn1:9871", "nn2:9871"), "/team/a", tls=True, user="kafka"
    )
    monkeypatch.setenv("HADOOP_USER_NAME", "hadoop")
    assert parse_store_url("webhdfs://nn:9870/a") == HdfsLocation(("nn:9870",), "/a", user="hadoop")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://bucket/x", "unknown scheme 'ftp'; known: file, s3, gs, az, hdfs, webhdfs, s"),
        ("gs://b/x", "'b' is not a bucket name"),
        ("gs://bucket/x?endpoint_url=http://x", "unknown parameter 'endpoint_url'; known: none"),
        ("az://Container/x", "'Container' is not a bucket name"),
        ("az://a.b/x", "'a.b' is not a bucket name"),
        ("az://container/a//b", "invalid part"),
        ("/srv/archive", "unknown scheme ''; known: file, s3"),
        ("hdfs://namenode:8020/x", "as in webhdfs://namenode:9870/path"),
        ("webhdfs://namenode/x", "expected host:port"),
        ("webhdfs:///x", "expected host:port"),
        ("webhdfs://namenode:9870/a/../b", "invalid part"),
        ("webhdfs://namenode:9870/a?token=x", "unknown parameter 'token'; known: user"),
        ("file:relative", "file:///absolute/path"),
        ("file://host/srv", "file:///absolute/path"),
        ("file:///srv?x=1", "unknown parameter 'x'; known: none"),
        ("s3://b/p?end_point=http://x", "unknown parameter 'end_point'; known: endpoint_url, regi"),
        ("s3://bucket/p?region=", "region is empty or given twice"),
        ("s3://bucket/p?region=a&region=b", "region is empty or given twice"),
        ("s3://bucket/p?endpoint_url=localhost:7070", "has to start with http"),
        ("s3://bucket/p?storage_class=GLACIER", "GLACIER does not allow immediate reads"),
        ("s3://bucket/p?sse=rot13", "sse has to be one of AES256, aws:kms, aws:kms:dsse"),
        ("s3://bucket/p?sse=AES256&sse_kms_key_id=k", "sse_kms_key_id needs sse=aws:kms"),
        ("s3://bucket/p?sse_kms_key_id=k", "sse_kms_key_id needs sse=aws:kms"),
        ("s3://bucket/p?requester_pays=yes", "requester_pays has to be true or false"),
        ("s3://bucket/p?addressing=auto", "addressing has to be path or virtual"),
        ("s3:///prefix", "'' is not a bucket name"),
        ("s3://b/prefix", "'b' is not a bucket name"),
        ("s3://bucket/a//b", "invalid part"),
        ("s3://bucket/../b", "invalid part"),
        ("s3://bucket/a#b", "no '#' there"),
        ("s3://[bucket/a", "store URL"),
    ],
)
def test_what_is_wrong_is_named(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match="store URL") as error:
        open_store(url, StoreConfig())
    assert message in str(error.value)


def test_secrets_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as error:
        parse_store_url("s3://AKIAKEY:hunter2@bucket/p")
    assert "hunter2" not in str(error.value)


async def test_a_mistyped_path_is_no_empty_archive(tmp_path: Path) -> None:
    async with open_store(f"file://{tmp_path}/typo", StoreConfig()) as storage:
        with pytest.raises(StorageUnavailable, match="typo is not there"):
            await storage.objects.list_partitions()
    assert list(tmp_path.iterdir()) == []


async def test_who_writes_an_archive_makes_its_folder(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/new/archive"
    async with open_store(url, StoreConfig(), create=True) as storage:
        with pytest.raises(ArchiveMissing):
            await storage.objects.list_partitions()
        assert list(tmp_path.iterdir()) == [], "a look makes nothing"
        await storage.identity.state(ArchiveIdentity())
    async with open_store(url, StoreConfig()) as storage:
        assert await storage.objects.list_partitions() == []


async def test_an_s3_store_is_opened_without_its_server() -> None:
    url = "s3://bucket/p?endpoint_url=http://127.0.0.1:9&region=us-east-1"
    async with open_store(url, StoreConfig()):
        pass


@pytest.mark.parametrize("part", ["fetchproxy.remotelog.store_thread", "fetchproxy.cli.serve"])
def test_who_opens_a_folder_does_not_load_the_clients_of_s3(tmp_path: Path, part: str) -> None:
    program = (
        "import sys\n"
        f"import {part}\n"
        "from fetchproxy.config.schema import StoreConfig\n"
        "from fetchproxy.storage.remote_storage import open_store\n"
        f"open_store({tmp_path.as_uri()!r}, StoreConfig())\n"
        "print([name for name in sys.modules if 'botocore' in name or 'aiohttp' in name])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stdout + result.stderr
