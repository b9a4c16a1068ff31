"""Keys of a store that are replaced while a process uses them: it goes on by itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from certificates import Authority
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from structlog.testing import capture_logs

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import StorageDenied, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.runtime import folders
from fetchproxy.storage.stores.clouds import open_cloud_store
from fetchproxy.storage.stores.locations import CloudLocation, S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore
from lab.s3 import MotoServer, S3Server, versitygw_executable

pytestmark = pytest.mark.s3
MULTIPART = b"m" * (6 * 1024 * 1024)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no disk that hangs."""
    monkeypatch.setattr(folders, "FILE_LOOK_WAIT_MAX_S", 60)


@pytest.fixture
def credentials(own_s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    write_keys(file, own_s3_server)
    return file


def write_keys(file: Path, server: S3Server) -> None:
    file.write_text(
        f"[default]\naws_access_key_id={server.access_key}\n"
        f"aws_secret_access_key={server.secret_key}\n"
    )


def again(store: S3ObjectStore) -> None:
    """Without the pause between two looks."""
    assert store._credentials is not None
    store._credentials._read_at = float("-inf")


async def test_credentials_of_a_web_identity_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service gives other keys each time. With ten minutes left, boto asks for new ones."""
    token = tmp_path / "token"
    token.write_text("first")
    role = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/archive",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    with MotoServer() as server:
        for name in server.environment:
            monkeypatch.delenv(name, raising=False)
        for name, value in role.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint_url)
        monkeypatch.setenv("AWS_REGION", server.region)
        location = S3Location("pods", endpoint_url=server.endpoint_url, region=server.region)
        async with S3ObjectStore(location, config=StoreConfig()) as store:
            await (await store._opened()).create_bucket(Bucket="pods")
            await store.put("a", b"1")
            before = store._frozen.access_key
            token.write_text("second")
            assert store._credentials is not None
            soon = datetime.now(UTC) + timedelta(minutes=55)  # they are good for an hour
            monkeypatch.setattr("botocore.credentials._local_now", lambda: soon)
            monkeypatch.setattr(store._credentials._current, "_time_fetcher", lambda: soon)
            await store.put("b", b"2")
            assert store._frozen.access_key != before
            assert [await store.get(key) for key in ("a", "b")] == [b"1", b"2"]


@pytest.mark.parametrize("key", ["lab-access", "lab-other"], ids=["secret", "key"])
async def test_a_rotated_credentials_file_is_read_again(
    own_s3_server: S3Server, credentials: Path, tmp_path: Path, key: str
) -> None:
    bucket = own_s3_server.create_bucket("rotated")
    location = S3Location(bucket, endpoint_url=own_s3_server.endpoint_url, region="us-east-1")
    (tmp_path / "large").write_bytes(MULTIPART)
    async with S3ObjectStore(location, config=StoreConfig(), part_bytes=5 * 1024 * 1024) as store:
        await store.put("a/1", b"one")
        assert await store.get("a/1") == b"one"
        own_s3_server.change_account(key, "another-secret")
        for request in (store.get("a/1"), store.put("a/2", b"two"), store.delete("a/3")):
            with pytest.raises(StorageDenied):
                await request
        again(store)
        write_keys(credentials, own_s3_server)
        assert await store.get_range("a/1", ByteRange(1, 3)) == b"ne"
        await store.put("a/2", b"two")
        await store.put_file("a/large", tmp_path / "large")
        assert [one.key async for one in store.list("a/")] == ["a/1", "a/2", "a/large"]
        await store.delete("a/2")


async def test_credentials_that_come_later_are_found(
    own_s3_server: S3Server, credentials: Path
) -> None:
    bucket = own_s3_server.create_bucket("later")
    location = S3Location(bucket, endpoint_url=own_s3_server.endpoint_url, region="us-east-1")
    credentials.unlink()
    async with S3ObjectStore(location, config=StoreConfig()) as store:
        with pytest.raises(StorageDenied):
            await store.put("a", b"1")
        write_keys(credentials, own_s3_server)
        again(store)
        await store.put("a", b"1")
        assert await store.get("a") == b"1"


async def test_a_rotated_authority_is_trusted(
    find_part: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_part("s3", versitygw_executable)
    old, new = (Authority(tmp_path / name, name) for name in ("old", "new"))
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.file.read_bytes())
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    certificate = old.issue("server", key_file=True)
    with S3Server(certificate=certificate) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        location = S3Location("trust", endpoint_url=server.endpoint_url, region=server.region)
        async with S3ObjectStore(location, config=StoreConfig()) as store:
            await (await store._opened()).create_bucket(Bucket="trust")
            await store.put("a", b"1")
            server.kill()
            issued = new.issue("server", key_file=True)
            shutil.copy(issued, certificate)
            shutil.copy(new.key_of(issued), old.key_of(certificate))
            server.start()
            with pytest.raises(StorageUnavailable):
                await store.get("a")
            trusted.write_bytes(new.file.read_bytes())
            store._trusted._look_at = 0.0  # no pause in this test
            assert await store.get("a") == b"1"
            await store.put("b", b"2")


async def test_a_rotated_key_file_of_cloud_storage_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key.json"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()

    def write(key_id: str) -> None:
        fields = {"private_key": pem, "private_key_id": key_id, "client_email": "a@b.example"}
        file.write_text(json.dumps({"type": "service_account", **fields}))

    write("1")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    store = open_cloud_store(CloudLocation("gs", "bucket", ""), StoreConfig())
    assert store._renewal is not None
    first = await store._opened()

    async def now() -> object:
        assert store._renewal is not None
        store._renewal.file._look_at = 0.0  # no pause in this test
        return await store._opened()

    assert await now() is first
    file.write_text("{")
    with capture_logs() as logged:
        assert await now() is first
    assert [entry["event"] for entry in logged] == ["store_credentials_unusable"]
    write("2")
    assert await now() is not first
    await store.close()
