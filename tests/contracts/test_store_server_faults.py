"""Each store's server is killed, frozen and slowed during copies, reads, deletions and listings.

Every call ends in time, with a whole result or a retriable error. Acknowledged data is there
afterwards, and the same client recovers by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeAlias, TypeVar

import pytest
from archive_contract import metadata_objects

from benchmarks.fault_relay import Fault, FaultRelay
from fetchproxy.config.memory_plan import PART_BYTES
from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.contract import noise, segment
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.registry import open_object_store
from lab.clouds import AzureServer, GcsServer
from lab.hdfs import HdfsServer
from lab.s3 import RcloneServer, S3Server
from lab.store_server import StoreServer

Server: TypeAlias = StoreServer | HdfsServer
T = TypeVar("T")

HASTY = StoreConfig(timeout_ms=1000)
# Time after a fault for all calls together to end. A part may take three times the time-out to
# send, the store looks for remains of a failed upload for 5 s, and the machine may be busy.
ENDS_MAX_S = 30.0
RECOVERS_MAX_S = 60.0  # a thawed server first runs its earlier requests
WORKERS = 4
SMALL_SEGMENTS = 60
LOG_BYTES = 2 * PART_BYTES + 7  # several parts
READ_BYTES_MAX = 4 * 1024 * 1024
SLOW = Fault(delay_ms=200, bytes_per_s=4 * 1024 * 1024, sent_bytes_per_s=8 * 1024 * 1024)

SERVERS: dict[str, tuple[str, Callable[[], Server], pytest.MarkDecorator]] = {
    "versitygw": ("s3", S3Server, pytest.mark.s3),
    "rclone": ("rclone", RcloneServer, pytest.mark.s3),
    "gcs": ("gcs", GcsServer, pytest.mark.gcs),
    "azure": ("azure", AzureServer, pytest.mark.azure),
    "hdfs": ("hdfs", HdfsServer, pytest.mark.hdfs),
}
# Tests that are not slow: one store, and each fault and each operation at least once.
QUICK = {("killed", "copy"), ("killed", "delete"), ("frozen", "read"), ("slow", "list")}
_numbers = count()


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, serve_part: Callable[[str, Server], Iterator[Server]]
) -> Iterator[Server]:
    part, make, _ = SERVERS[request.param]
    for server in serve_part(part, make()):
        if isinstance(server, StoreServer):
            server.create_bucket("faults")
        yield server


class Archive:
    """A folder of its own on the server, with a record of its expected contents.

    Each operation is a call with a number; it raises the store's errors.
    """

    def __init__(self, storage: RemoteStorage, folder: Path) -> None:
        self.storage = storage
        self._folder = folder
        self.stored: dict[int, int] = {}  # size of the log by segment number
        self.deleted: set[int] = set()

    async def prepare(self, operation: str) -> None:
        sizes = [100] * (SMALL_SEGMENTS if operation in ("list", "delete") else 1)
        if operation == "read":
            sizes += [LOG_BYTES, LOG_BYTES]
        places = asyncio.Semaphore(WORKERS)

        async def store(number: int, size: int) -> None:
            # rclone sometimes answers 500 when two requests create one folder.
            async with places:
                await in_the_end(lambda: self._copy(number, size))

        async with asyncio.TaskGroup() as copies:
            for number, size in enumerate(sizes):
                copies.create_task(store(number, size))

    async def copy(self, number: int) -> None:
        await self._copy(1000 + number, LOG_BYTES)

    async def read(self, number: int) -> None:
        random = Random(number)
        of = random.choice([1, 2])
        start = random.randrange(LOG_BYTES)
        end = min(LOG_BYTES, start + random.randint(1, READ_BYTES_MAX))
        content = await self.storage.rsm.fetch_log_segment(_segment(of), ByteRange(start, end))
        assert content == log_content(of, LOG_BYTES)[start:end]

    async def delete(self, number: int) -> None:
        """Delete the prepared segments, from the last one on."""
        of = SMALL_SEGMENTS - 1 - number
        assert of > 0, "all were deleted before the server was ill-treated"
        await self.storage.rsm.delete_log_segment_data(_segment(of))
        self.deleted.add(of)
        del self.stored[of]

    async def list(self, number: int) -> None:
        listed = await metadata_objects(self.storage, segment().topic_id_partition)
        assert [each.segment_id.id.int - 1 for each in listed] == sorted(self.stored)

    async def _copy(self, number: int, size: int) -> None:
        path = self._folder / f"{number}.log"
        path.write_bytes(log_content(number, size))
        data = LogSegmentData(log=path, index=b"index", txn=None, epochs=b"epochs")
        try:
            await self.storage.rsm.copy_log_segment_data(_segment(number), data)
            await self.storage.objects.put_segment_metadata(_segment(number), b"%d" % number)
        finally:
            path.unlink()
        self.stored[number] = size

    async def check(self, in_doubt: set[int]) -> None:
        """`in_doubt`: segments whose copy or deletion got no response: they may exist or not."""
        sizes: dict[int, dict[SegmentFile, int]] = {}
        listing = self.storage.objects.list_segment_objects(segment().topic_id_partition)
        async for key, stored_object in listing:
            sizes.setdefault(key.segment_id.id.int - 1, {})[key.file] = stored_object.size_bytes
        for number, size in self.stored.items():
            files = sizes.get(number, {})
            assert files.get(SegmentFile.LOG) == size or number in in_doubt
            assert SegmentFile.METADATA in files or number in in_doubt
        assert not self.deleted & sizes.keys(), "a deleted segment is back"
        assert sizes.keys() <= self.stored.keys() | in_doubt
        for number, files in sizes.items():
            if SegmentFile.LOG in files:
                await self._check_log(number, files[SegmentFile.LOG])
            elif number not in in_doubt:
                pytest.fail(f"segment {number} has lost its log")

    async def _check_log(self, number: int, size: int) -> None:
        whole = 100 if number < SMALL_SEGMENTS and size == 100 else LOG_BYTES
        assert size == whole, f"segment {number} has a log of {size} bytes"
        content = await self.storage.rsm.fetch_log_segment(_segment(number), ByteRange(0, whole))
        assert content == log_content(number, whole)


def _segment(number: int) -> RemoteLogSegmentMetadata:
    return segment(number * 10, segment_id=number + 1)


def log_content(number: int, size: int) -> bytes:
    return (noise(64 * 1024, number) * (size // (64 * 1024) + 1))[:size]


class Workers:
    """Call one operation again and again in several workers, each until a call fails.

    Only calls from the fault on count: before it, a busy machine may outlast the short time-outs.
    """

    def __init__(self, call: Callable[[int], Awaitable[None]]) -> None:
        self._call = call
        self._numbers = count()
        self.succeeded = [0] * WORKERS
        self.failed: dict[int, RemoteStorageError] = {}
        self.at_fault = self.stopped = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as workers:
            for worker in range(WORKERS):
                workers.create_task(self._work(worker))

    async def _work(self, worker: int) -> None:
        while not self.stopped:
            number = next(self._numbers)
            try:
                await self._call(number)
            except RemoteStorageError as error:
                self.failed[number] = error
                if self.at_fault:
                    return
                continue
            self.succeeded[worker] += 1

    async def each_has_succeeded(self, times: int = 1) -> None:
        goals = [done + times for done in self.succeeded]
        async with asyncio.timeout(RECOVERS_MAX_S):
            while any(  # noqa: ASYNC110 - the workers know no events
                done < want for done, want in zip(self.succeeded, goals, strict=True)
            ):
                await asyncio.sleep(0.002)


@asynccontextmanager
async def opened(
    server: Server,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    config: StoreConfig,
    port: int | None = None,
) -> AsyncIterator[RemoteStorage]:
    """`port`: the port of a relay in front of the server."""
    if isinstance(server, StoreServer):
        own_port, url, environment = server.port, server.store_url("faults"), server.environment
    else:
        own_port, url, environment = int(server.address.split(":")[1]), server.store_url(prefix), {}
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace(str(own_port), str(port or own_port)))
    url = url.replace(str(own_port), str(port or own_port))
    store, _ = open_object_store(url, config, create=True)
    async with RemoteStorage(store, prefix) as storage:
        yield storage


async def in_the_end(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat the call while it raises retriable errors."""
    async with asyncio.timeout(RECOVERS_MAX_S):
        while True:
            try:
                return await call()
            except RemoteStorageError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.1)


