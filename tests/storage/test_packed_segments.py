"""Segments compressed and encrypted at rest, through the RemoteStorage."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_object_store import MemoryObjectStore as ClosedWithItsManager

from fetchproxy.errors import (
    ConfigError,
    DamagedObject,
    MetadataChanged,
    ObjectNotFound,
    RangeNotSatisfiable,
    SegmentLocked,
)
from fetchproxy.model import (
    ByteRange,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from fetchproxy.observability.health import Condition, Kind
from fetchproxy.runtime.fairness import WAIT_SHOWN_S
from fetchproxy.segments.object_keys import SegmentFile, uuid_text
from fetchproxy.segments.packing import BLOCK_BYTES, WrappedKey, decode_packing, encode_packing
from fetchproxy.storage.ciphers import stream_at
from fetchproxy.storage.contract import segment
from fetchproxy.storage.key_rings import (
    NO_KEYS,
    FileKeyRing,
    KeyContext,
    Keys,
    key_context,
    read_keys,
    write_keys,
)
from fetchproxy.storage.packed_logs import (
    KEYS_AT_ONCE,
    AtRest,
    LogSegmentData,
    SegmentOpening,
)
from fetchproxy.storage.remote_storage import RemoteStorage


class MemoryObjectStore(ClosedWithItsManager):
    """Several managers use it one after the other."""

    async def close(self) -> None:
        pass


LOG = (b"an order of apples " * 40_000) + os.urandom(BLOCK_BYTES) + b"the end"
OTHER_LOG = bytes(reversed(LOG))
FILES = (SegmentFile.INDEX, SegmentFile.TXN, SegmentFile.EPOCHS)
ALL_FILES = (*FILES, SegmentFile.LOG, SegmentFile.PACKING)
Manager = Callable[..., RemoteStorage]


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write_keys(path, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    return path


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def data(tmp_path: Path) -> LogSegmentData:
    (tmp_path / "spooled.log").write_bytes(LOG)
    return LogSegmentData(
        tmp_path / "spooled.log", b"the index", b"txn", b"the epochs", log_settled=True,
        log_compressible=True,
    )  # fmt: skip


def packed_segment(number: int = 1) -> RemoteLogSegmentMetadata:
    metadata = segment(segment_id=number, has_aborted_txns=True)
    return replace(metadata, packed=True, segment_size_bytes=len(LOG))


def manager(
    store: MemoryObjectStore, ring: Path | None, *, compress: bool = True, required: bool = False
) -> RemoteStorage:
    keys = None if ring is None else FileKeyRing(ring)
    return RemoteStorage(store, "archive", at_rest=AtRest(compress, keys, required))


@pytest.fixture(params=[True, False], ids=["encrypted", "compressed"])
async def storage(
    request: pytest.FixtureRequest, store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> AsyncIterator[RemoteStorage]:
    """A manager with one segment of LOG."""
    async with manager(store, ring if request.param else None) as opened:
        await opened.rsm.copy_log_segment_data(packed_segment(), data)
        yield opened


async def test_what_is_packed_is_read_as_it_was(
    storage: RemoteStorage, store: MemoryObjectStore, tmp_path: Path
) -> None:
    metadata, size = packed_segment(), len(LOG)
    for start, end in ((0, size), (0, 1), (BLOCK_BYTES - 1, BLOCK_BYTES + 1), (size - 1, size + 9)):
        log_bytes = await storage.rsm.fetch_log_segment(metadata, ByteRange(start, end))
        assert log_bytes == LOG[start:end]
    for start in (size, size + 5):
        with pytest.raises(RangeNotSatisfiable):
            await storage.rsm.fetch_log_segment(metadata, ByteRange(start, start + 1))
    for file, content in zip(FILES, (b"the index", b"txn", b"the epochs"), strict=True):
        assert await storage.rsm.fetch_index(metadata, file) == content
    assert len(await store.get(storage.rsm.object_key(metadata, SegmentFile.LOG))) < 0.7 * size
    assert [path.name for path in tmp_path.iterdir() if "packed" in path.name] == []


async def test_nothing_of_an_encrypted_segment_is_in_the_clear(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> None:
    async with manager(store, ring, compress=False) as storage:
        await storage.rsm.copy_log_segment_data(packed_segment(), data)
        for file in ALL_FILES:
            stored = await store.get(storage.rsm.object_key(packed_segment(), file))
            assert not any(word in stored for word in (b"apples", b"the index", b"the epochs"))


async def test_a_spool_that_is_encrypted_is_stored_as_what_it_holds(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData, tmp_path: Path
) -> None:
    key, path = os.urandom(32), tmp_path / "spooled.log"
    path.write_bytes(stream_at(key, 0).update(LOG[:1001]) + stream_at(key, 1001).update(LOG[1001:]))
    data = replace(data, log_stream_key=key)
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(packed_segment(), data)
        whole = ByteRange(0, len(LOG))
        assert await storage.rsm.fetch_log_segment(packed_segment(), whole) == LOG
        with pytest.raises(ValueError, match="encrypted file"):
            await storage.rsm.copy_log_segment_data(replace(packed_segment(), packed=False), data)


async def read_whole(
    storage: RemoteStorage, metadata: RemoteLogSegmentMetadata, file: SegmentFile
) -> bytes | bytearray:
    if file is SegmentFile.LOG:
        return await storage.rsm.fetch_log_segment(metadata, ByteRange(0, len(LOG)))
    return await storage.rsm.fetch_index(metadata, file)


async def test_every_object_that_was_changed_is_found(
    storage: RemoteStorage, store: MemoryObjectStore
) -> None:
    """This covers all objects at once; `test_packing` covers each bit of a block."""
    metadata = packed_segment()
    for file in (SegmentFile.LOG, *(FILES if storage.packed.encrypts else ())):
        key = storage.rsm.object_key(metadata, file)
        sound = await store.get(key)
        for changed in (
            sound[:-1],
            sound[: len(sound) // 2],
            bytes([sound[0] ^ 1]) + sound[1:],
            sound[:-1] + bytes([sound[-1] ^ 0x80]),
            b"",
        ):
            await store.put(key, changed)
            with pytest.raises((DamagedObject, RangeNotSatisfiable)):
                await read_whole(storage, metadata, file)
        await store.put(key, sound)
    key = storage.rsm.object_key(metadata, SegmentFile.LOG)
    await store.put(key, await store.get(key) + b"more")
    for start in (0, len(LOG), len(LOG) + 1):
        with pytest.raises(DamagedObject, match="goes on"):
            await storage.rsm.fetch_log_segment(metadata, ByteRange(start, len(LOG) + 2))


@given(data=st.data())
async def test_a_flipped_bit_of_a_packing_is_no_other_log(data: st.DataObject) -> None:
    """A packing is JSON: some flips change nothing that counts. No flip gives other bytes."""
    store = MemoryObjectStore()
    folder = Path(os.environ["PYTEST_PACKED_FOLDER"])
    async with manager(store, folder / "keys.json") as storage:
        spooled = LogSegmentData(folder / "spooled.log", b"index", b"txn", b"epochs")
        await storage.rsm.copy_log_segment_data(packed_segment(), spooled)
    key = storage.rsm.object_key(packed_segment(), SegmentFile.PACKING)
    changed = bytearray(await store.get(key))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    await store.put(key, bytes(changed))
    async with manager(store, folder / "keys.json") as reader:
        try:
            log_bytes = await reader.rsm.fetch_log_segment(packed_segment(), ByteRange(0, len(LOG)))
        except DamagedObject:
            return
        assert log_bytes == LOG


@pytest.fixture(autouse=True)
def packed_folder(ring: Path, data: LogSegmentData, monkeypatch: pytest.MonkeyPatch) -> None:
    """For hypothesis, which has no fixture for each example."""
    monkeypatch.setenv("PYTEST_PACKED_FOLDER", str(ring.parent))


@pytest.mark.parametrize("moved", [ALL_FILES, (SegmentFile.LOG,), (SegmentFile.PACKING,), FILES])
async def test_objects_of_another_segment_do_not_pass(
    storage: RemoteStorage,
    store: MemoryObjectStore,
    data: LogSegmentData,
    moved: tuple[SegmentFile, ...],
) -> None:
    """Segments of the same offsets, size and key ring; all or some of their objects are swapped."""
    own_segment, other = packed_segment(1), packed_segment(2)
    data.log.write_bytes(OTHER_LOG)
    await storage.rsm.copy_log_segment_data(other, data)
    for file in moved:
        content = await store.get(storage.rsm.object_key(other, file))
        await store.put(storage.rsm.object_key(own_segment, file), content)
    async with RemoteStorage(store, "archive", at_rest=storage.packed._at_rest) as reader:
        if moved == FILES and not storage.packed.encrypts:
            return  # as before: other checks compare these files with the log
        file = SegmentFile.INDEX if moved == FILES else SegmentFile.LOG
        with pytest.raises(DamagedObject):
            await read_whole(reader, own_segment, file)


async def test_a_packing_of_other_keys_does_not_make_records_of_ones_own(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData, tmp_path: Path
) -> None:
    """A writer without the key packs a segment without a key, or with a key of its own."""
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(packed_segment(), data)
    own_keys = tmp_path / "own.json"
    write_keys(own_keys, NO_KEYS.with_new("k1", bytes(32)), new=True)
    async with manager(store, own_keys) as forger:
        await forger.rsm.copy_log_segment_data(packed_segment(), data)
    async with manager(store, ring) as reader:
        with pytest.raises(SegmentLocked, match="does not open it"):
            await reader.rsm.fetch_log_segment(packed_segment(), ByteRange(0, 1))
    async with manager(store, None) as forger:
        await forger.rsm.copy_log_segment_data(packed_segment(), data)
        await forger.rsm.copy_log_segment_data(replace(packed_segment(2), packed=False), data)
    async with manager(store, ring, required=True) as reader:
        for forged in (packed_segment(), replace(packed_segment(2), packed=False)):
            with pytest.raises(SegmentLocked, match="is not encrypted"):
                await reader.rsm.fetch_log_segment(forged, ByteRange(0, 1))
            with pytest.raises(SegmentLocked, match="is not encrypted"):
                await reader.rsm.fetch_index(forged, SegmentFile.TXN)
    async with manager(store, ring) as reader:  # a mixed archive is allowed
        assert await reader.rsm.fetch_log_segment(packed_segment(), ByteRange(0, 8)) == b"an order"


FORGED = {
    "start": {"start_offset": 1},
    "shorter": {"end_offset": 8},
    "longer": {"end_offset": 10},
    "longer, as if cut": {"end_offset": 9, "copied_end_offset": 10},
    "size": {"segment_size_bytes": len(LOG) - 1},
    "nothing aborted": {"has_aborted_txns": False},
    "nothing aborted, as if cut": {
        "end_offset": 8, "copied_end_offset": 9, "has_aborted_txns": False,
    },
    "older": {"max_timestamp_ms": -1},
    "newer": {"max_timestamp_ms": 1},
    "newer, as if cut": {"end_offset": 8, "copied_end_offset": 9, "max_timestamp_ms": 1},
    "another epoch": {"segment_leader_epochs": (EpochStart(1, 0),)},
    "one epoch more": {"segment_leader_epochs": (EpochStart(0, 0), EpochStart(1, 5))},
    "no epoch": {"segment_leader_epochs": ()},
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
async def test_metadata_that_somebody_has_changed_are_refused(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData, forged: dict[str, Any]
) -> None:
    """A writer without the key changes the metadata; the log and its index are unchanged."""
    own_segment = packed_segment()
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(own_segment, data)
        assert await storage.packed.as_copied(own_segment) == own_segment
        changed = replace(own_segment, **forged)
        for file in ALL_FILES:  # their keys have the start offset
            content = await store.get(storage.rsm.object_key(own_segment, file))
            await store.put(storage.rsm.object_key(changed, file), content)
        for reader in (manager(store, ring), storage):  # also one that has read it before
            for segment_read in (
                reader.rsm.fetch_log_segment(changed, ByteRange(0, 1)),
                reader.rsm.fetch_index(changed, SegmentFile.INDEX),
                reader.packed.check_metadata(changed),
            ):
                with pytest.raises(MetadataChanged, match=r"\.metadata: it differs from what"):
                    await segment_read
            (condition,) = reader.health.conditions(0.0)
            assert (condition.kind, condition.subject) == (
                Kind.SEGMENT_METADATA_CHANGED,
                "weather-eu.v1_raw-0",
            )
            await reader.packed.check_metadata(own_segment)
            assert [*reader.health.conditions(0.0)] == []
            # A ref has not all fields; what it has must be true, unless it is only of a listing.
            if changed.ref != own_segment.ref:
                with pytest.raises(MetadataChanged):
                    await reader.rsm.fetch_index(changed.ref, SegmentFile.INDEX)
            assert await reader.rsm.fetch_index(own_segment.ref, SegmentFile.INDEX) == data.index
            listed = changed.ref.as_listed()
            assert await reader.rsm.fetch_index(listed, SegmentFile.INDEX) == data.index
        mended = await storage.packed.as_copied(changed)
        assert mended.has_aborted_txns
        if "start_offset" not in forged:  # the key of the object has it, too
            await storage.packed.check_metadata(mended)


async def test_a_segment_that_was_cut_is_still_its_own(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> None:
    """After an unclean leader election the end, epochs and largest timestamp become less."""
    own_segment = replace(
        packed_segment(), segment_leader_epochs=(EpochStart(0, 0), EpochStart(3, 6)),
        max_timestamp_ms=1_000,
    )  # fmt: skip
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(own_segment, data)
        for end in (0, 5, 6, 8):
            cut = replace(own_segment.clipped(end), max_timestamp_ms=end)
            await storage.packed.check_metadata(cut)
            assert await storage.packed.as_copied(cut) == cut
            await storage.packed.check_metadata(cut.clipped(0))
        without_epoch = replace(own_segment.clipped(8), segment_leader_epochs=(EpochStart(0, 0),))
        with pytest.raises(MetadataChanged, match="leader_epochs"):
            await storage.packed.check_metadata(without_epoch)
        for state in RemoteLogSegmentState:
            await storage.packed.check_metadata(own_segment.with_state(state, 7))


@pytest.mark.parametrize("change", ["base_offset", "end_offset", "has_aborted_txns", "left out"])
async def test_what_a_packing_says_of_its_segment_cannot_be_changed(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData, change: str
) -> None:
    """It fails even if the metadata change alike, or if the description is removed."""
    own_segment = packed_segment()
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(own_segment, data)
        key = storage.rsm.object_key(own_segment, SegmentFile.PACKING)
    document = json.loads(await store.get(key))
    assert (document["version"], document["end_offset"]) == (2, 9)
    if change == "left out":
        document["version"] = 1
    elif change == "has_aborted_txns":
        document[change] = False
    else:
        document[change] += 1
    await store.put(key, json.dumps(document).encode())
    async with manager(store, ring) as reader:
        with pytest.raises(SegmentLocked, match="data stored with it was changed"):
            await reader.rsm.fetch_log_segment(own_segment, ByteRange(0, 1))


async def test_a_segment_that_was_encrypted_without_a_description_is_read(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> None:
    """An older program wrote it: its metadata are trusted as before; it is rewrapped as it is."""
    own_segment, keys = packed_segment(), FileKeyRing(ring)
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(own_segment, data)
        key = storage.rsm.object_key(own_segment, SegmentFile.PACKING)
        packing = decode_packing(await store.get(key), key)
        assert packing.key is not None
        data_key = await keys.unwrap(
            packing.key, key_context(own_segment.segment_id, packing.digest)
        )
        older = replace(
            packing,
            copy_description=None,
            key=await keys.wrap(data_key, key_context(own_segment.segment_id, "")),
        )
        await store.put(key, encode_packing(older))
    write_keys(ring, read_keys(ring).with_new("k2", bytes(32)), new=False)
    for _ in range(2):
        async with manager(store, ring) as storage:
            assert await storage.rsm.fetch_log_segment(own_segment, ByteRange(0, len(LOG))) == LOG
            assert await storage.packed.as_copied(replace(own_segment, end_offset=8)) == replace(
                own_segment, end_offset=8
            )
            await storage.packed.rewrap(own_segment)
    assert await key_of(storage, store, 1) == "k2"


@pytest.mark.remedy("segments_locked")
async def test_without_the_key_there_is_an_error_and_an_alarm(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData, tmp_path: Path
) -> None:
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(packed_segment(), data)
    async with manager(store, None) as reader:
        with pytest.raises(SegmentLocked, match=r"'k1', and store.encryption_keys is not set"):
            await reader.rsm.fetch_index(packed_segment(), SegmentFile.INDEX)
        (locked,) = reader.health.conditions(0.0)
        assert (locked.kind, locked.subject) == (Kind.SEGMENTS_LOCKED, "k1")
        assert "store.encryption_keys is not set" in locked.what
    keys = read_keys(ring)
    write_keys(ring, Keys("k2", {"k2": bytes(32)}), new=False)
    async with manager(store, ring) as reader:
        with pytest.raises(SegmentLocked, match=r"'k1', and the key ring .* has no key with"):
            await reader.rsm.fetch_log_segment(packed_segment(), ByteRange(0, 1))
        assert [one.subject for one in reader.health.conditions(0.0)] == ["k1"]
        write_keys(ring, keys, new=False)  # restored: the key works at once, and the alarm ends
        assert await reader.rsm.fetch_log_segment(packed_segment(), ByteRange(0, 2)) == b"an"
        assert [*reader.health.conditions(0.0)] == []


async def test_keys_are_rotated_and_rewrapped_while_segments_are_read(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> None:
    async with manager(store, ring) as storage, manager(store, ring) as reader:
        await storage.rsm.copy_log_segment_data(packed_segment(1), data)
        assert await reader.rsm.fetch_log_segment(packed_segment(1), ByteRange(0, 2)) == b"an"
        write_keys(ring, read_keys(ring).with_new("k2", bytes(32)), new=False)
        await storage.rsm.copy_log_segment_data(packed_segment(2), data)
        keys = [(await key_of(storage, store, number)) for number in (1, 2)]
        assert keys == ["k1", "k2"]
        before = {key: await store.get(key) for key in await all_keys(store)}
        rewrap_plan = await storage.packed.rewrap(packed_segment(1), dry_run=True)
        assert (rewrap_plan.key_id, rewrap_plan.done) == ("k1", True)
        assert before == {key: await store.get(key) for key in await all_keys(store)}
        assert (await storage.packed.rewrap(packed_segment(1))).done
        assert not (await storage.packed.rewrap(packed_segment(1))).done
        assert not (await storage.packed.rewrap(packed_segment(2))).done
        after = {key: await store.get(key) for key in await all_keys(store)}
        changed = [key for key in after if after[key] != before[key]]
        assert changed == [storage.rsm.object_key(packed_segment(1), SegmentFile.PACKING)]
        # The old key is not needed any more, for the earlier reader or a new one.
        write_keys(ring, Keys("k2", {"k2": bytes(32)}), new=False)
        async with manager(store, ring) as anew:
            for one in (reader, anew):
                whole = await one.rsm.fetch_log_segment(packed_segment(1), ByteRange(0, len(LOG)))
                assert whole == LOG


async def all_keys(store: MemoryObjectStore) -> list[str]:
    return [stored_object.key async for stored_object in store.list("archive/weather")]


async def key_of(storage: RemoteStorage, store: MemoryObjectStore, number: int) -> str:
    key = storage.rsm.object_key(packed_segment(number), SegmentFile.PACKING)
    wrapped = decode_packing(await store.get(key), key).key
    return "" if wrapped is None else wrapped.key_id


async def test_what_lies_beside_a_log_can_be_made_anew(
    storage: RemoteStorage, store: MemoryObjectStore
) -> None:
    key = storage.rsm.object_key(packed_segment(), SegmentFile.INDEX)
    before = await store.get(key)
    await storage.rsm.put_index(packed_segment(), SegmentFile.INDEX, b"other")
    assert await storage.rsm.fetch_index(packed_segment(), SegmentFile.INDEX) == b"other"
    await storage.rsm.put_index(packed_segment(), SegmentFile.INDEX, b"the index")
    assert await storage.rsm.fetch_index(packed_segment(), SegmentFile.INDEX) == b"the index"
    # A nonce is never reused with other bytes, so the stored bytes differ.
    assert (await store.get(key) == before) is not storage.packed.encrypts


async def test_all_of_it_is_deleted(storage: RemoteStorage, store: MemoryObjectStore) -> None:
    await storage.objects.put_segment_metadata(packed_segment(), b"metadata")
    assert len(await all_keys(store)) == len(ALL_FILES) + 1
    listed = [
        (key.file, stored_object)
        async for key, stored_object in storage.objects.list_segment_objects(
            packed_segment().topic_id_partition
        )
    ]
    raw, log_bytes = await storage.rsm.get_listed_index(dict(listed))
    assert (raw, log_bytes) == (b"the index", len(LOG))
    assert await storage.packed.is_packed(packed_segment())
    await storage.rsm.delete_log_segment_data(packed_segment())
    assert await all_keys(store) == []
    assert not await storage.packed.is_packed(packed_segment())
    async with RemoteStorage(store, "archive", at_rest=storage.packed._at_rest) as reader:
        with pytest.raises(ObjectNotFound):
            await reader.rsm.fetch_log_segment(packed_segment(), ByteRange(0, 1))


async def test_nothing_changes_for_segments_that_are_as_they_are(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> None:
    """Bytes and requests are the same as in an archive without keys."""
    plain = replace(packed_segment(), packed=False)
    requests: list[list[str]] = []
    contents = []
    for at_rest in (AtRest(), AtRest(compress=True, keys=FileKeyRing(ring))):
        store = MemoryObjectStore()
        async with RemoteStorage(store, "archive", at_rest=at_rest) as storage:
            await storage.rsm.copy_log_segment_data(plain, data)
            contents.append({key: await store.get(key) for key in await all_keys(store)})
            keys_read = watched(store)
            assert await storage.rsm.fetch_log_segment(plain, ByteRange(0, len(LOG))) == LOG
            await storage.rsm.fetch_index(plain, SegmentFile.INDEX)
            requests.append(keys_read)
    assert contents[0] == contents[1]
    assert requests[0] == requests[1]
    assert len(requests[0]) == 2
    assert LOG in contents[0].values()


def watched(store: MemoryObjectStore) -> list[str]:
    keys_read: list[str] = []
    get, get_range = store.get, store.get_range

    async def counted_get(key: str, *more: int) -> bytes:
        keys_read.append(key)
        return await get(key, *more)

    async def counted_range(key: str, byte_range: ByteRange) -> bytes | bytearray:
        keys_read.append(key)
        return await get_range(key, byte_range)

    store.get, store.get_range = counted_get, counted_range  # type: ignore[assignment]
    return keys_read


async def test_a_packing_is_read_once(storage: RemoteStorage, store: MemoryObjectStore) -> None:
    async with RemoteStorage(store, "archive", at_rest=storage.packed._at_rest) as reader:
        keys_read = watched(store)
        await reader.rsm.fetch_index(packed_segment(), SegmentFile.INDEX)
        for at in range(0, len(LOG), 100_000):
            await reader.rsm.fetch_log_segment(packed_segment(), ByteRange(at, at + 100_000))
        packings = [key for key in keys_read if key.endswith(".packing")]
        assert len(packings) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "no object `keys`"),
        (b'{"keys": {}}', "version is not 1"),
        (b'{"version": 1, "keys": {"a": "AAAA"}}', "has 3 bytes, not 32"),
        (b'{"version": 1, "keys": {"a": "?"}}', "not base64"),
        (b'{"version": 1, "keys": {"a b": ""}}', "not a valid key id"),
        (b'{"version": 1, "keys": {}, "active": "a"}', "not one of its keys"),
    ],
)
def test_a_key_ring_that_is_none_says_why(content: bytes, message: str, ring: Path) -> None:
    ring.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{ring}.*{message}"):
        FileKeyRing(ring)


def test_a_key_ring_is_its_owners_alone(ring: Path) -> None:
    assert ring.stat().st_mode & 0o777 == 0o600
    ring.chmod(0o640)
    with pytest.raises(ConfigError, match=r"open to others \(mode 0640\): chmod 600"):
        FileKeyRing(ring)
    with pytest.raises(ConfigError, match="No such file"):
        FileKeyRing(ring.with_name("none"))
    ring.chmod(0o600)
    with pytest.raises(ConfigError, match="exists already"):
        write_keys(ring, NO_KEYS, new=True)
    assert repr(read_keys(ring)) == "Keys(active='k1')"
    assert sorted(path.name for path in ring.parent.iterdir()) == ["keys.json", "spooled.log"]


def unusable(ring: Path, how: str) -> None:
    if how == "open to others":
        ring.chmod(0o640)
    elif how == "cut":
        ring.write_bytes(ring.read_bytes()[:40])
    else:
        ring.unlink()
        if how == "a FIFO":
            os.mkfifo(ring)


@pytest.mark.parametrize("how", ["open to others", "cut", "removed", "a FIFO"])
@pytest.mark.remedy("key_ring_unusable")
async def test_a_ring_that_becomes_unusable_keeps_its_keys_and_says_so(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData, how: str
) -> None:
    ring_bytes = ring.read_bytes()
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(packed_segment(), data)
        running = asyncio.create_task(storage.health.run())
        unusable(ring, how)

        def ring_conditions() -> list[Condition]:
            return [
                one for one in storage.health.conditions(0.0) if one.kind == "key_ring_unusable"
            ]

        await until(lambda: bool(ring_conditions()))  # no key is used meanwhile
        assert str(ring) in ring_conditions()[0].what
        with pytest.raises(ConfigError):
            FileKeyRing(ring)
        async with manager(store, None) as without:
            with pytest.raises(SegmentLocked):
                await without.rsm.fetch_log_segment(packed_segment(), ByteRange(0, 2))
        storage.packed._opened.clear()
        assert await storage.rsm.fetch_log_segment(packed_segment(), ByteRange(0, 2)) == b"an"
        ring.unlink(missing_ok=True)
        ring.touch(0o600)
        ring.write_bytes(ring_bytes)
        await until(lambda: not ring_conditions())
        running.cancel()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not what():  # noqa: ASYNC110 - the look at the file is no event
            await asyncio.sleep(0.02)


async def test_a_locked_segment_is_unlocked_by_its_own_success_alone(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> None:
    async with manager(store, ring) as storage:
        for number in (1, 2):
            await storage.rsm.copy_log_segment_data(packed_segment(number), data)
        packing = storage.rsm.object_key(packed_segment(1), SegmentFile.PACKING)
        packing_bytes = await store.get(packing)
        packed = decode_packing(packing_bytes, packing)
        assert packed.key is not None
        other = replace(packed.key, wrapped=packed.key.wrapped[:-1] + b"?")
        await store.put(packing, encode_packing(replace(packed, key=other)))

        async def read(number: int) -> None:
            storage.packed._opened.clear()
            await storage.rsm.fetch_log_segment(packed_segment(number), ByteRange(0, 2))

        def locked() -> list[str]:
            return [one.kind for one in storage.health.conditions(0.0)]

        with pytest.raises(SegmentLocked):
            await read(1)
        await read(2)
        assert locked() == ["segments_locked"]
        await store.put(packing, packing_bytes)
        await read(1)
        assert locked() == []


@pytest.mark.remedy("segments_not_encrypted", "plain_segments_refused")
@pytest.mark.parametrize("required", [False, True])
async def test_a_plain_segment_is_a_condition_until_it_is_opened_with_a_key_or_gone(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData, required: bool
) -> None:
    async with manager(store, ring) as storage:
        for number in (1, 2):
            await storage.rsm.copy_log_segment_data(packed_segment(number), data)
    contents = {key: await store.get(key) for key in await all_keys(store)}
    forged = [replace(packed_segment(number), packed=False) for number in (1, 3)]
    compressed = packed_segment(4)
    async with manager(store, None) as anybody:
        for each in (*forged, compressed):
            await anybody.rsm.copy_log_segment_data(each, data)

    async with manager(store, ring, required=required) as reader:

        async def read(segment: RemoteLogSegmentMetadata) -> None:
            with pytest.raises(SegmentLocked) if required else nullcontext():
                await reader.rsm.fetch_log_segment(segment, ByteRange(0, 2))

        def conditions() -> list[tuple[str, int]]:
            named = [(str(one.kind), one.what) for one in reader.health.conditions(0.0)]
            return [(kind, 1 + ("(and 1 more" in what)) for kind, what in named]

        kind = "plain_segments_refused" if required else "segments_not_encrypted"
        for each in (*forged, forged[0]):
            await read(each)
        assert conditions() == [(kind, 2)]
        # Another segment's success says nothing about these.
        await reader.rsm.fetch_log_segment(packed_segment(2), ByteRange(0, 2))
        assert conditions() == [(kind, 2)]
        await reader.rsm.delete_log_segment_data(forged[1])
        assert conditions() == [(kind, 1)]
        for key, content in contents.items():
            await store.put(key, content)
        await reader.rsm.fetch_log_segment(packed_segment(1), ByteRange(0, 2))
        assert conditions() == []
        # Also one that is packed, and open from before.
        for _ in range(2):
            await read(compressed)
            assert conditions() == [(kind, 1)]
            reader.health.look(asyncio.get_running_loop().time() + 3_600)
            assert conditions() == []


async def test_a_ring_without_an_active_key_reads_and_does_not_write(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> None:
    async with manager(store, ring) as storage:
        await storage.rsm.copy_log_segment_data(packed_segment(), data)
    write_keys(ring, replace(read_keys(ring), active=None), new=False)
    async with manager(store, ring, compress=False) as reader:
        assert not reader.packed.encrypts
        assert not reader.packed.packs(compressible=True)
        assert await reader.rsm.fetch_log_segment(packed_segment(), ByteRange(0, 2)) == b"an"


def test_which_segments_are_packed(store: MemoryObjectStore, ring: Path) -> None:
    for at_rest, compressible, packs in (
        (AtRest(), True, False),
        (AtRest(compress=True), True, True),
        (AtRest(compress=True), False, False),
        (AtRest(keys=FileKeyRing(ring)), False, True),
    ):
        storage = RemoteStorage(store, at_rest=at_rest)
        assert storage.packed.packs(compressible=compressible) is packs


def test_segments_differ_by_their_ids_alone() -> None:
    first, second = packed_segment(1), packed_segment(2)
    tp = first.topic_id_partition
    assert second == replace(first, segment_id=RemoteLogSegmentId(tp, UUID(int=2)))


# --- a key service that hangs: who waits for it ---
class HangingKeys(FileKeyRing):
    """As a key service, which gives a key to one read at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.hangs = self.is_service = True
        self.segments_asked: list[str] = []
        self.responses = asyncio.Semaphore(0)

    def asks_service(self, key_id: str) -> bool:
        return self.is_service

    async def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        self.segments_asked.append(context["segment_id"])
        if self.hangs:
            await self.responses.acquire()
        return await super().unwrap(wrapped, context)


