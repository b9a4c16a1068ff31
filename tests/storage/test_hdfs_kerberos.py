"""Kerberos with a real KDC and a NameNode that checks tickets with the same GSSAPI library."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from test_hdfs_wrong_answers import FOLDER, exception_response, server

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import RemoteStorageError, StorageDenied, StorageUnavailable
from fetchproxy.storage.stores.hdfs import HdfsObjectStore
from fetchproxy.storage.stores.locations import HdfsLocation
from lab.kerberos import Kdc

pytestmark = pytest.mark.hdfs


class Judge:
    """A NameNode with one folder. It gives tokens for tickets and accepts the newest token only."""

    def __init__(self) -> None:
        self.issued = 0
        self.users: list[str] = []
        self.operations: list[str] = []
        self.headers: list[str] = []  # Authorization headers sent to the DataNode
        self.proof: str | None = None  # sent instead of the right one; "": none

    def response(self, request: web.Request) -> web.Response:
        op = request.query["op"]
        self.operations.append(op)
        assert "Cookie" not in request.headers
        if request.path == "/datanode":
            self.headers.append(request.headers.get("Authorization", ""))
            return web.Response(body=b"content")
        if op == "GETDELEGATIONTOKEN":
            return self._token(request)
        token = request.query.get("delegation")
        if token is None:
            return self._challenge()
        if token != f"token-{self.issued}":
            return exception_response(
                "SecurityException", message="…SecretManager$InvalidToken: has expired"
            )
        if op == "OPEN":
            place = f"http://{request.host}/datanode?op=OPEN&delegation={token}"
            return web.Response(status=307, headers={"Location": place})
        return web.json_response(FOLDER)

    def _challenge(self) -> web.Response:
        return web.Response(status=401, headers={"WWW-Authenticate": "Negotiate"})

    def _token(self, request: web.Request) -> web.Response:
        import gssapi

        scheme, _, ticket = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Negotiate":
            return self._challenge()
        assert "user.name" not in request.query
        context = gssapi.SecurityContext(usage="accept")
        right = base64.b64encode(context.step(base64.b64decode(ticket))).decode()
        assert context.delegated_creds is None
        self.users.append(str(context.initiator_name))
        self.issued += 1
        proof = right if self.proof is None else self.proof
        return web.json_response(
            {"Token": {"urlString": f"token-{self.issued}"}},
            headers={"WWW-Authenticate": f"Negotiate {proof}", "Set-Cookie": "hadoop.auth=me"},
        )


@pytest.fixture
def kdc(module_kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> Kdc:
    """This process is both the service HTTP/localhost and the client `archive`."""
    for name, value in module_kdc.client(module_kdc.keytab("archive", "archive")).items():
        monkeypatch.setenv(name, value)
    service = module_kdc.folder / "http.keytab"
    if not service.exists():
        module_kdc.keytab("http", "HTTP/localhost")
    monkeypatch.setenv("KRB5_KTNAME", str(service))
    return module_kdc


@asynccontextmanager
async def judged_store(
    judge: Judge, host: str = "localhost", **keys: object
) -> AsyncIterator[HdfsObjectStore]:
    async with server(judge.response) as address:
        location = HdfsLocation((f"{host}:{address.rpartition(':')[2]}",), "/a", user="somebody")
        config = StoreConfig.model_validate(keys)
        async with HdfsObjectStore(location, config=config) as store:
            yield store


async def refusal(store: HdfsObjectStore) -> RemoteStorageError:
    with pytest.raises(RemoteStorageError) as error:
        await store.get("k")
    return error.value


async def test_many_who_ask_at_once_get_one_token(kdc: Kdc) -> None:
    judge = Judge()
    async with judged_store(judge) as store:
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(store.get("k")) for _ in range(20)]
        assert {store_read.result() for store_read in reads} == {b"content"}
        assert judge.users == [f"archive@{Kdc.REALM}"]
        assert judge.headers == [""] * 20  # no ticket for a DataNode


async def test_a_token_that_has_ended_is_replaced_once(kdc: Kdc) -> None:
    judge = Judge()
    async with judged_store(judge) as store:
        await store.get("k")
        judge.issued += 1  # from now on it refuses our token
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(store.get("k"))
        assert len(judge.users) == 2


async def test_a_token_that_ends_on_its_way_to_a_datanode(kdc: Kdc) -> None:
    class Late(Judge):
        def response(self, request: web.Request) -> web.Response:
            if request.path == "/datanode" and self.issued == 1:
                return exception_response("InvalidToken")
            return super().response(request)

    judge = Late()
    async with judged_store(judge) as store:
        error = await refusal(store)
        assert isinstance(error, StorageUnavailable)
        assert "delegation token has expired" in str(error)
        assert await store.get("k") == b"content"


@pytest.mark.parametrize("proof", ["", "!", base64.b64encode(b"no token").decode()])
async def test_a_server_that_proves_nothing_is_refused(kdc: Kdc, proof: str) -> None:
    judge = Judge()
    judge.proof = proof
    async with judged_store(judge) as store:
        error = await refusal(store)
        assert isinstance(error, StorageDenied)
        assert "localhost" in str(error)
        assert judge.operations == ["OPEN", "GETDELEGATIONTOKEN"]  # its token was never used


async def test_an_unknown_service_is_refused_and_not_tried_again(kdc: Kdc) -> None:
    judge = Judge()
    async with judged_store(judge, "127.0.0.1") as store:
        error = await refusal(store)
    assert isinstance(error, StorageDenied)
    assert "HTTP/127.0.0.1" in str(error)
    assert "not found in Kerberos database" in str(error)
    assert judge.operations == ["OPEN"]


async def test_a_client_that_the_kdc_does_not_know(
    kdc: Kdc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(kdc.keytab("gone", "gone")))
    kdc.remove("gone")
    async with judged_store(Judge()) as store:
        error = await refusal(store)
    assert isinstance(error, StorageDenied)
    assert "Client 'gone@" in str(error)


async def test_no_credentials(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(kdc.folder / "absent"))
    async with judged_store(Judge()) as store:
        error = await refusal(store)
    assert isinstance(error, StorageDenied)
    assert "KRB5CCNAME or KRB5_CLIENT_KTNAME" in str(error)


async def test_a_ticket_that_has_ended_and_is_renewed_by_somebody(
    kdc: Kdc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(kdc.folder / "absent"))
    keytab = kdc.keytab("short", "short", ticket_max_s=1)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.kinit(keytab, 'short')}")
    await asyncio.sleep(2.1)
    async with judged_store(Judge()) as store:
        error = await refusal(store)
        assert isinstance(error, StorageDenied)
        assert "expired" in str(error)
        keytab = kdc.keytab("long", "long")
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.kinit(keytab, 'long')}")
        assert await store.get("k") == b"content"


async def test_a_kdc_that_is_away_is_an_outage(kdc: Kdc) -> None:
    judge = Judge()
    async with judged_store(judge) as store:
        kdc.kill()
        try:
            error = await refusal(store)
        finally:
            kdc.start()
        assert isinstance(error, StorageUnavailable)
        assert "Cannot contact any KDC" in str(error)
        assert await store.get("k") == b"content"


async def test_a_token_outlives_an_outage_of_the_kdc(kdc: Kdc) -> None:
    judge = Judge()
    async with judged_store(judge) as store:
        await store.get("k")
        kdc.kill()
        try:
            assert await store.get("k") == b"content"
        finally:
            kdc.start()


async def test_a_silent_kdc_holds_up_nobody_for_longer_than_allowed(kdc: Kdc) -> None:
    """The loop runs meanwhile."""
    async with judged_store(Judge(), timeout_ms=1000) as store:
        kdc.pause()
        turns = 0
        try:
            refused_read = asyncio.ensure_future(refusal(store))
            while not refused_read.done():
                await asyncio.sleep(0.01)
                turns += 1
            error = await refused_read
        finally:
            kdc.resume()
        assert isinstance(error, StorageUnavailable)
        assert "within" in str(error)
        assert turns > 10


async def test_a_namenode_that_refuses_the_ticket(kdc: Kdc) -> None:
    class Stern(Judge):
        def _token(self, request: web.Request) -> web.Response:
            return web.Response(status=403, text="GSSException: no such key")

    judge: Any = Stern()
    async with judged_store(judge) as store:
        error = await refusal(store)
    assert isinstance(error, StorageDenied)
    assert judge.operations == ["OPEN", "GETDELEGATIONTOKEN"]