async def all_end(work: asyncio.Task[None], workers: Workers) -> None:
    """The server does nothing any more, so every worker ends with a failed call."""
    async with asyncio.timeout(ENDS_MAX_S):
        await work
    assert len(workers.failed) >= WORKERS
    for error in workers.failed.values():
        assert error.retriable, error
        assert str(error), repr(error)


def cases() -> Iterator[object]:
    for name, (_, _, mark) in SERVERS.items():
        for fault in ("killed", "frozen", "slow"):
            for operation in ("copy", "read", "delete", "list"):
                quick = name == "versitygw" and (fault, operation) in QUICK
                marks = [mark] if quick else [mark, pytest.mark.slow]
                yield pytest.param(
                    name, fault, operation, marks=marks, id=f"{name}-{fault}-{operation}"
                )


@pytest.mark.parametrize(("server", "fault", "operation"), list(cases()), indirect=["server"])
async def test_nothing_is_lost_and_it_goes_on(
    server: Server, fault: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"faults-{next(_numbers)}"
    async with opened(server, prefix, monkeypatch, StoreConfig()) as patient:
        archive = Archive(patient, tmp_path)
        await archive.prepare(operation)
    if fault == "slow":
        await goes_on_slowly(server, prefix, archive, operation, monkeypatch)
        return
    async with opened(server, prefix, monkeypatch, HASTY) as archive.storage:
        call = getattr(archive, operation)
        workers = Workers(call)
        work = asyncio.create_task(workers.run())
        await workers.each_has_succeeded()
        workers.at_fault = True
        if fault == "killed":
            await asyncio.to_thread(server.kill)
            await all_end(work, workers)
            await asyncio.to_thread(server.start)
        else:
            server.pause()
            try:
                await all_end(work, workers)
            finally:
                server.resume()
        await in_the_end(lambda: archive.check(doubtful(operation, workers)))
        for number in workers.failed:
            await in_the_end(lambda number=number: call(number))  # type: ignore[misc]
        await in_the_end(lambda: archive.check(set()))


def doubtful(operation: str, workers: Workers) -> set[int]:
    """The segments whose operation got no response."""
    if operation == "copy":
        return {1000 + number for number in workers.failed}
    if operation == "delete":
        return {SMALL_SEGMENTS - 1 - number for number in workers.failed}
    return set()


async def goes_on_slowly(
    server: Server,
    prefix: str,
    archive: Archive,
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow store is not an outage: no call fails.

    For HDFS only the NameNode is slow: the bytes come from a DataNode, without a relay.
    """
    own_port = server.port if isinstance(server, StoreServer) else int(server.address.split(":")[1])
    with FaultRelay(own_port) as relay:
        port = int(relay.endpoint_url.rpartition(":")[2])
        async with opened(server, prefix, monkeypatch, StoreConfig(), port) as archive.storage:
            workers = Workers(getattr(archive, operation))
            work = asyncio.create_task(workers.run())
            await workers.each_has_succeeded()
            relay.set(SLOW)
            await workers.each_has_succeeded(2)  # the second one runs slowly from its beginning
            workers.stopped = True
            await work
            assert not workers.failed
            relay.set(Fault())
            await archive.check(set())
