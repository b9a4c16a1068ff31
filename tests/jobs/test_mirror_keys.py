"""A mirror of an encrypted archive whose keys, indexes and metadata change after the copy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import Result
from mirrors import deleted, mirrored, objects, url_of
from planted_archive import TP, batch, flip
from stored_archives import PREFIX, config_of
from structlog.testing import capture_logs
from typer.testing import CliRunner
from whole_archive import verify_archive
from written_archive import WrittenArchive

from fetchproxy.auditing import moving
from fetchproxy.auditing.mirroring import MirrorOptions, open_side
from fetchproxy.cli.keys import RewrapReport, rewrap_archive
from fetchproxy.cli.main import app
from fetchproxy.config.schema import Config
from fetchproxy.jobs.mirror import Deleted, Mirrored, delete_moved, mirror
from fetchproxy.jobs.runner import Here
from fetchproxy.jobs.verify import repair, verify
from fetchproxy.model import ByteRange
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, read_keys, write_keys
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from fetchproxy.storage.remote_storage import open_store
from fetchproxy.storage.stores.registry import without_secrets

BASES = (0, 20, 40)
LOG = b"".join(batch(base) + batch(base + 10) for base in BASES)


class Encrypted:
    """An archive in `a` of three encrypted segments, its mirror in `b`, and their key ring."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b, self.ring = folder / "a", folder / "b", folder / "keys.json"
        write_keys(self.ring, NO_KEYS.with_new("old", bytes(range(32))), new=True)
        self.written = WrittenArchive(self.a / PREFIX, AtRest(True, FileKeyRing(self.ring)))
        for base in BASES:
            self.written.add([batch(base), batch(base + 10)])

    def config(self, at: Path, **changes: object) -> Config:
        return config_of(at, store__encryption_keys=str(self.ring), **changes)

    def mirrored(self, *, cut_over: bool = False, **options: bool) -> Mirrored:
        return mirror(
            Here(), self.config(self.a), url_of(self.b), MirrorOptions(**options), cut_over=cut_over
        )

    def deleted(self) -> Deleted:
        return delete_moved(
            Here(), self.config(self.a, archive__retention_grace_ms=0), url_of(self.b)
        )

    def rotated(self) -> None:
        write_keys(self.ring, read_keys(self.ring).with_new("new", bytes(32)), new=False)

    def rewrapped(self, at: Path) -> RewrapReport:
        async def done() -> RewrapReport:
            async with open_store(url_of(at), self.config(at).store) as storage:
                return await rewrap_archive(storage)

        return asyncio.run(done())

    def dry_run(self, at: Path | None = None) -> Result:
        keys = ["--set", f"store.encryption_keys={self.ring}", "--dry-run"]
        store = url_of(at or self.a)
        return CliRunner(env={"COLUMNS": "200"}).invoke(
            app, ["keys", "rewrap", "--store", store, *keys]
        )

    def without(self, key_id: str) -> None:
        document = json.loads(self.ring.read_text())
        document["keys"] = {name: key for name, key in document["keys"].items() if name != key_id}
        self.ring.write_text(json.dumps(document))

    def read(self, at: Path) -> bytes:
        """Every record, after a clean verification."""

        async def done() -> bytes:
            async with open_side(url_of(at), self.config(at)) as place:
                report = await verify_archive(place.storage, place.rlmm)
                assert not report.faults, report.faults
                whole = b""
                for segment in place.rlmm.list_remote_log_segments(TP):
                    size = ByteRange(0, segment.segment_size_bytes)
                    whole += bytes(await place.storage.rsm.fetch_log_segment(segment, size))
                return whole

        return asyncio.run(done())

    def path(self, at: Path, number: int, file: SegmentFile) -> Path:
        return (
            at
            / PREFIX
            / self.written.path(self.written.segments[number], file).relative_to(self.a / PREFIX)
        )

    def damage(self, number: int, file: SegmentFile, position: int = -3) -> None:
        path = self.path(self.a, number, file)
        path.write_bytes(flip(position)(path.read_bytes()))


@pytest.fixture
def archive(tmp_path: Path) -> Encrypted:
    return Encrypted(tmp_path)


@pytest.fixture(autouse=True)
def soon_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "HEARD_WITHIN_S", 0.05)


def whats(faults: Iterable[object]) -> str:
    return "\n".join(str(fault) for fault in faults)