def small_segment(number: int) -> RemoteLogSegmentMetadata:
    return replace(packed_segment(number), segment_size_bytes=5)


class Opener:
    """Opens encrypted segments 1 to 40, for several clients. Segment 50 is compressed alone."""

    def __init__(self, storage: RemoteStorage, keys: HangingKeys) -> None:
        self.packed = storage.packed
        self.keys = keys
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.openings: dict[int, SegmentOpening] = {}

    async def begin(self, client: str, *numbers: int) -> None:
        for number in numbers:
            opening = self.openings[number] = self.packed.opening(small_segment(number))
            await opening.describe()
            self.tasks[number] = asyncio.create_task(opening.unlock(client))
            await asyncio.sleep(0)

    async def response(self, count: int) -> None:
        """Let the key service answer so many requests, and be asked again."""
        for _ in range(count):
            count_before = len(self.keys.segments_asked)
            self.keys.responses.release()
            while len(self.keys.segments_asked) == count_before:  # noqa: ASYNC110
                await asyncio.sleep(0)

    def asked_at(self, number: int) -> int:
        return self.keys.segments_asked.index(uuid_text(small_segment(number).segment_id.id))

    def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()


@pytest.fixture
async def opener(
    store: MemoryObjectStore, ring: Path, data: LogSegmentData
) -> AsyncIterator[Opener]:
    keys = HangingKeys(ring)
    keys.hangs = False
    data.log.write_bytes(b"small")
    async with RemoteStorage(store, "archive", at_rest=AtRest(True, keys)) as writer:
        for number in range(1, 41):
            await writer.rsm.copy_log_segment_data(small_segment(number), data)
    async with manager(store, None) as plain:
        await plain.rsm.copy_log_segment_data(small_segment(50), data)
    keys.hangs = True
    async with RemoteStorage(store, "archive", at_rest=AtRest(True, keys)) as reader:
        opened = Opener(reader, keys)
        yield opened
        opened.end()
        await asyncio.wait(opened.tasks.values())


