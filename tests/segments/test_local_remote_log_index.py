"""A local index answers as a search through all entries: appended, rolled, cut, torn, killed."""

from __future__ import annotations

import errno
import os
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from local_index_model import (
    AGE_MS,
    MadeSegment,
    bring_up,
    check_responses,
    files_in,
    held_segments,
    make_log,
    make_segment,
    open_index,
)

from fetchproxy.errors import CorruptSegment
from fetchproxy.observability.metrics import LOCAL_INDEX_REBUILDS
from fetchproxy.storage.index_files import (
    LOG_INDEX,
    OFFSET_INDEX,
    SUFFIXES,
    TIME_INDEX,
    LocalIndexFiles,
    LocalRemoteLogIndex,
)


def bases(folder: Path) -> list[int]:
    return [int(path.name[:20]) for path in sorted(folder.glob(f"*.{LOG_INDEX}"))]


# A life is made of a seed, which cannot be shrunk.
@settings(max_examples=25, phases=[Phase.generate])
@given(st.integers(0, 2**32), st.lists(st.sampled_from("aaacdrxo"), max_size=10))
def test_any_life_of_an_index_answers_as_the_naive_model(seed: int, steps: list[str]) -> None:
    with TemporaryDirectory() as root:
        life = Life(Random(seed), Path(root) / "weather" / "0")
        for step in steps:
            life.do(step)
        life.index.close()


class Life:
    """`log`: the archive; `passed`: what is below its start, and perhaps in a file still."""

    def __init__(self, rng: Random, folder: Path) -> None:
        self.rng = rng
        self.folder = folder
        self.log = make_log(rng, rng.randint(0, 6))
        self.passed: list[MadeSegment] = []
        self.number = 100
        self.damaged = False
        self.index = open_index(folder)
        bring_up(self.index, self.log)

    @property
    def end(self) -> int:
        return self.log[-1].last_offset + 1 if self.log else self.rng.randint(0, 50)

    def do(self, step: str) -> None:
        """a: archive more; c: cut; d: delete from the start; r: restart; x: damage; o: overlap."""
        self.number += 5
        if step == "a":
            self.log += make_log(self.rng, self.rng.randint(1, 4), self.number, self.end)
        elif step == "c" and self.log:
            self.log = self.log[: self.rng.randint(0, len(self.log))]
            self.log += make_log(self.rng, 1, self.number, self.end)
        elif step == "d":
            count = self.rng.randint(0, len(self.log))
            self.passed += self.log[:count]
            self.log = self.log[count:]
        elif step in "rx":
            self.index.close()
            if step == "x" and self.folder.is_dir():
                damage(self.rng, self.rng.choice(sorted(self.folder.iterdir())))
                self.damaged = True
            self.index = open_index(self.folder)
        elif step == "o" and self.log:
            self.overlap()
        bring_up(self.index, self.log)
        while self.damaged and self.finds_damage():
            bring_up(self.index, self.log)
        self.look()

    def overlap(self) -> None:
        """Of two segments that share offsets both can be had whole, each in a set of its own."""
        start = self.log[-1].segment.start_offset + len(self.log[-1].entries)
        if start > self.log[-1].last_offset:
            return
        log = [*self.log, make_segment(self.rng, start, self.number, entries=9)]
        bring_up(self.index, log)
        if not self.damaged:
            check_responses(self.index, log)
            assert start in bases(self.folder)

    def finds_damage(self) -> bool:
        """Every answer is right, or it is said that something is damaged: then all is made anew.

        What is below the start may be damaged, and nobody will find out.
        """
        try:
            check_responses(self.index, self.log)
        except (CorruptSegment, AssertionError) as error:
            if isinstance(error, AssertionError) and not self.passed:
                raise
            for made in [*self.passed, *self.log]:
                self.index.drop_from(made.segment)
            self.passed = []
            return True
        return False

    def look(self) -> None:
        log, index = self.log, self.index
        assert self.folder.is_dir() == bool(log), "no files are left of what is gone"
        rolls = bases(self.folder) if log else [0]
        # A set goes when the log start has passed all of it, and only then.
        assert len(rolls) < 2 or log[0].segment.start_offset < rolls[1]
        if not log or rolls[0] == log[0].segment.start_offset:
            self.passed = []
        self.passed = [made for made in self.passed if made.segment.start_offset >= rolls[0]]
        if not self.damaged:
            check_responses(index, [*self.passed, *log])