def test_new_keys_reach_the_mirror_before_the_old_one_goes(archive: Encrypted) -> None:
    """The manual's section "New keys", with a mirror as the backup."""
    archive.mirrored()
    archive.rotated()
    assert archive.rewrapped(archive.a).rewrapped == 3
    [outcome] = archive.mirrored().partitions
    assert not outcome.faults
    assert outcome.copied == 3
    assert outcome.bytes_copied < 3_000  # the logs were not read again
    assert objects(archive.b) == objects(archive.a)
    archive.without("old")
    assert archive.read(archive.b) == LOG
    [again] = archive.mirrored().partitions
    assert (again.copied, again.bytes_copied) == (0, 0)


def test_an_old_key_is_needed_until_each_copy_has_the_new_one(archive: Encrypted) -> None:
    """What `keys rewrap --dry-run` says at each step of the manual."""
    archive.mirrored()
    copy = url_of(archive.b)
    assert f"the copy at {copy} has 3 data keys: old" in archive.dry_run().output
    archive.rotated()
    archive.rewrapped(archive.a)
    lines = archive.dry_run().output.splitlines()
    assert lines[0] == "has 3 data keys: new"
    assert lines[-1] == f"the copy at {copy} has 3 data keys: old"
    archive.mirrored()
    outcome = archive.dry_run()
    assert (outcome.exit_code, ": old" in outcome.output) == (0, False)
    assert f"the copy at {copy} has 3 data keys: new" in outcome.output
    archive.b.rename(archive.b.with_name("away"))
    lost = archive.dry_run()
    assert lost.exit_code == 1
    assert f"not known: which keys the copy at {copy} needs" in lost.output
    [note] = (archive.a / PREFIX / "mirrors").iterdir()
    assert f"mirrors/{note.name}" in lost.output
    note.unlink()
    assert archive.dry_run().exit_code == 0


