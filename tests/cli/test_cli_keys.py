"""`fetchproxy keys` as an operator types it, with an archive in a folder."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import Result
from segment_values import segment as of
from typer.testing import CliRunner

from fetchproxy.cli.keys import rewrap_archive
from fetchproxy.cli.main import app
from fetchproxy.config.load import load_config
from fetchproxy.errors import ConfigError, StorageUnavailable
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata
from fetchproxy.segments.journal import JournalPlace, JournalTable, encode_table
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.packing import WrappedKey
from fetchproxy.storage.key_rings import FileKeyRing, read_keys, write_keys
from fetchproxy.storage.packed_logs import AtRest, LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore

LOG = b"orders " * 1_000
SEGMENTS = [of(number, 10 * number, 10 * number + 9) for number in (1, 2, 4, 5)]


class Operator:
    def __init__(self, folder: Path) -> None:
        self.ring = folder / "keys.json"
        self.store = folder / "store"
        self.spooled = folder / "spooled.log"
        self.spooled.write_bytes(LOG)

    def types(self, *words: str) -> Result:
        return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["keys", *words])

    def rewraps(self, *more: str) -> Result:
        keys = ["--set", f"store.encryption_keys={self.ring}"]
        return self.types("rewrap", "--store", self.store.as_uri(), *keys, *more)

    def storage(self) -> RemoteStorage:
        store = FilesystemObjectStore(self.store, create=True)
        return RemoteStorage(store, at_rest=AtRest(keys=FileKeyRing(self.ring)))

    def archives(self, *numbers: int) -> None:
        async def copied() -> None:
            async with self.storage() as storage:
                for number in numbers:
                    data = LogSegmentData(self.spooled, b"index", None, b"epochs")
                    await storage.rsm.copy_log_segment_data(packed(number), data)

        asyncio.run(copied())

    def reads(self, number: int) -> bytes:
        async def read() -> bytes:
            async with self.storage() as storage:
                return bytes(
                    await storage.rsm.fetch_log_segment(packed(number), ByteRange(0, len(LOG)))
                )

        return asyncio.run(read())


def packed(number: int) -> RemoteLogSegmentMetadata:
    return replace(
        SEGMENTS[number], packed=True, segment_size_bytes=len(LOG), has_aborted_txns=False
    )


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def test_a_ring_is_made_rotated_and_listed(operator: Operator) -> None:
    ring = str(operator.ring)
    made = operator.types("generate", ring)
    assert made.exit_code == 0
    first = made.output.split()[-1]
    again = operator.types("generate", ring)
    assert (again.exit_code, "exists already" in again.output) == (2, True)
    assert operator.types("list", ring).output == f"{first}  active\n"
    second = operator.types("rotate", ring).output.split()[-1]
    assert operator.types("list", ring).output == f"{first}\n{second}  active\n"
    keys = read_keys(operator.ring)
    assert [len(key) for key in keys.keys.values()] == [32, 32]
    assert len({*keys.keys.values()}) == 2
    assert operator.ring.stat().st_mode & 0o777 == 0o600
    for command in ("rotate", "list"):
        missing = operator.types(command, f"{ring}.not")
        assert (missing.exit_code, "No such file" in missing.output) == (2, True)


def test_an_archive_is_rewrapped_and_the_old_key_can_go(operator: Operator) -> None:
    operator.types("generate", str(operator.ring))
    operator.archives(0, 1, 2)
    (first,) = read_keys(operator.ring).keys
    operator.types("rotate", str(operator.ring))
    operator.archives(3)
    second = read_keys(operator.ring).active
    logs = {path: path.read_bytes() for path in operator.store.rglob("*.log")}
    planned = operator.rewraps("--dry-run")
    assert planned.exit_code == 0, planned.output
    assert f"has 3 data keys: {first}" in planned.output
    assert f"has 1 data key: {second}" in planned.output
    assert "to be re-encrypted: 3 data keys" in planned.output
    assert "encrypted anew: 3 data keys" in operator.rewraps().output
    assert operator.rewraps().output.splitlines()[-1] == "encrypted anew: 0 data keys"
    keys = read_keys(operator.ring)
    write_keys(operator.ring, keys.without(first), new=False)
    assert [operator.reads(number) for number in range(4)] == [LOG] * 4
    assert logs == {path: path.read_bytes() for path in operator.store.rglob("*.log")}


def test_what_cannot_be_opened_is_named_and_the_rest_is_done(operator: Operator) -> None:
    operator.types("generate", str(operator.ring))
    operator.archives(0)
    lost = read_keys(operator.ring).active
    operator.ring.unlink()
    operator.types("generate", str(operator.ring))
    operator.archives(1)
    operator.types("rotate", str(operator.ring))
    outcome = operator.rewraps()
    assert outcome.exit_code == 1
    assert "not opened: orders" in outcome.output
    assert f"{lost!r}" in outcome.output
    assert "encrypted anew: 1 data key" in outcome.output
    assert operator.reads(1) == LOG


def test_a_forged_key_id_does_no_harm_to_a_terminal(operator: Operator) -> None:
    operator.types("generate", str(operator.ring))
    operator.archives(0)
    place = JournalPlace(UUID(int=7), 0)
    key = WrappedKey("\x1b]0;owned\x07\r\u202eclean", b"wrapped")
    journal = operator.spooled.with_name("journal")
    journal.write_bytes(encode_table(JournalTable(place, "cluster", 1, key, ())))

    async def forge() -> None:
        async with operator.storage() as storage:
            await storage.objects.put_journal(*place, journal)

    asyncio.run(forge())
    done = operator.rewraps("--dry-run")
    assert "]0;owned" in done.output
    assert not set("\x1b\x07\r\u202e") & set(done.output)


def test_a_run_that_ends_at_any_write_is_gone_on_with(operator: Operator) -> None:
    """Also one whose object was put and whose answer was lost."""

    class Ending(FilesystemObjectStore):
        writes_left = 0
        after = False

        async def put(self, key: str, content: bytes) -> None:
            if not self.writes_left and not self.after:
                raise StorageUnavailable("killed here")
            await super().put(key, content)
            if not self.writes_left:
                raise StorageUnavailable("killed here")
            Ending.writes_left -= 1

    operator.types("generate", str(operator.ring))
    operator.archives(0, 1, 2)
    for after in (False, True):
        for writes_left in range(3):
            operator.types("rotate", str(operator.ring))
            Ending.writes_left, Ending.after = writes_left, after

            async def ended() -> None:
                store = Ending(operator.store)
                at_rest = AtRest(keys=FileKeyRing(operator.ring))
                async with RemoteStorage(store, at_rest=at_rest) as storage:
                    with pytest.raises(StorageUnavailable, match="killed here"):
                        await rewrap_archive(storage)

            asyncio.run(ended())
            assert [operator.reads(number) for number in range(3)] == [LOG] * 3
            done = writes_left + after
            assert f"encrypted anew: {3 - done} data key" in operator.rewraps().output
            active = read_keys(operator.ring).active
            keys = read_keys(operator.ring)
            for key_id in [*keys.keys]:
                if key_id != active:
                    keys = keys.without(key_id)
            write_keys(operator.ring, keys, new=False)
            assert [operator.reads(number) for number in range(3)] == [LOG] * 3


def test_it_says_what_is_missing(operator: Operator) -> None:
    nothing = operator.types("rewrap", "--store", operator.store.as_uri())
    assert (nothing.exit_code, "store.encryption_keys is not set" in nothing.output) == (2, True)
    missing = operator.rewraps()
    assert (missing.exit_code, "No such file" in missing.output) == (2, True)


@pytest.mark.parametrize(
    "url",
    ["keys.json", "http://x/y", "aws-kms://", "/keys?required=maybe", "/keys?other=1", "/k#a"],
)
def test_a_place_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.encryption_keys"):
        load_config(None, {"FETCHPROXY_STORE_ENCRYPTION_KEYS": url}, [])


def test_a_disk_cache_would_hold_records_in_the_clear() -> None:
    environment = {
        "FETCHPROXY_STORE_ENCRYPTION_KEYS": "/etc/keys.json",
        "FETCHPROXY_REMOTE_FETCH_DISK_CACHE_DIR": "/var/cache",
    }
    with pytest.raises(ConfigError, match="disk cache would hold unencrypted records"):
        load_config(None, environment, [])


def test_the_log_objects_are_the_only_large_ones(operator: Operator) -> None:
    operator.types("generate", str(operator.ring))
    operator.archives(0)
    suffixes = {path.suffix.removeprefix(".") for path in operator.store.rglob("*.*")}
    assert {SegmentFile.LOG, SegmentFile.PACKING} <= suffixes
