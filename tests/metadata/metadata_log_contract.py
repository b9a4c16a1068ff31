"""The contract of every MetadataLog. A subclass has a fixture `metadata_log`, opened and empty."""

from __future__ import annotations

import asyncio

from fetchproxy.metadata.metadata_topic import KafkaMetadataLog as MetadataLog


async def read_all(metadata_log: MetadataLog, partition: int, from_offset: int = 0) -> list[bytes]:
    """Read up to the present end."""
    _, end = await metadata_log.bounds(partition)
    values_read: list[bytes] = []
    position = from_offset
    while position < end:
        chunk = await metadata_log.read(partition, position)
        assert [offset for offset, _ in chunk.values] == sorted({o for o, _ in chunk.values})
        assert all(position <= offset < chunk.next_offset for offset, _ in chunk.values)
        values_read += [value for _, value in chunk.values]
        position = chunk.next_offset
    return values_read


class MetadataLogContract:
    async def test_an_empty_log_says_where_it_would_begin(self, metadata_log: MetadataLog) -> None:
        assert await metadata_log.bounds(0) == (0, 0)
        assert (await metadata_log.read(0, 0)).values == ()

    async def test_opened_again_it_is_the_same(self, metadata_log: MetadataLog) -> None:
        first = await metadata_log.open()
        await metadata_log.append(1, b"kept")
        assert await metadata_log.open() == first
        assert await read_all(metadata_log, 1) == [b"kept"]

    async def test_what_was_appended_is_read_in_its_order(self, metadata_log: MetadataLog) -> None:
        values = [b"", b"a", b"\x00" * 3000, b"a", "ä".encode()]
        offsets = [await metadata_log.append(1, value) for value in values]
        assert offsets == [0, 1, 2, 3, 4]
        assert await metadata_log.bounds(1) == (0, 5)
        assert await read_all(metadata_log, 1) == values
        assert await read_all(metadata_log, 1, from_offset=3) == values[3:]

    async def test_partitions_are_apart(self, metadata_log: MetadataLog) -> None:
        await metadata_log.append(0, b"zero")
        await metadata_log.append(2, b"two")
        assert await read_all(metadata_log, 0) == [b"zero"]
        assert await read_all(metadata_log, 1) == []
        assert await read_all(metadata_log, 2) == [b"two"]

    async def test_writers_at_the_same_time_lose_nothing(self, metadata_log: MetadataLog) -> None:
        values = [f"value {n}".encode() for n in range(20)]
        async with asyncio.TaskGroup() as writers:
            tasks = [writers.create_task(metadata_log.append(0, value)) for value in values]
        by_offset = dict(zip([task.result() for task in tasks], values, strict=True))
        assert await read_all(metadata_log, 0) == [by_offset[n] for n in range(20)]
