"""A disk may hang: a process does no file work on the thread of its event loop. The test runs one
that serves, archives and restarts its archiver, and one that serves the archive alone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from archive_harness import archived_up_to
from confluent_kafka import Consumer, Producer
from planted_log_dir import plant_log_dir

import fetchproxy
from fetchproxy.app import run_archive_only, run_server
from fetchproxy.cli.user import user_lines
from fetchproxy.config.load import load_config
from fetchproxy.config.schema import Config
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from lab.mock_cluster import MockCluster
from lab.process import free_port

_LOOKS = ("stat", "lstat", "fsync", "statvfs", "access")  # of which Python tells no hook
_EVENTS = frozenset(
    [
        *("open", "os.scandir", "os.listdir", "os.mkdir", "os.rmdir", "os.remove", "os.rename"),
        *("os.link", "os.truncate", "shutil.rmtree", "tempfile.mkdtemp", "tempfile.mkstemp"),
        *(f"os.{name}" for name in _LOOKS),
    ]
)
_PRODUCT = Path(fetchproxy.__file__).parent
# The kernel's, and the installation's: code, the page, Kafka's schemas.
_OTHERS = ("/proc/", "/sys/", "/dev/", sys.prefix, sys.base_prefix, str(_PRODUCT.parent))
_TOPIC = "orders"
RECORDS = 100


class FileWork:
    """The product's file work on `thread`, while it is set."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.file_calls: set[str] = set()

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        here = threading.get_ident()
        if here != self.thread or event not in _EVENTS:
            return
        self.thread = None  # what follows may look for files too
        try:
            if not str(args[0] if args else "").startswith(_OTHERS):
                self.file_calls |= {f"{event} in {place}" for place in _product(sys._getframe(1))}
        finally:
            self.thread = here


def _product(frame: FrameType | None) -> Iterator[str]:
    """The innermost function of the product; none for an import."""
    while frame is not None:
        file = frame.f_code.co_filename
        if "importlib" in file or frame.f_code.co_name == "<module>":
            return
        if file.startswith(str(_PRODUCT)):
            yield f"{Path(file).relative_to(_PRODUCT)}: {frame.f_code.co_name}"
            return
        frame = frame.f_back


_WORK = FileWork()
sys.addaudithook(_WORK.note)  # for as long as the interpreter runs


@pytest.fixture
def file_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The file work on this thread, which is the event loop's."""
    for name in _LOOKS:
        monkeypatch.setattr(os, name, _noted(f"os.{name}", getattr(os, name)))
    _WORK.file_calls, _WORK.thread = set(), threading.get_ident()
    yield _WORK.file_calls
    _WORK.thread = None


def _noted(event: str, look: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **named: Any) -> Any:
        _WORK.note(event, args)
        return look(*args, **named)

    return noted


@contextmanager
def not_watched() -> Iterator[None]:
    """For the test's own files."""
    thread, _WORK.thread = _WORK.thread, None
    try:
        yield
    finally:
        _WORK.thread = thread


def configured(folder: Path, **more: object) -> Config:
    settings = {
        "store_url": (folder / "store").as_uri(),
        "gateway_listen": "127.0.0.1:0",
        "console_listen": "127.0.0.1:0",
        "remote_fetch_disk_cache_dir": folder / "cache",
        **more,
    }
    return load_config(None, {f"FETCHPROXY_{k.upper()}": str(v) for k, v in settings.items()})


async def until(condition: Callable[[], bool]) -> None:
    """The time limit is generous: it ends a hung test and measures nothing."""
    async with asyncio.timeout(300):
        while True:
            with not_watched():
                if condition():
                    return
            await asyncio.sleep(0.05)


def produce(cluster: MockCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(RECORDS):
        producer.produce(_TOPIC, b"v" * 100, partition=0)
    assert producer.flush(30) == 0


async def serve_and_archive(
    cluster: MockCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: object
) -> None:
    """Until the archiver has failed and runs again, and all is archived."""
    starts: list[RemoteLogManager] = []
    run = RemoteLogManager.run

    async def failing_once(manager: RemoteLogManager) -> None:
        starts.append(manager)
        if len(starts) == 1:
            raise RuntimeError("a defect of the archiver")
        await run(manager)

    monkeypatch.setattr(RemoteLogManager, "run", failing_once)
    settings = {
        "cluster_bootstrap": cluster.bootstrap,
        "archive_topics": _TOPIC,
        "archive_spool_dir": folder / "spool",
        "archive_local_index_dir": folder / "index",
        "archive_segment_bytes_max": 1024,
        "archive_segment_age_max_ms": 100,
        **more,
    }
    with not_watched():
        config = configured(folder, **settings)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run_server(config, create=True))
        await until(lambda: len(starts) == 2 and bool(list((folder / "spool").glob("*/lock"))))
        if "archive_log_dirs" not in more:
            is_archived = archived_up_to(_TOPIC, {0: RECORDS})
            await until(lambda: is_archived(starts[1].status()))
        serving.cancel()


async def test_a_process_that_serves_and_archives(
    mock_cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_calls: set[str]
) -> None:
    with not_watched():
        produce(mock_cluster)
    await serve_and_archive(mock_cluster, tmp_path, monkeypatch)
    assert not file_calls


async def test_a_process_beside_a_brokers_log_directory(
    mock_cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_calls: set[str]
) -> None:
    with not_watched():
        produce(mock_cluster)
        logs = plant_log_dir(tmp_path / "logs")
    await serve_and_archive(mock_cluster, tmp_path, monkeypatch, archive_log_dirs=logs)
    assert not file_calls


async def test_a_process_that_serves_the_archive_alone(
    mock_cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_calls: set[str]
) -> None:
    with not_watched():
        produce(mock_cluster)
        users = tmp_path / "users.toml"
        users.write_text(user_lines("alice", "secret", ["*"], ["*"]))
        port = free_port()
    await serve_and_archive(mock_cluster, tmp_path, monkeypatch)
    with not_watched():
        config = configured(
            tmp_path,
            gateway_listen=f"127.0.0.1:{port}",
            archive_only_enabled="true",
            archive_only_users_file=users,
            archive_only_offsets_file=tmp_path / "offsets.json",
        )
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(run_archive_only(config))
        assert await asyncio.to_thread(consumed, port) > 0
        serving.cancel()
    assert not file_calls


def consumed(port: int) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "secret",
        }
    )
    try:
        consumer.subscribe([_TOPIC])
        messages = consumer.consume(1, timeout=120)
        consumer.commit(asynchronous=False)
        return len(messages)
    finally:
        consumer.close()
