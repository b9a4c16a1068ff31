"""Cache files torn at every byte, and writers killed at every step."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from segment_values import DELETED, DELETING, STARTED, TP, segment

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata import flat_files as cache_file
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.flat_files import HEADER, CachedEntries, CacheFile
from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.json_fields import NewerMetadataVersion
from fetchproxy.segments.records import MetadataEvent, encode_cache_entry

FIRST = [segment(1, 0, 9, STARTED)]
SECOND = [segment(1, 0, 9), segment(2, 10, 19, STARTED)]
THIRD = [segment(2, 10, 19), segment(1, 0, 9, DELETING), segment(1, 0, 9, DELETED)]


def known(cached: CachedEntries) -> list[MetadataEvent]:
    return list(PartitionTable.load(TP, cached.entries).segments())


def file_at(directory: Path) -> CacheFile:
    return CacheFile(directory / "orders" / "cache", TP)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders" / "cache"


@pytest.fixture
def written(tmp_path: Path) -> CacheFile:
    """Three appends, up to metadata topic offsets 100, 200 and 300."""
    file = file_at(tmp_path)
    assert file.load() == CachedEntries(b"", 0, damaged=False)
    file.append(FIRST, 100)
    file.append(SECOND, 200)
    file.append(THIRD, 300)
    return file


def test_golden_bytes(path: Path, tmp_path: Path) -> None:
    file = file_at(tmp_path)
    file.load()
    file.append(FIRST, 258)
    raw = path.read_bytes()
    assert raw[:30] == bytes.fromhex(
        "0001"  # magic
        "0102030405060708090a0b0c0d0e0f10"  # topic-id
        "00000003"  # partition
        "0000000000000102"  # metadata-topic-offset
    )
    entry = encode_cache_entry(FIRST[0])
    assert raw[30 : 30 + len(entry)] == entry
    assert raw[30 + len(entry) :][:11] == bytes.fromhex("0e 03 00 0000000000000102")
    assert len(raw) == 30 + len(entry) + 15


def test_what_was_appended_is_there(written: CacheFile, tmp_path: Path) -> None:
    for file in (written, file_at(tmp_path)):
        cached = file.load()
        assert known(cached) == [segment(2, 10, 19)]
        assert (cached.metadata_topic_offset, cached.damaged) == (300, False)
    written.sync()


def test_a_tail_torn_at_any_byte(
    written: CacheFile, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last whole checkpoint tells where to read on; nothing else is lost."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # to save time
    raw = path.read_bytes()
    ends = {len(encode_up_to(n)): n for n in (1, 2, 3)}
    expected = {
        0: (0, []),
        1: (100, FIRST),
        2: (200, SECOND),
        3: (300, [segment(2, 10, 19)]),
    }
    assert max(ends) == len(raw)
    for end in range(len(raw) + 1):
        path.write_bytes(raw[:end])
        appends = max((n for size, n in ends.items() if size <= end), default=0)
        file = file_at(tmp_path)
        cached = file.load()
        assert (cached.metadata_topic_offset, known(cached)) == expected[appends]
        assert cached.damaged == (end not in ends)
        assert path.stat().st_size == end  # it stays damaged until the missing events are appended
        assert file_at(tmp_path).load() == cached
        lacking = [event for n in range(appends, 3) for event in (FIRST, SECOND, THIRD)[n]]
        file.append(lacking, 301)
        again = file_at(tmp_path).load()
        assert known(again) == [segment(2, 10, 19)]
        assert (again.metadata_topic_offset, again.damaged) == (301, False)


def encode_up_to(appends: int) -> bytes:
    """Zero-filled content with the size of a file after this many appends."""
    events = [event for n in range(appends) for event in (FIRST, SECOND, THIRD)[n]]
    return bytes(HEADER.size + 15 * appends) + b"".join(map(encode_cache_entry, events))


def test_a_changed_byte_anywhere_is_noticed(written: CacheFile, tmp_path: Path, path: Path) -> None:
    raw = path.read_bytes()
    ends = [len(encode_up_to(n)) for n in range(4)]
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])
        cached = file_at(tmp_path).load()
        good = 0 if at < HEADER.size else sum(end <= at for end in ends[1:])
        assert cached.damaged
        assert cached.metadata_topic_offset == good * 100


def test_a_page_of_zeros_after_a_power_failure(
    written: CacheFile, tmp_path: Path, path: Path
) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw + bytes(4096))
    assert file_at(tmp_path).load() == CachedEntries(written.load().entries, 300, damaged=True)
    path.write_bytes(b"")
    assert file_at(tmp_path).load() == CachedEntries(b"", 0, damaged=True)
    path.write_bytes(bytes(4096))
    assert file_at(tmp_path).load() == CachedEntries(b"", 0, damaged=True)


class Killed(BaseException):
    """A BaseException, so the code under test does not catch it."""


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kill the process at the `step`th disk call, before it or in the middle of it."""
    done: list[str] = []

    def dying(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if len(done) == step:
                if name == "write":
                    descriptor, content = arguments
                    assert isinstance(content, memoryview)
                    real(descriptor, content[: len(content) // 2])
                raise Killed(name)
            done.append(name)
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", dying("write", os.write))
        patched.setattr(os, "fsync", dying("fsync", os.fsync))
        patched.setattr(Path, "replace", dying("replace", Path.replace))
        patched.setattr(Path, "open", dying("open", Path.open))
        patched.setattr(Path, "mkdir", dying("mkdir", Path.mkdir))
        yield done


def test_killed_at_each_step_of_a_compaction(
    written: CacheFile, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    steps_taken = []
    for step in range(20):
        path.write_bytes(before)
        written.load()
        with killed_at(step, monkeypatch) as done:
            try:
                written.compact()
            except Killed as at:
                steps_taken.append(str(at))
            else:
                break
        cached = file_at(tmp_path).load()
        assert known(cached) == [segment(2, 10, 19)]
        assert (cached.metadata_topic_offset, cached.damaged) == (300, False)
        assert path.read_bytes() == before or "replace" in done
    assert steps_taken == ["open", "mkdir", "open", "write", "fsync", "replace", "fsync"]
    assert len(path.read_bytes()) < len(before)
    assert known(file_at(tmp_path).load()) == [segment(2, 10, 19)]
    written.append([segment(3, 20, 29, STARTED)], 400)
    assert known(file_at(tmp_path).load()) == [segment(2, 10, 19), segment(3, 20, 29, STARTED)]


def test_killed_at_each_step_of_an_append(
    written: CacheFile, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    more = [segment(3, 20, 29, STARTED)]
    for step in range(20):
        path.write_bytes(before)
        written.load()
        with killed_at(step, monkeypatch) as steps_taken:
            try:
                written.append(more, 400)
            except Killed:
                pass
            else:
                break
        cached = file_at(tmp_path).load()
        assert (known(cached), cached.metadata_topic_offset) == ([segment(2, 10, 19)], 300)
    assert steps_taken == ["open", "write"]


def test_a_full_disk_and_then_room_again(
    written: CacheFile, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [segment(3, 20, 29, STARTED)]

    def full(descriptor: int, content: memoryview) -> int:
        os.pwrite(descriptor, content[:40], os.lseek(descriptor, 0, os.SEEK_CUR))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            written.append(more * 3, 400)
    written.append(more, 500)
    cached = file_at(tmp_path).load()
    assert (cached.metadata_topic_offset, cached.damaged) == (500, False)
    assert known(cached) == [segment(2, 10, 19), *more]


def test_a_disk_that_lost_something_is_noticed_by_a_compaction(
    written: CacheFile, tmp_path: Path, path: Path
) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:40] + b"!" + raw[41:])
    with pytest.raises(CorruptSegment, match=f"{len(raw)} bytes were written, 0 are good"):
        written.compact()
    written.append([segment(3, 20, 29, STARTED)], 400)
    assert file_at(tmp_path).load() == CachedEntries(b"", 0, damaged=True)


def test_a_damaged_file_is_not_compacted(written: CacheFile, tmp_path: Path, path: Path) -> None:
    torn = path.read_bytes()[:-1]
    path.write_bytes(torn)
    file = file_at(tmp_path)
    file.load()
    file.compact()
    assert path.read_bytes() == torn
    assert not file.wants_compaction


def test_it_is_compacted_when_half_of_it_is_old(tmp_path: Path, path: Path) -> None:
    file = file_at(tmp_path)
    file.load()
    sizes = []
    for number in range(1, 1000):
        file.append([segment(number, number, number, STARTED), segment(number, number, number)], 9)
        assert (
            path.stat().st_size
            <= 2 * max(cache_file.APPENDED_BYTES_MIN, file_size_at_last(sizes)) + 300
        )
        if file.wants_compaction:
            file.compact()
            sizes.append(path.stat().st_size)
            assert not file.wants_compaction
    assert len(sizes) < 12
    assert len(known(file_at(tmp_path).load())) == 999


def file_size_at_last(sizes: list[int]) -> int:
    return sizes[-1] if sizes else 0


def test_to_be_loaded_first(tmp_path: Path) -> None:
    for use in (lambda f: f.append(FIRST, 1), CacheFile.compact):
        with pytest.raises(ValueError, match="to be loaded first"):
            use(file_at(tmp_path))


def test_another_magic_and_another_topic(written: CacheFile, tmp_path: Path, path: Path) -> None:
    other = TopicIdPartition(UUID(int=9), "orders", 3)
    for tp in (other, TP._replace(partition=TP.partition + 1)):
        assert CacheFile(path, tp).load() == CachedEntries(b"", 0, damaged=True)
    good = path.read_bytes()
    older = b"\x00\x00" + good[2:-15]
    path.write_bytes(older + cache_file._checkpoint(300, cache_file.crc32c(older)))
    assert file_at(tmp_path).load() == CachedEntries(b"", 0, damaged=True)
    newer = b"\x00\x02" + good[2:-15]
    path.write_bytes(newer + cache_file._checkpoint(300, cache_file.crc32c(newer)))
    with pytest.raises(NewerMetadataVersion, match="magic 2, known are those up to 1"):
        file_at(tmp_path).load()


WRITER = """
import sys
from pathlib import Path
from fetchproxy.metadata.flat_files import CacheFile
from tests.metadata.segment_values import STARTED, TP, segment
file = CacheFile(Path(sys.argv[1]), TP)
file.load()
print("writing", flush=True)
for n in range(1, 10**9):
    file.append([segment(n, n * 10, n * 10 + 9, STARTED), segment(n, n * 10, n * 10 + 9)], n)
    if n % 7 == 0:
        file.compact()
"""


def test_killed_at_random(tmp_path: Path, path: Path) -> None:
    source = random.Random(5)
    for _ in range(6):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        with writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            while not file_at(tmp_path).load().metadata_topic_offset:
                time.sleep(0.01)
            time.sleep(source.uniform(0.0, 0.3))
            writer.kill()
        cached = file_at(tmp_path).load()
        assert cached.metadata_topic_offset > 0
        expected = range(1, cached.metadata_topic_offset + 1)
        assert known(cached) == [segment(n, n * 10, n * 10 + 9) for n in expected]
