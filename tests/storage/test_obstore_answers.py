"""obstore's errors as this project's errors, and how the environment configures a cloud store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore import exceptions as obstore_errors

from fetchproxy.config.schema import MiB, StoreConfig
from fetchproxy.errors import (
    ConfigError,
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.storage.contract import ODD_KEYS
from fetchproxy.storage.stores.clouds import azure_settings, gcs_settings, open_cloud_store
from fetchproxy.storage.stores.locations import CloudLocation
from fetchproxy.storage.stores.object_store import file_parts
from fetchproxy.storage.stores.obstore_store import (
    PARTS_MAX,
    obstore_error,
    part_size,
    shortly_before,
)
from fetchproxy.storage.stores.s3 import s3_address


def generic(message: str, debug: str = "") -> obstore_errors.GenericError:
    return obstore_errors.GenericError(f"Generic GCS error: {message}\n\nDebug source:\n{debug}")


def status(number: int, body: str = "") -> obstore_errors.GenericError:
    return generic(
        f"Error performing GET http://h/b/k?sig=hunter2 in 1ms - "
        f"Server returned non-2xx status code: {number} Some Words: {body}"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (status(404), ObjectNotFound),
        (status(404, "<Error><Code>NoSuchBucket</Code></Error>"), StorageUnavailable),
        (status(404, "<Error><Code>ContainerNotFound</Code></Error>"), StorageUnavailable),
        (status(416), RangeNotSatisfiable),
        (status(401), StorageDenied),
        (status(403), StorageDenied),
        (status(429), StorageThrottled),
        (status(503), StorageThrottled),
        (status(503, "<Error><Code>ServerBusy</Code></Error>"), StorageThrottled),
        (status(500), StorageUnavailable),
        (status(400), RemoteStorageError),
        (generic("Wanted range starting at 10, but object was only 10 bytes long"),
         RangeNotSatisfiable),
        (generic("HTTP error: error sending request", "kind: Connect"), StorageUnavailable),
        (generic("HTTP error: operation timed out", "kind: Timeout"), StorageUnavailable),
        (obstore_errors.PermissionDeniedError("no\n\nDebug source:\n"), StorageDenied),
        (obstore_errors.InvalidPathError("no"), RemoteStorageError),
    ],
)  # fmt: skip
def test_each_error_of_the_library_has_its_kind_of_ours(
    error: Exception, kind: type[RemoteStorageError]
) -> None:
    mapped = obstore_error(error, "get k")
    assert type(mapped) is kind
    assert str(mapped).startswith("get k: ")


@pytest.mark.parametrize("error", [status(404), status(400), generic("x http://h/k?sig=hunter2")])
def test_no_signature_is_repeated(error: Exception) -> None:
    assert "hunter2" not in str(obstore_error(error, "get k"))


def test_the_cause_is_named() -> None:
    refused = generic("HTTP error: error sending request", "inner: HttpError { kind: Connect,")
    assert str(obstore_error(refused, "get k")).endswith("error sending request (Connect)")
    denied = status(403, "<Code>AccessDenied</Code><Message>You may not.\nRequestId:1</Message>")
    assert str(obstore_error(denied, "get k")).startswith("get k: status 403 AccessDenied: You may")


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_listing_of_a_prefix_begins_shortly_before_it(key: str) -> None:
    for length in range(1, len(key) + 1):
        before = shortly_before(key[:length])
        assert before < key[:length]
        assert not before.endswith("/")
        skipped = [other for other in ODD_KEYS if other <= before]
        assert not any(other.startswith(key[:length]) for other in skipped)


@given(st.integers(1, 5 * 1024**4), st.integers(5 * MiB, 100 * MiB))
def test_parts_are_not_too_many(size_bytes: int, part_bytes: int) -> None:
    size = part_size(size_bytes, part_bytes)
    assert size >= part_bytes
    assert -(-size_bytes // size) <= PARTS_MAX
    if size_bytes <= PARTS_MAX * part_bytes:
        assert size == part_bytes


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert list(file_parts(path, 4, 10)) == [b"0123", b"4567", b"89"]
    assert list(file_parts(path, 4, 8)) == [b"0123", b"4567"]
    with pytest.raises(RemoteStorageError, match="became shorter"):
        list(file_parts(path, 4, 11))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h:7070/b-1/k?x=1", ("http://h:7070", False, "eu")),
        ("https://h/base/b-1/k", ("https://h/base", False, "eu")),
        (
            "https://b-1.s3.eu.amazonaws.com/k?X-Amz-Algorithm=AWS4-HMAC-SHA256",
            ("https://b-1.s3.eu.amazonaws.com", True, "eu"),
        ),
    ],
)
def test_a_signed_url_tells_where_uploads_go(url: str, address: tuple[str, bool, str]) -> None:
    assert s3_address(url, "b-1", "eu") == address
    for everywhere in (None, "aws-global"):
        assert s3_address("http://h/b/k", "b", everywhere)[2] == "us-east-1"


def test_an_emulator_of_cloud_storage() -> None:
    assert gcs_settings({}) == {}
    assert gcs_settings({"STORAGE_EMULATOR_HOST": "localhost:4443"}) == {
        "base_url": "http://localhost:4443",
        "bearer_token": "emulator",
    }
    assert gcs_settings({"STORAGE_EMULATOR_HOST": "https://h/", "GOOGLE_BEARER_TOKEN": "t"}) == {
        "base_url": "https://h",
        "bearer_token": "t",
    }


def test_azures_variables() -> None:
    assert azure_settings({}) == {}
    assert azure_settings({"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "k=="}) == {
        "account_name": "a",
        "account_key": "k==",
    }
    text = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;EndpointSuffix=core.cn;"
    assert azure_settings({"AZURE_STORAGE_CONNECTION_STRING": text}) == {
        "account_name": "a",
        "account_key": "k==",
        "endpoint": "https://a.blob.core.cn",
    }
    signed = "BlobEndpoint=https://h/a;SharedAccessSignature=?sv=1&sig=x%3D;AccountName=a"
    assert azure_settings({"AZURE_STORAGE_CONNECTION_STRING": signed}) == {
        "account_name": "a",
        "endpoint": "https://h/a",
        "sas_key": "sv=1&sig=x%3D",
    }


def test_what_a_cloud_lacks_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="CONNECTION_STRING: expected name=value") as error:
        azure_settings({"AZURE_STORAGE_CONNECTION_STRING": "hunter2"})
    assert "hunter2" not in str(error.value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "a")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "no base64!")
    with pytest.raises(ConfigError, match=r"^store az://container: .*Invalid Access Key"):
        open_cloud_store(CloudLocation("az", "container", ""), StoreConfig())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(ConfigError, match=r"^store gs://bucket: .*/nowhere/key\.json"):
        open_cloud_store(CloudLocation("gs", "bucket", ""), StoreConfig())