def test_the_new_place_knows_the_other_copies(archive: Encrypted, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    mirror(Here(), archive.config(archive.a), url_of(backup), MirrorOptions())
    archive.mirrored(cut_over=True)
    output = archive.dry_run(archive.b).output
    assert f"the copy at {url_of(backup)} has 3 data keys: old" in output
    assert url_of(archive.b) not in output
    assert archive.deleted().is_complete
    assert objects(archive.a) == {}


def test_an_archive_that_takes_no_note_is_copied_all_the_same(archive: Encrypted) -> None:
    notes = archive.a / PREFIX / "mirrors"
    notes.mkdir()
    notes.chmod(0o500)
    try:
        assert archive.mirrored().is_complete
    finally:
        notes.chmod(0o700)
    assert archive.read(archive.b) == LOG


def test_a_note_has_no_secrets() -> None:
    url = "sqlite://user:pass@host/archive?x=a@b"
    assert without_secrets(url) == "sqlite://host/archive?x=a@b"
    for plain in ("file:///srv/archive", "s3://bucket/kafka?region=eu-central-1"):
        assert without_secrets(plain) == plain


def test_a_cut_over_takes_the_new_keys_along(archive: Encrypted) -> None:
    archive.mirrored()
    archive.rotated()
    archive.rewrapped(archive.a)
    assert archive.mirrored(cut_over=True).cut_over
    archive.without("old")
    assert archive.read(archive.b) == LOG
    assert archive.deleted().is_complete
    assert archive.read(archive.b) == LOG
    assert objects(archive.a) == {}


def test_a_cut_over_opens_each_segment_at_the_target(archive: Encrypted) -> None:
    """The copy's log has changed, which nothing else reads."""
    archive.mirrored()
    path = archive.path(archive.b, 1, SegmentFile.LOG)
    path.write_bytes(flip(40)(path.read_bytes()))
    for with_damaged in (False, True):
        outcome = archive.mirrored(cut_over=True, with_damaged=with_damaged)
        assert outcome.refused == "not everything was copied"
        assert "does not open at --to" in whats(outcome.failures)
    assert archive.read(archive.a) == LOG
    assert archive.mirrored(cut_over=True, compare=True).cut_over
    assert archive.read(archive.b) == LOG


def test_new_keys_at_the_new_place_do_not_keep_the_old_one(archive: Encrypted) -> None:
    archive.mirrored(cut_over=True)
    archive.rotated()
    archive.rewrapped(archive.b)
    assert archive.deleted().is_complete
    archive.without("old")
    assert archive.read(archive.b) == LOG


def test_nothing_is_deleted_that_the_new_place_cannot_open(archive: Encrypted) -> None:
    archive.mirrored(cut_over=True)
    before = objects(archive.a)
    locked = deleted(archive.a, archive.b)  # without the key ring
    assert not locked.is_complete
    assert "'old'" in whats(locked.failures)
    assert {k: v for k, v in objects(archive.a).items() if "-" in k} == {
        k: v for k, v in before.items() if "-" in k
    }


@pytest.mark.parametrize("file", [SegmentFile.PACKING, SegmentFile.INDEX, SegmentFile.EPOCHS])
@pytest.mark.parametrize("with_damaged", [False, True])
def test_what_is_damaged_since_the_copy_does_not_replace_it(
    archive: Encrypted, file: SegmentFile, with_damaged: bool
) -> None:
    archive.mirrored()
    before = objects(archive.b)
    archive.damage(1, file)
    [outcome] = archive.mirrored(with_damaged=with_damaged).partitions
    assert outcome.faults
    assert outcome.copied == 0
    assert objects(archive.b) == before


def test_a_wrapped_key_that_opens_nothing_does_not_replace_the_other(archive: Encrypted) -> None:
    """As an attacker would, or a rewrap by another key with the same id."""
    archive.mirrored()
    before = objects(archive.b)
    for path in (archive.path(archive.a, number, SegmentFile.PACKING) for number in range(3)):
        document = json.loads(path.read_text())
        document["key_id"] = "gone"
        path.write_text(json.dumps(document))
    [outcome] = archive.mirrored().partitions
    assert whats(outcome.faults).count("'gone'") == 3
    assert objects(archive.b) == before


def test_a_rebuilt_index_reaches_the_mirror(archive: Encrypted) -> None:
    archive.mirrored()
    archive.damage(1, SegmentFile.INDEX)
    faults = verify(Here(), archive.config(archive.a)).report.faults
    repair(Here(), archive.config(archive.a), faults)
    [outcome] = archive.mirrored().partitions
    assert (outcome.copied, outcome.faults) == (1, [])
    assert objects(archive.b).items() >= {
        (k, v) for k, v in objects(archive.a).items() if k.endswith(".index")
    }
    assert archive.read(archive.b) == LOG


def test_a_damaged_index_of_the_mirror_is_replaced(archive: Encrypted) -> None:
    archive.mirrored()
    path = archive.path(archive.b, 1, SegmentFile.INDEX)
    path.write_bytes(flip(-3)(path.read_bytes()))
    assert archive.mirrored().partitions[0].copied == 1
    assert archive.read(archive.b) == LOG


def test_changed_metadata_of_an_encrypted_segment_are_not_taken_over(archive: Encrypted) -> None:
    archive.mirrored()
    before = objects(archive.b)
    path = archive.path(archive.a, 1, SegmentFile.METADATA)
    document = json.loads(path.read_text())
    document["max_timestamp_ms"] += 1
    path.write_text(json.dumps(document))
    [outcome] = archive.mirrored().partitions
    assert "max_timestamp_ms" in whats(outcome.faults)
    assert objects(archive.b) == before


def test_without_keys_no_encrypted_segment_is_taken_over(archive: Encrypted) -> None:
    archive.mirrored()
    before = objects(archive.b)
    archive.rotated()
    archive.rewrapped(archive.a)
    [outcome] = mirrored(archive.a, archive.b).partitions
    assert whats(outcome.faults).count("'new'") == 3
    assert objects(archive.b) == before


def test_a_segment_that_anybody_may_have_put_there_is_named_and_stays_one(
    archive: Encrypted,
) -> None:
    archive.mirrored()
    archive.written.at_rest = NO_ENCRYPTION
    forged = archive.written.add([batch(60), batch(70)])
    with capture_logs() as logged:
        [outcome] = archive.mirrored().partitions
    assert not outcome.faults
    named = [one["object_key"] for one in logged if one["event"] == "segment_not_encrypted"]
    log = archive.written.path(forged, SegmentFile.LOG)
    assert {Path(name).name for name in named} == {log.name}
    assert objects(archive.b) == objects(archive.a)
    report = verify(Here(), archive.config(archive.b)).report
    assert [Path(name).name for name in report.not_encrypted] == [log.name]