def damage(rng: Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    fate = rng.random()
    if fate < 0.2:
        path.unlink()
        return
    if fate < 0.6:
        del content[rng.randrange(len(content) + 1) :]
    else:
        content[rng.randrange(len(content))] ^= 1 + rng.randrange(255)
    path.write_bytes(content)


def test_the_files_have_the_names_and_the_bytes_of_the_kip(tmp_path: Path) -> None:
    first = make_segment(Random(1), 100, 1, entries=4)
    second = make_segment(Random(2), first.last_offset + 1, 2, entries=3)
    index = open_index(tmp_path)
    bring_up(index, [first, second])
    stem = "00000000000000000100"
    files = files_in(tmp_path)
    assert set(files) == {f"{stem}.{suffix}" for suffix in SUFFIXES}
    assert files[f"{stem}.{LOG_INDEX}"] == first.raw + second.raw
    entries = [*first.entries, *second.entries]
    positions = [sum(e.size_bytes for e in entries[:i]) for i in range(len(entries))]
    assert files[f"{stem}.{OFFSET_INDEX}"] == b"".join(
        struct.pack(">ii", entry.span.first_offset - 100, at)
        for entry, at in zip(entries, positions, strict=True)
    )
    rising, latest = b"", -2
    for entry in entries:
        if entry.span.max_timestamp_ms > latest:
            latest = entry.span.max_timestamp_ms
            rising += struct.pack(">qi", latest, entry.span.first_offset - 100)
    assert files[f"{stem}.{TIME_INDEX}"] == rising


def test_a_set_is_rolled_by_size(tmp_path: Path) -> None:
    rng, log = Random(3), list[MadeSegment]()
    for number in range(8):
        start = log[-1].last_offset + 1 if log else 0
        log.append(make_segment(rng, start, number, entries=5))
    index = open_index(tmp_path, file_bytes_max=2 * len(log[0].raw) + 60)
    bring_up(index, log)
    assert bases(tmp_path) == [log[n].segment.start_offset for n in (0, 2, 4, 6)]
    check_responses(index, log)


def test_a_set_is_rolled_by_the_time_between_copies_also_after_a_restart(tmp_path: Path) -> None:
    rng, log = Random(4), list[MadeSegment]()
    for number, copied_at_ms in enumerate((1_000, 1_000 + AGE_MS, 1_001 + AGE_MS, 1_500 + AGE_MS)):
        start = log[-1].last_offset + 1 if log else 0
        log.append(make_segment(rng, start, number, copied_at_ms=copied_at_ms))
    index = open_index(tmp_path, file_bytes_max=2**20)
    for count in range(1, 5):
        bring_up(index, log[:count])
        index.close()
        index = open_index(tmp_path, file_bytes_max=2**20)
    assert bases(tmp_path) == [log[n].segment.start_offset for n in (0, 2)]


def test_a_set_is_rolled_where_offsets_outgrow_their_int32(tmp_path: Path) -> None:
    log = [make_segment(Random(5), start, n) for n, start in enumerate((0, 2**31 - 2**10, 2**31))]
    index = open_index(tmp_path, file_bytes_max=2**20)
    bring_up(index, log)
    assert bases(tmp_path) == [0, 2**31]
    check_responses(index, log)


def test_a_segment_that_spans_more_than_the_tables_can_say_is_refused(tmp_path: Path) -> None:
    made = make_segment(Random(6), 2**32, 0)
    far = replace(made.segment, start_offset=0)  # a hole of 2**32 offsets in front
    index = open_index(tmp_path)
    with pytest.raises(ValueError, match="offsets"):
        index.append(far, made.raw)
    assert index.keep([far]) == 0
    assert held_segments(index, [made]) == []


def test_deletion_from_the_start_removes_whole_sets_only(tmp_path: Path) -> None:
    log = make_log(Random(7), 30)
    index = open_index(tmp_path)
    bring_up(index, log)
    before = bases(tmp_path)
    assert len(before) > 3
    starts = [made.segment.start_offset for made in log]
    second = starts.index(before[1])
    assert index.keep([made.segment for made in log[second - 1 :]]) == len(log) - second + 1
    assert bases(tmp_path) == before
    assert index.keep([made.segment for made in log[second:]]) == len(log) - second
    assert bases(tmp_path) == before[1:]
    check_responses(index, log[second:])
    assert index.keep([]) == 0
    assert not tmp_path.exists()


def test_only_the_index_of_the_segment_is_taken(tmp_path: Path) -> None:
    log = make_log(Random(8), 2)
    index = open_index(tmp_path / "0")
    first = log[0].segment
    with pytest.raises(CorruptSegment, match="not of"):
        index.append(first, log[1].raw)
    with pytest.raises(CorruptSegment, match="not of"):
        index.append(replace(first, segment_size_bytes=first.segment_size_bytes + 1), log[0].raw)
    with pytest.raises(CorruptSegment, match="entry 0 at byte 0"):
        index.append(first, log[0].raw[:-1][:20])
    assert not (tmp_path / "0").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_append_torn_at_any_byte_is_made_anew_at_the_start(tmp_path: Path, suffix: str) -> None:
    """The later files of the set, in the order they are written, have not got their part yet."""
    log = make_log(Random(9), 3)
    log.append(make_segment(Random(9), log[-1].last_offset + 1, 9, entries=2))
    folder, work = tmp_path / "whole", tmp_path / "torn"
    states: list[dict[str, bytes]] = []
    index = open_index(folder, file_bytes_max=2**20)
    for count in (3, 4):
        bring_up(index, log[:count])
        states.append(files_in(folder))
    before, after = states
    [torn] = [name for name in after if name.endswith(suffix)]
    for size in range(len(before[torn]), len(after[torn]) + 1):
        work.mkdir()
        for name, content in after.items():
            written = SUFFIXES.index(name.rpartition(".")[2]) > SUFFIXES.index(suffix)
            (work / name).write_bytes(content if written else before[name])
        (work / torn).write_bytes(after[torn][:size])
        whole = files_in(work)
        fetched = {True: 0, False: 1 if whole == before else len(log)}[whole == after]
        assert bring_up(open_index(work, file_bytes_max=2**20), log) == fetched
        assert files_in(work) == after
        rmtree(work)


STEPS: dict[str, Callable[[LocalRemoteLogIndex, list[MadeSegment]], None]] = {
    "append": lambda index, log: (bring_up(index, log), None)[1],
    "roll": lambda index, log: (bring_up(index, log), None)[1],
    "delete": lambda index, log: (index.keep([made.segment for made in log]), None)[1],
    "cut": lambda index, log: (index.keep([made.segment for made in log]), None)[1],
    "damage": lambda index, log: (index.keep([made.segment for made in log]), None)[1],
}


@pytest.mark.parametrize("what", STEPS)
def test_a_kill_at_any_file_operation_leaves_nothing_wrong(tmp_path: Path, what: str) -> None:
    """A child process is killed at its first, second … file operation, until it gets through."""
    full = make_log(Random(10), 24)
    base = tmp_path / "base"
    index = open_index(base)
    bring_up(index, full[:20])
    rolls = bases(base)
    starts = [made.segment.start_offset for made in full]
    index.close()
    log = {
        "append": full[:21],
        "roll": full,
        "delete": full[starts.index(rolls[2]) : 20],
        "cut": full[: starts.index(rolls[-2]) + 1],
        "damage": full[:20],
    }[what]
    if what == "damage":
        newest = sorted(base.glob(f"*.{LOG_INDEX}"))[-1]
        newest.write_bytes(newest.read_bytes()[:-3])
        sorted(base.glob(f"*.{TIME_INDEX}"))[0].unlink()
    operations = 0
    while True:
        work = tmp_path / f"{what}-{operations}"
        copytree(base, work)
        killed = killed_at(operations, work, lambda index: STEPS[what](index, log))
        recovered = open_index(work)
        bring_up(recovered, log)
        check_responses(recovered, log)
        rmtree(work)
        if not killed:
            break
        operations += 1
    assert operations >= {"append": 4, "roll": 10, "delete": 4, "cut": 4, "damage": 4}[what]


def killed_at(operation: int, folder: Path, work: Callable[[LocalRemoteLogIndex], None]) -> bool:
    """Whether `work`, in a process of its own, came to that many operations; then it was killed."""
    child = os.fork()
    if child == 0:
        done = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal done
            writes = event in ("os.remove", "os.rename", "os.truncate", "os.mkdir", "os.rmdir")
            opens = event == "open" and str(folder) in str(arguments[0])
            if writes or (opens and arguments[1] != "rb"):
                if done == operation:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

        try:
            sys.addaudithook(hook)
            work(open_index(folder))
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def test_a_failed_append_leaves_what_was_there(tmp_path: Path) -> None:
    log = make_log(Random(11), 3)
    index = open_index(tmp_path, file_bytes_max=2**20)
    bring_up(index, log[:2])
    [times] = tmp_path.glob(f"*.{TIME_INDEX}")
    times.chmod(0o400)
    content = times.read_bytes()
    times.unlink()
    times.mkdir()  # as root, too, nobody can write to a folder
    with pytest.raises(OSError, match=r"director|damaged"):
        index.append(log[2].segment, log[2].raw)
    times.rmdir()
    times.write_bytes(content)
    assert bring_up(index, log) == 1
    check_responses(index, log)


def test_a_disk_that_fills_up_costs_one_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(Random(15), 3)
    index = open_index(tmp_path, file_bytes_max=2**20)
    bring_up(index, log[:2])
    before = files_in(tmp_path)
    write_end = LocalIndexFiles._write_end

    def full(files: LocalIndexFiles, suffix: str, content: bytes) -> None:
        if suffix == LOG_INDEX:
            write_end(files, suffix, content[:7])
            raise OSError(errno.ENOSPC, "no space left on device")
        write_end(files, suffix, content)

    with monkeypatch.context() as patch:
        patch.setattr(LocalIndexFiles, "_write_end", full)
        with pytest.raises(OSError, match="no space"):
            bring_up(index, log)
    assert files_in(tmp_path) == before
    assert bring_up(index, log) == 1
    check_responses(index, log)


def test_damage_is_found_by_the_reader_and_dropped(tmp_path: Path) -> None:
    log = make_log(Random(12), 20)
    index = open_index(tmp_path)
    bring_up(index, log)
    oldest = sorted(tmp_path.glob(f"*.{LOG_INDEX}"))[0]
    content = bytearray(oldest.read_bytes())
    content[len(log[0].raw) + 60] ^= 1  # in the second segment
    oldest.write_bytes(content)
    with pytest.raises(CorruptSegment, match="checksum"):
        index.segment_index(log[1].segment)
    before, losses = LOCAL_INDEX_REBUILDS._value.get(), index.losses
    index.drop_from(log[1].segment)
    assert index.losses == losses + 1
    assert LOCAL_INDEX_REBUILDS._value.get() == before + 1
    assert held_segments(index, log) == []
    assert bring_up(index, log) == 20
    check_responses(index, log)


def test_a_missing_set_in_the_middle_is_fetched_again(tmp_path: Path) -> None:
    log = make_log(Random(13), 20)
    index = open_index(tmp_path)
    bring_up(index, log)
    index.close()
    middle = bases(tmp_path)[1]
    (tmp_path / f"{middle:020d}.{LOG_INDEX}").unlink()
    index = open_index(tmp_path)
    first = [made.segment.start_offset for made in log].index(middle)
    assert bring_up(index, log) == len(log) - first
    check_responses(index, log)


def test_nothing_is_touched_once_it_is_closed(tmp_path: Path) -> None:
    log = make_log(Random(14), 2)
    index = open_index(tmp_path)
    bring_up(index, log)
    before = files_in(tmp_path)
    index.close()
    unknown = make_segment(Random(15), 0, 99).segment
    for call in (
        lambda: index.keep([]),
        lambda: index.append(log[0].segment, log[0].raw),
        lambda: index.segment_index(unknown),
        lambda: index.drop_from(unknown),
    ):
        with pytest.raises(OSError, match="closed"):
            call()
    assert files_in(tmp_path) == before
