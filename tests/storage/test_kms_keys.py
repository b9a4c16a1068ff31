"""A key ring in AWS KMS, against moto's: a real HTTP server with real ciphertexts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session
from segment_values import segment

from fetchproxy.cli.keys import rewrap_archive
from fetchproxy.config.schema import StoreConfig
from fetchproxy.config.values import KeyRingPlace, parse_key_ring, parse_key_rings
from fetchproxy.errors import KeyServiceUnavailable, SegmentLocked, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.observability.health import Kind
from fetchproxy.segments.packing import WrappedKey
from fetchproxy.storage.key_rings import NO_KEYS, key_context, write_keys
from fetchproxy.storage.kms_keys import KmsKeyRing, _translated
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage, at_rest_of
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from lab.process import ServerProcess, free_port

REGION = "eu-central-1"
CONTEXT = key_context(segment(1, 0, 9).segment_id, "")
DATA_KEY = bytes(range(32))
LOG = b"orders " * 1_000


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    log = tmp_path_factory.mktemp("kms") / "moto.log"
    server = ServerProcess("moto", command, log, cwd=Path(__file__).parents[2])
    server.start()
    try:
        server.wait_until(lambda: "Running on" in log.read_text(), 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
async def kms(endpoint: str) -> AsyncIterator[Any]:
    made = get_session().create_client("kms", region_name=REGION, endpoint_url=endpoint)
    async with made as client:
        yield client


@pytest.fixture
async def key(kms: Any) -> str:
    created = await kms.create_key()
    arn: str = created["KeyMetadata"]["Arn"]
    return arn


def place_of(endpoint: str, key: str) -> KeyRingPlace:
    return parse_key_ring(f"aws-kms://{REGION}/{key}?endpoint_url={endpoint}")


@pytest.fixture
async def ring(endpoint: str, key: str) -> AsyncIterator[KmsKeyRing]:
    opened = KmsKeyRing(place_of(endpoint, key))
    yield opened
    await opened.close()


async def test_a_data_key_there_and_back(ring: KmsKeyRing, key: str, endpoint: str) -> None:
    assert ring.writes
    wrapped = await ring.wrap(DATA_KEY, CONTEXT)
    assert wrapped.key_id == key == await ring.active_key_id()
    assert DATA_KEY not in wrapped.wrapped
    assert await ring.unwrap(wrapped, CONTEXT) == DATA_KEY
    reader = KmsKeyRing(replace(place_of(endpoint, ""), key=""))
    assert not reader.writes
    assert await reader.unwrap(wrapped, CONTEXT) == DATA_KEY
    await reader.close()
    await reader.close()


async def test_a_data_key_of_another_segment_is_refused(ring: KmsKeyRing) -> None:
    wrapped = await ring.wrap(DATA_KEY, CONTEXT)
    for name in CONTEXT:
        with pytest.raises(SegmentLocked, match="InvalidCiphertext"):
            await ring.unwrap(wrapped, {**CONTEXT, name: "other"})
    with pytest.raises(SegmentLocked):
        await ring.unwrap(replace(wrapped, wrapped=wrapped.wrapped[:-1] + b"x"), CONTEXT)


async def test_a_key_by_its_alias_that_then_names_another(
    kms: Any, endpoint: str, key: str
) -> None:
    await kms.create_alias(AliasName="alias/archive", TargetKeyId=key)
    ring = KmsKeyRing(place_of(endpoint, "alias/archive"))
    wrapped = await ring.wrap(DATA_KEY, CONTEXT)
    assert await ring.active_key_id() == key
    other = (await kms.create_key())["KeyMetadata"]["Arn"]
    await kms.update_alias(AliasName="alias/archive", TargetKeyId=other)
    assert await ring.unwrap(WrappedKey(key, wrapped.wrapped), CONTEXT) == DATA_KEY
    await ring.close()
    anew = KmsKeyRing(place_of(endpoint, "alias/archive"))
    assert await anew.active_key_id() == other
    await anew.close()


@pytest.mark.parametrize("to_kms", [True, False], ids=["to the service", "to a file"])
async def test_an_archive_moves_from_one_kind_of_key_ring_to_the_other(
    key: str, endpoint: str, tmp_path: Path, to_kms: bool
) -> None:
    """During the move both rings are set: readers open all segments, and `rewrap` is one step."""
    write_keys(tmp_path / "keys.json", NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    file, kms = str(tmp_path / "keys.json"), f"aws-kms://{REGION}/{key}?endpoint_url={endpoint}"
    old, new = (file, kms) if to_kms else (kms, file)
    old_id, new_id = ("k1", key) if to_kms else (key, "k1")
    (tmp_path / "spooled").write_bytes(LOG)
    data = LogSegmentData(tmp_path / "spooled", b"index", None, b"epochs")
    segments = [
        replace(segment(number, 0, 9), packed=True, segment_size_bytes=len(LOG),
                has_aborted_txns=False)
        for number in (1, 2)
    ]  # fmt: skip

    def opened(*rings: str) -> RemoteStorage:
        config = StoreConfig(encryption_keys=",".join(rings))
        store = FilesystemObjectStore(tmp_path / "store", create=True)
        return RemoteStorage(store, at_rest=at_rest_of(config))

    async def reads(*rings: str) -> list[bytes]:
        async with opened(*rings) as storage:
            whole = ByteRange(0, len(LOG))
            return [bytes(await storage.rsm.fetch_log_segment(one, whole)) for one in segments]

    async with opened(old) as storage:
        await storage.rsm.copy_log_segment_data(segments[0], data)
    async with opened(new, old) as storage:
        assert storage.packed.encrypts
        await storage.rsm.copy_log_segment_data(segments[1], data)
    for both in ((new, old), (old, new)):
        assert await reads(*both) == [LOG, LOG]
    for one in (old, new):
        with pytest.raises(SegmentLocked, match=r"another kind of key|no key with that id|AWS KMS"):
            await reads(one)
    async with opened(new, old) as storage:
        report = await rewrap_archive(storage)
    assert (report.rewrapped, report.faults) == (1, [])
    assert report.keys == {old_id: 1, new_id: 1}
    assert await reads(new) == [LOG, LOG]


@pytest.mark.parametrize(
    ("text", "match"),
    [("/k,,/l", "expected"), ("/k,/k", "twice"), ("/k,/k?required=true", "twice"), ("/k,x", "exp")],
)
def test_several_key_rings_of_which_one_is_none_are_refused(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_key_rings(text)


def test_one_key_ring_that_requires_does_so_for_all(tmp_path: Path) -> None:
    for name in "kl":
        write_keys(tmp_path / name, NO_KEYS.with_new(name, bytes(32)), new=True)
    keys = f"{tmp_path / 'k'}, {tmp_path / 'l'}?required=true"
    at_rest = at_rest_of(StoreConfig(encryption_keys=keys))
    assert at_rest.required
    assert at_rest.keys is not None
    assert at_rest.keys.writes


async def test_a_key_that_is_not_there_locks(ring: KmsKeyRing, key: str, endpoint: str) -> None:
    wrapped = await ring.wrap(DATA_KEY, CONTEXT)
    none = KmsKeyRing(place_of(endpoint, "00000000-0000-0000-0000-000000000000"))
    with pytest.raises(SegmentLocked, match="NotFound"):
        await none.wrap(DATA_KEY, CONTEXT)
    await none.close()
    gone = WrappedKey(key[:-12] + "000000000000", wrapped.wrapped)
    with pytest.raises(SegmentLocked):
        await ring.unwrap(gone, CONTEXT)


async def test_a_service_that_does_not_answer_locks_nothing(key: str) -> None:
    ring = KmsKeyRing(place_of(f"http://127.0.0.1:{free_port()}", key))
    with pytest.raises(StorageUnavailable, match="does not respond"):
        await ring.wrap(DATA_KEY, CONTEXT)
    await ring.close()


class Silent:
    """A service that accepts requests and answers none, until it hangs up."""

    def __init__(self) -> None:
        self.requests = 0
        self.hangs_up = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        await self.hangs_up.wait()
        writer.close()


@pytest.mark.remedy("key_service_failing")
async def test_a_silent_service_is_asked_by_one_and_fails_the_others_at_once(
    key: str, endpoint: str
) -> None:
    """And its own response alone ends the condition: nobody has to read an encrypted segment."""
    silent = Silent()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    place = place_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", key)
    ring = KmsKeyRing(place)
    async with server:
        silent.hangs_up.set()
        with pytest.raises(KeyServiceUnavailable):
            await ring.wrap(DATA_KEY, CONTEXT)
        assert silent.requests == 1
        [condition] = ring.health.all(0.0)
        assert condition.kind == Kind.KEY_SERVICE_FAILING
        for _ in range(20):
            with pytest.raises(KeyServiceUnavailable, match="a moment ago"):
                await ring.wrap(DATA_KEY, CONTEXT)
        assert silent.requests == 1
    await ring.close()
    ring._place = place_of(endpoint, key)  # the service answers again
    running = asyncio.create_task(ring.run())
    async with asyncio.timeout(120):
        while list(ring.health.all(0.0)):  # noqa: ASYNC110 - the service's answer is no event
            await asyncio.sleep(0.05)
    running.cancel()
    assert (await ring.wrap(DATA_KEY, CONTEXT)).key_id == key
    await ring.close()


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("DisabledException", 400, "SegmentLocked"),
        ("KMSInvalidStateException", 400, "SegmentLocked"),
        ("AccessDeniedException", 400, "KeyServiceDenied"),
        ("ThrottlingException", 400, "KeyServiceThrottled"),
        ("KMSInternalException", 500, "KeyServiceUnavailable"),
        ("ValidationException", 400, "RemoteStorageError"),
    ],
)
def test_each_answer_has_its_error(code: str, status: int, error: str) -> None:
    from botocore.exceptions import ClientError

    error_response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    translated_error = _translated(ClientError(error_response, "Decrypt"), "k1")  # type: ignore[arg-type]
    assert type(translated_error).__name__ == error
    assert "'k1'" in str(translated_error)
