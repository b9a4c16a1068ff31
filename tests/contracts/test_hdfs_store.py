"""The contract on a real HDFS, plus outages and refusals, which only a real one can show."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from archive_contract import ArchiveContract

from fetchproxy.config.schema import MiB, StoreConfig
from fetchproxy.errors import RemoteStorageError, StorageDenied, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.storage.contract import (
    CONTRACT_PART_BYTES,
    ObjectStoreContract,
    cancel_after_turns,
    keys_of,
    noise,
)
from fetchproxy.storage.stores.hdfs import HdfsObjectStore, _slices
from fetchproxy.storage.stores.registry import open_object_store
from fetchproxy.storage.stores.webhdfs import HdfsLocation
from lab.hdfs import HdfsServer, hdfs_jars
from lab.java import find_java, quick_options
from lab.process import free_port

pytestmark = pytest.mark.hdfs

HASTY = StoreConfig(timeout_ms=1000)
_numbers = count()
LATER_MS = 2**52  # later than every upload


def open_folder(
    server: HdfsServer,
    folder: str,
    *,
    user: str = "",
    create: bool = True,
    config: StoreConfig | None = None,
) -> HdfsObjectStore:
    location = HdfsLocation((server.address,), f"/{folder}", user=user or server.user)
    # A busy machine may not answer for long; only the outage tests below use short time-outs.
    return HdfsObjectStore(location, create=create, config=config, part_bytes=CONTRACT_PART_BYTES)


def all_ours(key: str) -> bool:
    return True


@pytest.fixture(scope="module")
def hdfs(hdfs_server: HdfsServer) -> HdfsServer:
    return hdfs_server


@pytest.fixture
async def store(hdfs: HdfsServer) -> AsyncIterator[HdfsObjectStore]:
    async with open_folder(hdfs, f"contract/{next(_numbers)}") as store:
        yield store


def ask(server: HdfsServer, method: str, path: str, query: str) -> dict[str, object]:
    """Send a request as the superuser, without the store."""
    url = f"http://{server.address}/webhdfs/v1{path}?{query}&user.name={server.user}"
    with urlopen(Request(url, method=method), timeout=30) as response:
        document: dict[str, object] = json.loads(response.read() or b"{}")
        return document


def names_in(server: HdfsServer, folder: str) -> list[str]:
    listed = ask(server, "GET", folder, "op=LISTSTATUS")
    return [entry["pathSuffix"] for entry in listed["FileStatuses"]["FileStatus"]]  # type: ignore[index]


class TestHdfsObjectStore(ObjectStoreContract):
    many_keys = 250  # the lab's pages are small
    cancel_turn_s = 0.001

    @pytest.mark.parametrize("turns", [1, 5, 20, 60])
    async def test_a_cancelled_upload_leaves_no_temporary(
        self, hdfs: HdfsServer, store: HdfsObjectStore, tmp_path: Path, turns: int
    ) -> None:
        path = tmp_path / "segment"
        path.write_bytes(noise(4 * CONTRACT_PART_BYTES))
        await store.put("f/other", b"x")
        work = asyncio.create_task(store.put_file("f/k", path))
        await cancel_after_turns(work, turns, 0.001)
        assert set(names_in(hdfs, f"{store._folder}/f")) <= {"other", "k"}

    async def test_stale_temporaries_are_removed(
        self, hdfs: HdfsServer, store: HdfsObjectStore
    ) -> None:
        await store.put("p/a", b"x")
        for path in ("p/~put-1", "p/0/~put-2", "q/~put-3"):
            await store._client.create(await store._client.place_for(path), 0, _slices(b""))
        assert await keys_of(store.list("")) == ["p/a"]
        assert [name async for name in store.list_folders("")] == ["p"]
        assert await store.abort_stale_uploads("p/", 1000, all_ours) == 0
        assert await store.abort_stale_uploads("p/", LATER_MS, all_ours) == 2
        assert names_in(hdfs, f"{store._folder}/p") == ["a"]
        assert await store.abort_stale_uploads("", LATER_MS, all_ours) == 1
        assert names_in(hdfs, store._folder) == ["p"]
        assert await store.get("p/a") == b"x"

    async def test_an_emptied_folder_goes(self, hdfs: HdfsServer, store: HdfsObjectStore) -> None:
        await store.put("a/b/c", b"x")
        await store.put("d", b"y")
        await store.delete("a/b/c")
        assert names_in(hdfs, store._folder) == ["d"]
        await store.delete("d")
        assert await keys_of(store.list("")) == []
        await store.put("a/b/c", b"z")
        assert await store.get("a/b/c") == b"z"

    async def test_a_file_that_shrinks_while_it_is_stored(
        self, store: HdfsObjectStore, tmp_path: Path
    ) -> None:
        path = tmp_path / "segment"
        path.write_bytes(b"0123456789")
        with pytest.raises(RemoteStorageError, match="became shorter") as error:
            await store._put("k", 20, store._file_content(path, 20))
        assert not error.value.retriable
        assert await keys_of(store.list("")) == []

    async def test_it_tells_the_time(self, store: HdfsObjectStore) -> None:
        clock_ms = await store.clock_ms("")
        assert clock_ms is not None
        assert abs(clock_ms - time.time() * 1000) < 30_000

    async def test_listings_show_no_folder_of_temporaries(self, store: HdfsObjectStore) -> None:
        """A listing trusts a folder with many entries, and looks into one with few."""
        for number in range(3):
            await store.put(f"deep/{number}/x", b"")
        assert [name async for name in store.list_folders("")] == ["deep"]
        assert [name async for name in store.list_folders("deep/")] == ["0", "1", "2"]


class TestRemoteStorageOnHdfs(ArchiveContract):
    pass


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(noise(2 * CONTRACT_PART_BYTES))
    return path


async def everything_fails(store: HdfsObjectStore, error: type[Exception], path: Path) -> None:
    for call in (
        store.get("k"),
        store.get_range("k", ByteRange(0, 10)),
        store.put("k", b"x"),
        store.put_file("k", path),
        store.delete("k"),
        keys_of(store.list("")),
        keys_of(store.list("f/")),
        _folders(store),
        store.abort_stale_uploads("", LATER_MS, all_ours),
    ):
        with pytest.raises(error):
            await call


async def _folders(store: HdfsObjectStore) -> list[str]:
    return [name async for name in store.list_folders("")]


class TestHdfsRefusals:
    async def test_a_missing_folder_is_no_empty_archive(
        self, hdfs_server: HdfsServer, file: Path
    ) -> None:
        async with open_folder(hdfs_server, "no/such/folder", create=False) as store:
            await everything_fails(store, StorageUnavailable, file)
            with pytest.raises(StorageUnavailable, match="is not there"):
                await store.get("k")

    async def test_a_folder_that_goes_is_no_empty_archive(
        self, hdfs_server: HdfsServer, file: Path
    ) -> None:
        async with open_folder(hdfs_server, "goes") as store:
            await store.put("k", b"x")
            ask(hdfs_server, "DELETE", "/goes", "op=DELETE&recursive=true")
            await everything_fails(store, StorageUnavailable, file)

    async def test_another_user_is_denied(self, hdfs_server: HdfsServer, file: Path) -> None:
        async with open_folder(hdfs_server, "private") as store:
            await store.put("k", b"x")
        ask(hdfs_server, "PUT", "/private", "op=SETPERMISSION&permission=700")
        async with open_folder(hdfs_server, "private", user="nobody", create=False) as store:
            await everything_fails(store, StorageDenied, file)

    async def test_the_next_namenode_is_asked_where_one_is_away(
        self, hdfs_server: HdfsServer
    ) -> None:
        away = f"127.0.0.1:{free_port()}"
        location = HdfsLocation((away, hdfs_server.address), "/pair", user=hdfs_server.user)
        async with HdfsObjectStore(location, create=True) as store:
            await store.put("k", b"x")
            assert await store.get("k") == b"x"

    async def test_the_rpc_port_is_no_store(self, hdfs_server: HdfsServer, file: Path) -> None:
        """It answers HTTP with 404, which does not mean that an object is missing."""
        host, _, port = hdfs_server.address.rpartition(":")
        location = HdfsLocation((f"{host}:{int(port) + 1}",), "/x", user="nobody")
        async with HdfsObjectStore(location) as store:
            await everything_fails(store, StorageUnavailable, file)


@pytest.mark.slow
class TestHdfsOutages:
    """The tests run in this order on one server; each leaves it as it was before."""

    async def test_a_silent_server_is_unavailable_in_bounded_time(
        self, module_hdfs_server: HdfsServer, file: Path
    ) -> None:
        async with open_folder(module_hdfs_server, "silent") as store:
            await store.put("before", b"before")
        async with open_folder(module_hdfs_server, "silent", config=HASTY) as store:
            module_hdfs_server.pause()
            try:
                async with asyncio.timeout(60):
                    await everything_fails(store, StorageUnavailable, file)
            finally:
                module_hdfs_server.resume()
            # (The server may still run the earlier requests: a time-out does not cancel them.)
            assert await _in_the_end(lambda: store.get("before")) == b"before"

    async def test_safe_mode_is_an_outage_of_writing(self, module_hdfs_server: HdfsServer) -> None:
        async with open_folder(module_hdfs_server, "safe") as store:
            await store.put("k", b"before")
            module_hdfs_server.admin("-safemode", "enter")
            for call in (store.put("k", b"after"), store.delete("k")):
                with pytest.raises(StorageUnavailable, match="SafeMode"):
                    await call
            assert await store.get("k") == b"before"
            module_hdfs_server.admin("-safemode", "leave")
            await store.put("k", b"after")
            assert await store.get("k") == b"after"

    async def test_a_server_killed_within_an_upload(
        self, module_hdfs_server: HdfsServer, tmp_path: Path
    ) -> None:
        path = tmp_path / "segment"
        path.write_bytes(noise(64 * MiB))
        async with open_folder(module_hdfs_server, "killed") as store:
            await store.put("f/before", b"before")
            async with asyncio.timeout(60):
                work = asyncio.create_task(store.put_file("f/k", path))
                await _upload_begins(module_hdfs_server, "/killed/f")
                module_hdfs_server.kill()
                with pytest.raises(StorageUnavailable):
                    await work
                await everything_fails(store, StorageUnavailable, path)
            module_hdfs_server.start()
            assert await store.get("f/before") == b"before"
            assert await keys_of(store.list("")) == ["f/before"]
            assert await store.abort_stale_uploads("", LATER_MS, all_ours) == 1
            assert names_in(module_hdfs_server, "/killed/f") == ["before"]


async def _upload_begins(server: HdfsServer, folder: str) -> None:
    for _ in range(10_000):
        if any(name.startswith("~") for name in names_in(server, folder)):
            return
        await asyncio.sleep(0)
    pytest.fail("no upload was begun")


async def _in_the_end(call: Callable[[], Awaitable[bytes]]) -> bytes:
    """Retry, as a server is slow for a moment after a freeze."""
    while True:
        try:
            return await call()
        except StorageUnavailable:
            await asyncio.sleep(0.1)


async def test_a_name_service_is_the_one_that_hadoop_s_own_client_finds(
    hdfs: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same `hdfs-site.xml`. Hadoop's client reads by RPC what was put by WebHDFS."""
    properties = {
        "dfs.nameservices": "lab",
        "dfs.ha.namenodes.lab": "away,here",
        "dfs.namenode.rpc-address.lab.away": f"127.0.0.1:{free_port()}",
        "dfs.namenode.http-address.lab.away": f"127.0.0.1:{free_port()}",
        "dfs.namenode.rpc-address.lab.here": hdfs.rpc_address,
        "dfs.namenode.http-address.lab.here": hdfs.address,
        "dfs.client.failover.proxy.provider.lab": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
    }
    for name, content in (("hdfs", properties), ("core", {"fs.defaultFS": "hdfs://lab"})):
        entries = "".join(
            f"<property><name>{key}</name><value>{value}</value></property>"
            for key, value in content.items()
        )
        (tmp_path / f"{name}-site.xml").write_text(f"<configuration>{entries}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    for url in ("hdfs:///by-name-service", "hdfs://lab/by-name-service"):
        store, _ = open_object_store(f"{url}?user={hdfs.user}", StoreConfig(), create=True)
        async with store:
            await store.put("a/b", b"the same bytes")
    java = find_java().command(f"{tmp_path}:{hdfs_jars()}/*", "-Xmx128m", *quick_options())
    command = [*java, "org.apache.hadoop.fs.FsShell", "-cat", f"{url}/a/b"]
    process = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    # Its log says in front of it that one NameNode is away.
    assert process.stdout.endswith(b"the same bytes"), process.stderr.decode()
