"""The contract on a real HDFS with Kerberos, plus cases that only a NameNode can show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import count
from urllib.request import Request, urlopen

import pytest
from archive_contract import ArchiveContract

from fetchproxy.errors import RemoteStorageError, StorageDenied, StorageUnavailable
from fetchproxy.storage.contract import (
    CONTRACT_PART_BYTES,
    ObjectStoreContract,
    keys_of,
)
from fetchproxy.storage.stores.hdfs import HdfsObjectStore, _slices
from fetchproxy.storage.stores.kerberos import Negotiation
from fetchproxy.storage.stores.locations import HdfsLocation
from lab.kerberos import Kdc
from lab.secured_hdfs import SecuredHdfs

pytestmark = pytest.mark.hdfs

_numbers = count()
TOKEN_LIFE_MS = 4_000


@pytest.fixture(scope="module")
def secured_hdfs(module_kdc: Kdc, serve_part: object) -> Iterator[SecuredHdfs]:
    assert callable(serve_part)
    yield from serve_part("hdfs", SecuredHdfs(module_kdc))


@pytest.fixture(scope="module")
def forgetful_hdfs(module_kdc: Kdc, serve_part: object) -> Iterator[SecuredHdfs]:
    assert callable(serve_part)
    yield from serve_part("hdfs", SecuredHdfs(module_kdc, TOKEN_LIFE_MS))


@pytest.fixture(autouse=True)
def kdc(module_kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> Kdc:
    """This process is the superuser, through a keytab."""
    become(module_kdc, monkeypatch, "nn")
    return module_kdc


def become(kdc: Kdc, monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    keytab = kdc.folder / f"{user}.keytab"
    if not keytab.exists():
        kdc.keytab(user, user)
    for name, value in kdc.client(keytab).items():
        monkeypatch.setenv(name, value)


def open_folder(server: SecuredHdfs, folder: str, *, create: bool = True) -> HdfsObjectStore:
    location = HdfsLocation((server.address,), f"/{folder}", user="somebody-else")
    return HdfsObjectStore(location, create=create, part_bytes=CONTRACT_PART_BYTES)


@pytest.fixture
async def store(secured_hdfs: SecuredHdfs) -> AsyncIterator[HdfsObjectStore]:
    async with open_folder(secured_hdfs, f"contract/{next(_numbers)}") as store:
        yield store


def tokens_of(server: SecuredHdfs) -> int:
    """The number of delegation tokens that the NameNode keeps."""
    page = f"http://{server.address}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    ticket = {"Authorization": Negotiation("localhost").authorization}
    with urlopen(Request(page, headers=ticket), timeout=30) as response:
        [state] = json.load(response)["beans"]
    return int(state["CurrentTokensCount"])


@pytest.mark.slow
class TestSecuredHdfsObjectStore(ObjectStoreContract):
    many_keys = 250  # the lab's pages are small
    cancel_turn_s = 0.001


@pytest.mark.slow
class TestRemoteStorageOnSecuredHdfs(ArchiveContract):
    pass


class TestKerberos:
    async def test_one_token_serves_all_that_a_store_does(
        self, secured_hdfs: SecuredHdfs, store: HdfsObjectStore
    ) -> None:
        before = tokens_of(secured_hdfs)
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(store.put(f"f/{number}", b"x" * number))
        for number in range(10):
            assert await store.get(f"f/{number}") == b"x" * number
        assert len(await keys_of(store.list(""))) == 10
        assert tokens_of(secured_hdfs) == before + 1

    async def test_somebody_else_is_denied(
        self, kdc: Kdc, secured_hdfs: SecuredHdfs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with open_folder(secured_hdfs, "private") as store:
            await store.put("k", b"x")
            await store._client.ask("PUT", "SETPERMISSION", "", permission="700")
        become(kdc, monkeypatch, "reader")
        async with open_folder(secured_hdfs, "private", create=False) as store:
            with pytest.raises(StorageDenied, match=r"AccessControlException.*user=reader"):
                await store.get("k")

    async def test_a_host_without_a_principal(self, secured_hdfs: SecuredHdfs) -> None:
        port = secured_hdfs.address.rpartition(":")[2]
        async with HdfsObjectStore(HdfsLocation((f"127.0.0.1:{port}",), "/x")) as store:
            with pytest.raises(StorageDenied, match=r"HTTP/127\.0\.0\.1.*not found"):
                await store.get("k")

    async def test_a_namenode_that_lost_its_key(self, kdc: Kdc, secured_hdfs: SecuredHdfs) -> None:
        """Its principal has a new key, which is not in its keytab."""
        kdc.keytab("other", f"HTTP/localhost@{Kdc.REALM}")
        try:
            async with open_folder(secured_hdfs, "x") as store:
                with pytest.raises(RemoteStorageError) as error:
                    await store.get("k")
        finally:
            # The NameNode reads the file for each ticket.
            kdc.keytab("hdfs", f"HTTP/localhost@{Kdc.REALM}")
        assert isinstance(error.value, StorageDenied)
        assert "status 403" in str(error.value)


@pytest.mark.slow
class TestTokensThatEnd:
    async def test_a_new_one_is_had(self, forgetful_hdfs: SecuredHdfs) -> None:
        async with open_folder(forgetful_hdfs, "ends") as store:
            await store.put("k", b"before")
            first = store._client._token
            await asyncio.sleep(TOKEN_LIFE_MS / 1000 + 1)
            assert await store.get("k") == b"before"
            assert store._client._token != first

    async def test_between_namenode_and_datanode(self, forgetful_hdfs: SecuredHdfs) -> None:
        async with open_folder(forgetful_hdfs, "between") as store:
            # A DataNode that has already seen a token may keep using its open connection.
            place = await store._client.place_for("late")
            await asyncio.sleep(TOKEN_LIFE_MS / 1000 + 1)
            with pytest.raises(StorageUnavailable, match="delegation token has expired"):
                await store._client.create(place, 1, _slices(b"x"))
            await store.put("k", b"after")
            assert await store.get("k") == b"after"
