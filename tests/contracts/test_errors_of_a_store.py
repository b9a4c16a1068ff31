"""Each store's server fails some of its requests: that costs little, and nothing is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from faulty_relay import Fault, FaultyRelay, OneWriteASecond, Request, each, faulty_relay, refusal
from test_store_server_faults import SERVERS, Server, opened

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import ByteRange
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.contract import noise, segment
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.retries import REQUEST_TRIES_MAX
from lab.store_server import StoreServer

SEGMENTS = 12
LOG_BYTES = 20 * 1024 * 1024 + 7  # three parts, of the one segment that is large
CONFIG = StoreConfig(timeout_ms=10_000)
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


def port_of(server: Server) -> int:
    return server.port if isinstance(server, StoreServer) else int(server.address.split(":")[1])


async def work(storage: RemoteStorage, log: Path) -> None:
    """Everything that is done with an archive, and each response is checked."""
    small = log.with_suffix(".small")
    small.write_bytes(b"0123456789")
    for number in range(SEGMENTS):
        of = segment(number * 10, segment_id=number + 1)
        data = LogSegmentData(small if number else log, b"index", None, b"epochs")
        await storage.rsm.copy_log_segment_data(of, data)
        await storage.objects.put_segment_metadata(of, b"%d" % number)
    whole = log.read_bytes()
    for at in range(0, len(whole), 4_000_000):
        byte_range = ByteRange(at, min(at + 4_000_000, len(whole)))
        content = await storage.rsm.fetch_log_segment(segment(segment_id=1), byte_range)
        assert content == whole[byte_range.start : byte_range.end]
    tp = segment().topic_id_partition
    for number in range(SEGMENTS):
        of = segment(number * 10, segment_id=number + 1)
        assert await storage.rsm.fetch_index(of, SegmentFile.INDEX) == b"index"
        assert await storage.objects.list_partitions() == [tp]
    listed = [key async for key, _ in storage.objects.list_segment_objects(tp)]
    assert len(listed) == 4 * SEGMENTS
    for number in range(SEGMENTS // 2):
        await storage.rsm.delete_log_segment_data(segment(number * 10, segment_id=number + 1))
    listed = [key async for key, _ in storage.objects.list_segment_objects(tp)]
    assert len(listed) == 4 * (SEGMENTS - SEGMENTS // 2)


def check_nothing_said(storage: RemoteStorage) -> None:
    now = asyncio.get_running_loop().time()
    storage.health.look(now)
    assert not list(storage.health.conditions(now))


QUICK = {"versitygw", "gcs"}
EVERY = [
    pytest.param(name, marks=mark if name in QUICK else [mark, pytest.mark.slow], id=name)
    for name, (_, _, mark) in SERVERS.items()
]


@pytest.mark.parametrize("server", EVERY, indirect=True)
async def test_four_percent_of_errors(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many as promised: the requests are few."""
    log = tmp_path / "log"
    log.write_bytes(noise(LOG_BYTES, 7))
    requests: list[int] = []
    async with faulty_relay(port_of(server)) as relay:
        for judge in (lambda request: None, each(25)):
            relay.requests.clear()
            prefix = f"errors-{next(_numbers)}"
            async with opened(server, prefix, monkeypatch, CONFIG, relay.port) as storage:
                relay.judge = judge
                await work(storage, log)
                check_nothing_said(storage)
                requests.append(len(relay.requests))
                relay.judge = lambda request: None
    assert requests[0] < requests[1] <= 1.1 * requests[0]


S3 = [pytest.param("versitygw", marks=pytest.mark.s3)]
GCS = [pytest.param("gcs", marks=pytest.mark.gcs)]


def failing(method: str, part_of_target: str, fault: Fault, times: int) -> Callable[..., object]:
    failures_left = times

    def judge(request: Request) -> Fault | None:
        nonlocal failures_left
        if request.method != method or part_of_target not in request.target or not failures_left:
            return None
        failures_left -= 1
        return fault

    return judge


async def put_large(
    server: Server, relay: FaultyRelay, log: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[RemoteStorage, list[Request]]:
    log.write_bytes(noise(LOG_BYTES, 7))
    prefix = f"errors-{next(_numbers)}"
    data = LogSegmentData(log, b"index", None, b"epochs")
    async with opened(server, prefix, monkeypatch, CONFIG, relay.port) as storage:
        await storage.objects.put_segment_metadata(segment(90, segment_id=9), b"m")
        relay.requests.clear()
        await storage.rsm.copy_log_segment_data(segment(), data)
        content = await storage.rsm.fetch_log_segment(segment(), ByteRange(0, LOG_BYTES))
        assert content == log.read_bytes()
    return storage, relay.requests


@pytest.mark.parametrize("server", S3 + GCS, indirect=True)
async def test_a_completion_whose_answer_is_an_error_has_completed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Fault(refusal("500 Internal Server Error", "InternalError"), after=True)
    async with faulty_relay(port_of(server)) as relay:
        relay.judge = failing("POST", "uploadId=", broken, 1)  # type: ignore[assignment]
        _, requests = await put_large(server, relay, tmp_path / "log", monkeypatch)
    assert len([one for one in requests if "partNumber=" in one.target]) == 3


@pytest.mark.parametrize("server", S3, indirect=True)
async def test_a_part_that_fails_again_and_again_is_the_cause_that_is_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Fault(refusal("503 Slow Down", "SlowDown", "x-amz-request-id: 17"))
    async with faulty_relay(port_of(server)) as relay:
        relay.judge = failing("PUT", "partNumber=2", busy, REQUEST_TRIES_MAX - 1)  # type: ignore[assignment]
        _, requests = await put_large(server, relay, tmp_path / "log", monkeypatch)
        assert (
            len([one for one in requests if "partNumber=" in one.target])
            == 3 + REQUEST_TRIES_MAX - 1
        )
        relay.judge = failing("PUT", "partNumber=2", busy, REQUEST_TRIES_MAX)  # type: ignore[assignment]
        with pytest.raises(RemoteStorageError, match=r"status 503 SlowDown: .*\(tried 4 times\)"):
            await put_large(server, relay, tmp_path / "log", monkeypatch)


@pytest.mark.parametrize("server", GCS, indirect=True)
async def test_a_name_that_may_be_written_once_a_second(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = OneWriteASecond()
    async with (
        faulty_relay(port_of(server)) as relay,
        opened(server, f"errors-{next(_numbers)}", monkeypatch, CONFIG, relay.port) as storage,
    ):
        relay.judge = strict

        async def states(number: int) -> None:
            for state in (b"STARTED", b"FINISHED"):
                await storage.objects.put_segment_metadata(
                    segment(number, segment_id=number), state
                )

        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 21):
                tasks.create_task(states(number))
        check_nothing_said(storage)
        assert len(strict.refused) == len(set(strict.refused)) == 20
