"""The contract on a real S3 server over TLS, which every vendor's S3 service requires."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from certificates import Authority

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.storage.contract import CONTRACT_PART_BYTES, ObjectStoreContract, noise
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore
from lab.s3 import S3Server, versitygw_executable

pytestmark = pytest.mark.s3

FindPart = Callable[[str, Callable[[], Path]], Path]
_numbers = count()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_server(find_part: FindPart, authority: Authority) -> Iterator[S3Server]:
    find_part("s3", versitygw_executable)
    with S3Server(certificate=authority.issue("server", key_file=True)) as server:
        yield server


@pytest.fixture
async def store(
    tls_server: S3Server, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[S3ObjectStore]:
    for name, value in tls_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
    async with open_bucket(tls_server) as store:
        await (await store._opened()).create_bucket(Bucket=store._bucket)
        yield store


def open_bucket(server: S3Server) -> S3ObjectStore:
    return S3ObjectStore(
        S3Location(
            f"contract-{next(_numbers)}", endpoint_url=server.endpoint_url, region=server.region
        ),
        config=StoreConfig(),
        part_bytes=CONTRACT_PART_BYTES,
    )


@pytest.mark.slow
class TestS3ObjectStoreOverTls(ObjectStoreContract):
    cancel_turn_s = 0.001


async def test_a_body_has_no_hash_beside_its_crc64(store: S3ObjectStore, tmp_path: Path) -> None:
    content = noise(3 * CONTRACT_PART_BYTES)
    (tmp_path / "file").write_bytes(content)
    await store.put_file("k", tmp_path / "file")
    assert bytes(await store.get_range("k", ByteRange(0, len(content)))) == content
    obstore = await store._writer()
    config = (await obstore._opened()).writer.config
    assert (config["unsigned_payload"], config["checksum_algorithm"]) == ("true", "CRC64NVME")


async def test_a_certificate_of_another_authority_is_not_trusted(
    store: S3ObjectStore,
    tls_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds for reads and for writes; two clients make them."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(Authority(tmp_path, "other").file))
    async with open_bucket(tls_server) as distrustful:
        with pytest.raises(StorageUnavailable):
            await distrustful.get("k")
        with pytest.raises(StorageUnavailable):
            await distrustful.put("k", b"x")
