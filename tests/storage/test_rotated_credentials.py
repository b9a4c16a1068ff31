"""Keys of a store that are replaced while a process uses them: it goes on by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import StorageDenied
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore
from lab.s3 import S3Server

pytestmark = pytest.mark.s3
MULTIPART = b"m" * (6 * 1024 * 1024)


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
    store._credentials._looked_at = float("-inf")


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