async def test_a_key_service_that_hangs_keeps_only_encrypted_segments_waiting(
    opener: Opener,
) -> None:
    await opener.begin("many", *range(1, 41))
    assert len(opener.keys.segments_asked) == KEYS_AT_ONCE
    await opener.begin("other", 50)
    await opener.tasks[50]
    assert opener.openings[50].is_open
    assert not any(opener.openings[number].is_open for number in range(1, 41))
    now = asyncio.get_running_loop().time()
    (condition,) = opener.packed.conditions(now + WAIT_SHOWN_S)
    assert f"{40 - KEYS_AT_ONCE} reads of encrypted segments wait" in condition.what
    assert "of 'many'" in condition.what


async def test_a_key_of_a_file_waits_for_no_key_service(opener: Opener) -> None:
    await opener.begin("many", *range(1, 40))
    opener.keys.hangs = opener.keys.is_service = False
    await opener.begin("many", 40)
    await opener.tasks[40]
    assert opener.openings[40].is_open


async def test_clients_ask_a_slow_key_service_in_turn(opener: Opener) -> None:
    await opener.begin("many", *range(1, 38))
    await opener.begin("one", 40)
    await opener.begin("many", 38)
    opener.openings[37].join("another")
    await opener.response(4)
    assert opener.asked_at(40) <= KEYS_AT_ONCE + 2
    assert opener.asked_at(37) <= KEYS_AT_ONCE + 3, "it goes at the first turn of both clients"
    assert opener.openings[1].is_open


async def test_who_no_longer_waits_for_a_key_is_not_asked_for(opener: Opener) -> None:
    await opener.begin("many", *range(1, 40))
    opener.end()
    await asyncio.wait(opener.tasks.values())
    count_before = len(opener.keys.segments_asked)
    await opener.begin("one", 40)
    assert len(opener.keys.segments_asked) == count_before + 1 == KEYS_AT_ONCE + 1
    opener.keys.responses.release()
    await opener.tasks[40]
    assert not list(opener.packed.conditions(asyncio.get_running_loop().time() + WAIT_SHOWN_S))
