"""Third-party stores: an error names the store at fault, and harms no other store."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_contract import ArchiveContract
from client_readers import read_confluent
from memory_object_store import MemoryObjectStore
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, produce

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ConfigError, ObjectNotFound, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.storage.contract import ObjectStoreContract
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.storage.stores.plugins import GuardedObjectStore, found_plugins
from fetchproxy.storage.stores.registry import FileLocation, open_object_store, parse_store_url
from lab.mock_cluster import MockCluster

ROOT = Path(__file__).parents[2]
Install = Callable[..., None]

WHOLE = """
from memory_object_store import MemoryObjectStore
def open_store(url, config, *, create):
    return MemoryObjectStore()
"""
LACKS_A_METHOD = """
from fetchproxy.storage.stores.object_store import ObjectStore
class Store(ObjectStore):
    async def put(self, key, content): ...
def open_store(url, config, *, create):
    return Store()
"""
RAISES = """
from memory_object_store import MemoryObjectStore
class Store(MemoryObjectStore):
    async def get(self, key, bytes_max=0): raise KeyError("no such row")
    async def list(self, prefix, start_after=""):
        raise ZeroDivisionError("list")
        yield
    async def list_folders(self, prefix):
        raise TimeoutError
        yield
def open_store(url, config, *, create):
    return Store()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install("scheme", source)`: install a plug-in package as pip does."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(scheme: str, source: str, package: str = "acme-store") -> None:
        module = f"{package.replace('-', '_')}_{scheme.replace('+', '_')}"
        (tmp_path / f"{module}.py").write_text(source)
        about = tmp_path / f"{module}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        points = f"[fetchproxy.stores]\n{scheme} = {module}:open_store\n"
        (about / "entry_points.txt").write_text(points)
        monkeypatch.delitem(sys.modules, module, raising=False)  # from an earlier test
        found_plugins.cache_clear()

    yield add
    found_plugins.cache_clear()


def opened(url: str) -> ObjectStore:
    return open_object_store(url, StoreConfig())[0]


async def test_a_scheme_opens_its_plug_in(install: Install) -> None:
    install("acme", WHOLE)
    store = opened("acme://anywhere/at?all=1")
    await store.put("k", b"x")
    assert await store.get("k") == b"x"
    await store.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nosuchmodule", "cannot be imported: ModuleNotFoundError.*nosuchmodule"),
        ("def open_shop(): ...", "cannot be imported: AttributeError.*open_store"),
        ("1/0", "cannot be imported: ZeroDivisionError"),
        ("open_store = 7", "is not a function that opens a store"),
        (LACKS_A_METHOD, "cannot open a store: TypeError: .*abstract.*put_new"),
        (
            "def open_store(url, config, *, create): return {}",
            "has opened a dict, which is not an ObjectStore",
        ),
        ("def open_store(): ...", "cannot open a store: TypeError"),
    ],
)
def test_what_is_wrong_is_said_with_the_plug_ins_name(
    install: Install, source: str, message: str
) -> None:
    install("acme", source)
    named = "the store plug-in acme_store_acme:open_store of acme-store "
    with pytest.raises(ConfigError, match=named + message):
        opened("acme://place")
    assert isinstance(parse_store_url("file:///tmp"), FileLocation)  # others are not harmed


@pytest.mark.parametrize("scheme", ["file", "s3", "webhdfs", "swebhdfs"])
def test_a_scheme_that_is_built_in_cannot_be_claimed(install: Install, scheme: str) -> None:
    install(scheme, WHOLE)
    with pytest.raises(ConfigError, match=f"of acme-store claims the scheme '{scheme}'"):
        opened(f"{scheme}:///place")


def test_a_scheme_has_one_plug_in(install: Install) -> None:
    install("acme", WHOLE)
    install("acme", WHOLE, "other-store")
    with pytest.raises(ConfigError, match="claimed twice") as error:
        opened("acme://place")
    assert "acme-store" in str(error.value)
    assert "other-store" in str(error.value)


def test_an_unknown_scheme_is_told_which_are_there(install: Install) -> None:
    install("acme", WHOLE)
    with pytest.raises(ConfigError, match=r"unknown scheme 'nosuch'; known: file, .*, acme$"):
        opened("nosuch://place")


def test_credentials_in_a_url_are_refused_here_too(install: Install) -> None:
    install("acme", WHOLE)
    with pytest.raises(ConfigError, match="must not contain credentials") as error:
        opened("acme://user:hunter2@place")
    assert "hunter2" not in str(error.value)


async def test_foreign_errors_are_outages_that_name_the_plug_in(install: Install) -> None:
    install("acme", RAISES)
    async with RemoteStorage(opened("acme://place"), must_exist=True) as storage:
        with pytest.raises(StorageUnavailable, match=r"of acme-store: KeyError: 'no such row'"):
            await storage.objects.list_topics()
    store = opened("acme://place")
    with pytest.raises(StorageUnavailable, match="ZeroDivisionError"):
        [stored_object async for stored_object in store.list("")]
    with pytest.raises(StorageUnavailable, match="TimeoutError"):
        [folder async for folder in store.list_folders("")]


async def test_a_cancelled_call_stays_cancelled() -> None:
    class Hanging(MemoryObjectStore):
        async def get(self, key: str, bytes_max: int = 0) -> bytes:
            await asyncio.Event().wait()
            return b""

    call = asyncio.create_task(GuardedObjectStore(Hanging(), "hanging").get("k"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_errors_of_the_contract_pass_as_they_are() -> None:
    store = GuardedObjectStore(MemoryObjectStore(), "memory")
    with pytest.raises(ObjectNotFound):
        await store.get_range("k", ByteRange(0, 1))


def test_a_command_says_it_in_one_line(install: Install, tmp_path: Path) -> None:
    install("acme", RAISES)
    result = subprocess.run(
        [sys.executable, "-m", "fetchproxy", "verify", "--store", "acme://place"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(map(str, (tmp_path, ROOT, ROOT / "protocol", CONTRACTS)))},
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr.splitlines()[-1].startswith(
        "fetchproxy: the store plug-in acme_store_acme"
    )
    assert "Traceback" not in result.stderr


CONTRACTS = ROOT / "tests" / "contracts"


def test_the_proxy_goes_on(
    install: Install, tmp_path: Path, mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy relays clients even if every call of the plug-in raises a forbidden error."""
    install("acme", RAISES)
    path = ":".join(map(str, (tmp_path, ROOT, ROOT / "protocol", CONTRACTS)))
    monkeypatch.setenv("PYTHONPATH", path)
    with ProxyProcess(mock_cluster.bootstrap, "acme://place", tmp_path, archive=".*") as proxy:
        message = "acme-store: KeyError"
        wait_for("the plug-in is named", lambda: message in proxy.log_text())
        data = TopicData("relayed")
        produce(proxy.bootstrap, data, 20, partition_count=2)
        records = read_confluent(proxy.bootstrap, "relayed", {0: 20, 1: 20})
        assert sum(map(len, records.values())) == 40
        assert proxy.running
        assert not proxy.logged("part_failed")
        assert not proxy.logged("session_crashed")


def test_only_the_contract_needs_pytest_and_nothing_needs_the_contract() -> None:
    for path in sorted((ROOT / "fetchproxy").rglob("*.py")):
        names = {
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [f"{node.module}"]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert "fetchproxy.storage.contract" not in names, path
        assert ("pytest" in names) == (path.name == "contract.py"), path


class TestGuardedStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return GuardedObjectStore(MemoryObjectStore(), "memory")


class TestRemoteStorageOnGuardedStore(ArchiveContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return GuardedObjectStore(MemoryObjectStore(), "memory")
