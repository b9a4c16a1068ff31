"""A check of the demo that cannot fail would prove nothing: each fault is found and named.

And the outage of its store is a real one, whose end gives everything back.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from demo import records
from demo.archive_store import FolderStore
from demo.checks import CheckFailed, ReadCheck, require
from fetchproxy.errors import StorageUnavailable
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


def take(check: ReadCheck, partition: int, offset: int) -> None:
    check.take(partition, offset, records.key(partition, offset), records.value(partition, offset))


@pytest.fixture
def check() -> ReadCheck:
    """One that has seen offsets 10 and 11 of partition 0 and nothing of partition 1."""
    check = ReadCheck("a reader", {0: 10, 1: 0})
    take(check, 0, 10)
    take(check, 0, 11)
    return check


@pytest.mark.parametrize(
    ("offset", "message"),
    [(13, "offset 12 expected, 13 came"), (11, "12 expected, 11 came"), (0, "12 expected, 0 came")],
    ids=["skipped", "twice", "from the start again"],
)
def test_offsets_come_once_and_in_order(check: ReadCheck, offset: int, message: str) -> None:
    with pytest.raises(CheckFailed, match=message) as failed:
        take(check, 0, offset)
    assert failed.value.check == "a reader gets every record once and in order"


def test_a_wrong_key_is_found(check: ReadCheck) -> None:
    with pytest.raises(CheckFailed, match="offset 12 has key"):
        check.take(0, 12, records.key(1, 12), records.value(0, 12))


@pytest.mark.parametrize("wrong", [None, b"", records.value(0, 13), records.value(1, 12)])
def test_a_wrong_value_is_found(check: ReadCheck, wrong: bytes | None) -> None:
    with pytest.raises(CheckFailed, match="offset 12 has a value"):
        check.take(0, 12, records.key(0, 12), wrong)


def test_a_reader_has_finished_with_the_last_record_of_each_partition() -> None:
    end = records.RECORDS_PER_PARTITION
    check = ReadCheck("a reader", {0: end - 2, 1: end - 1})
    assert check.records_expected == 3
    take(check, 0, end - 2)
    take(check, 0, end - 1)
    assert not check.finished
    take(check, 1, end - 1)
    assert check.finished
    assert check.bytes == sum(
        len(records.key(p, n)) + len(records.value(p, n))
        for p, n in [(0, end - 2), (0, end - 1), (1, end - 1)]
    )


def test_require() -> None:
    require(True, "claim", "nothing")
    with pytest.raises(CheckFailed, match="claim: what was seen"):
        require(False, "claim", "what was seen")


def test_records_differ_and_are_large_enough_to_be_forgotten() -> None:
    assert records.RECORDS >= 200_000
    size = 0
    for partition in range(records.PARTITIONS):
        for n in range(0, records.RECORDS_PER_PARTITION, 97):
            value = records.value(partition, n)
            assert value == records.value(partition, n)
            assert 80 <= len(value) <= 420
            assert value != records.value(partition, n + 1)
            size += len(value)
    # The mock cluster keeps 5 MiB per partition; more than half has to be forgotten.
    assert 97 * size / records.PARTITIONS > 2 * 5 * 1024 * 1024


async def test_a_folder_goes_away_and_comes_back(tmp_path: Path) -> None:
    with FolderStore(tmp_path) as store:
        root = Path(store.url.removeprefix("file://"))
        async with FilesystemObjectStore(root, create=False) as objects:
            await objects.put("topic/0/object", b"content")
            store.take_away()
            with pytest.raises(StorageUnavailable):
                await objects.get("topic/0/object")
            store.bring_back()
            assert await objects.get("topic/0/object") == b"content"
