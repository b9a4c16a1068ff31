"""Commits are in the file when they are acknowledged, or they are not acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from fetchproxy.errors import ConfigError
from fetchproxy.serving.archive_only.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    OffsetKey,
    OffsetsFull,
)
from fetchproxy.serving.archive_only.groups import GroupMemory

MiB = 1 << 20


def key(number: int, group: str = "g") -> OffsetKey:
    return OffsetKey(group, "orders", number)


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(UUID(int=1), offset, 3, "näher")


async def test_what_was_acknowledged_is_there_after_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    async with CommittedOffsets(file, 100, GroupMemory(MiB)) as offsets:
        await offsets.commit({key(0): at(5), key(1): at(6)})
        await offsets.commit({key(0): at(7), key(1): None})
        # Nobody closes the first one before the second reads: as after a kill.
        async with CommittedOffsets(file, 100, GroupMemory(MiB)) as again:
            assert again.get("g", "orders", 0) == at(7)
            assert again.get("g", "orders", 1) is None
            assert again.groups() == {"g"}
    assert [path.name for path in tmp_path.iterdir()] == ["offsets.json"]
    assert file.stat().st_mode & 0o777 == 0o600


async def test_many_at_once_share_writings_and_all_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    async with (
        CommittedOffsets(file, 1000, GroupMemory(MiB)) as offsets,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(300):
            tasks.create_task(offsets.commit({key(number): at(number)}))
        gone = tasks.create_task(offsets.commit({key(999): at(1)}))
        await asyncio.sleep(0)
        gone.cancel()
    async with CommittedOffsets(file, 1000, GroupMemory(MiB)) as again:
        assert all(again.get("g", "orders", n) == at(n) for n in range(300))


async def test_who_writes_for_the_others_may_go(tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    async with (
        CommittedOffsets(file, 1000, GroupMemory(MiB)) as offsets,
        asyncio.TaskGroup() as tasks,
    ):
        first = tasks.create_task(offsets.commit({key(1): at(1)}))
        second = tasks.create_task(offsets.commit({key(2): at(2)}))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert offsets.get("g", "orders", 2) == at(2)


async def test_a_disk_that_refuses_fails_the_commit_and_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    async with CommittedOffsets(folder / "offsets.json", 100, GroupMemory(MiB)) as offsets:
        await offsets.commit({key(0): at(1)})
        folder.rename(tmp_path / "away")
        with pytest.raises(OSError, match="offsets"):
            await offsets.commit({key(0): at(2)})
        assert offsets.get("g", "orders", 0) == at(1)
        (tmp_path / "away").rename(folder)
        await offsets.commit({key(0): at(3)})
        assert offsets.get("g", "orders", 0) == at(3)


async def test_the_limit_holds_and_known_offsets_still_move() -> None:
    async with CommittedOffsets(None, 2, GroupMemory(MiB)) as offsets:
        await offsets.commit({key(0): at(1), key(1): at(1)})
        with pytest.raises(OffsetsFull):
            await offsets.commit({key(2): at(1)})
        await offsets.commit({key(0): at(2)})
        assert [k.partition for k, _ in offsets.of_group("g")] == [0, 1]
        # Written together with one that is refused: that one alone is.
        async with asyncio.TaskGroup() as tasks:
            moved = tasks.create_task(offsets.commit({key(1): at(9)}))
            refused = tasks.create_task(refusal(offsets, {key(7): at(1), key(8): at(1)}))
        assert moved.done()
        assert refused.result()
        assert offsets.get("g", "orders", 1) == at(9)
        assert offsets.get("g", "orders", 7) is None


async def refusal(offsets: CommittedOffsets, changes: dict[OffsetKey, CommittedOffset]) -> bool:
    try:
        await offsets.commit(changes)
    except OffsetsFull:
        return True
    return False


@pytest.mark.parametrize("content", ["", "{}", '{"format": 9}', '{"format": 1, "offsets": [[1]]}'])
async def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, content: str) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"offsets\.json"):
        async with CommittedOffsets(file, 2, GroupMemory(MiB)):
            pass
    assert file.read_text() == content
