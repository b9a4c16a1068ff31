"""What a stream sees of an archive that grows, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from made_batches import Record, made_batch
from written_archive import TP, WrittenArchive

from fetchproxy.errors import ConfigError, StorageUnavailable
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.archive_reading import FollowedArchive, StreamOffset
from fetchproxy.remotelog.options import parse_options
from fetchproxy.remotelog.planning import DataLoss, OffsetSpan, ReadTask
from fetchproxy.segments.description import FinishedOffsets, encode_finished_offsets
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore

OTHER = TopicIdPartition(UUID(int=1), "orders", 1)


def add(archive: WrittenArchive, base: int, tp: TopicIdPartition = TP) -> None:
    """Ten records, 1,000 bytes each."""
    archive.add([made_batch(base, [Record(value=bytes(1000), timestamp=base)] * 10)], tp=tp)


@contextmanager
def followed(archive: WrittenArchive, **options: str) -> Iterator[FollowedArchive]:
    all_options = {
        "store": archive.url,
        "topics": "orders",
        "startingOffsets": "earliest",
        **options,
    }
    made = FollowedArchive(parse_options(all_options, streaming=True))
    try:
        yield made
    finally:
        made.close()


def spans(tasks: list[ReadTask]) -> list[tuple[int, OffsetSpan]]:
    return [(task.tp.partition, task.offsets) for task in tasks]


def at(**offsets: int) -> StreamOffset:
    """`at(_0=5, _1=7)`"""
    offsets_named = {name[1:]: offset for name, offset in offsets.items()}
    return {"orders": {**offsets_named, "topicId": str(TP.topic_id)}}


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    made = WrittenArchive(tmp_path)
    for base in (0, 10, 20):
        add(made, base)
    return made


def test_it_begins_where_it_is_told(archive: WrittenArchive) -> None:
    for options, first in (
        ({}, 0),
        ({"startingOffsets": "latest"}, 30),
        ({"startingOffsets": '{"orders": {"0": 7}}'}, 7),
        ({"startingTimestamp": "15"}, 20),
    ):
        with followed(archive, **options) as stream:
            assert stream.initial() == at(_0=first)


def test_what_is_new_is_read_and_nothing_else(archive: WrittenArchive) -> None:
    with followed(archive) as stream:
        start, end = stream.initial(), stream.latest()
        assert spans(stream.tasks(start, end)) == [(0, OffsetSpan(0, 30))]
        assert stream.latest() == end
        add(archive, 30)
        add(archive, 0, OTHER)  # a partition that appears later
        grown = stream.latest()
        assert grown == at(_0=40, _1=10)
        spans_found = spans(stream.tasks(end, grown))
        assert spans_found == [(0, OffsetSpan(30, 40)), (1, OffsetSpan(0, 10))]


def test_a_restart_goes_on_from_the_checkpoint(archive: WrittenArchive) -> None:
    with followed(archive) as stream:
        end = stream.latest()
    add(archive, 30)
    with followed(archive) as stream:
        # Spark repeats the batch that was under way, and asks for what is new then.
        assert spans(stream.tasks(at(_0=12), end)) == [(0, OffsetSpan(12, 30))]
        assert spans(stream.tasks(end, stream.latest())) == [(0, OffsetSpan(30, 40))]


def batches_of(stream: FollowedArchive, start: StreamOffset) -> list[StreamOffset]:
    """Their ends, up to the one behind which nothing is new."""
    ends = []
    while (end := stream.latest(start, apply_batch_limits=True)) != start:
        ends.append(end)
        stream.tasks(start, end)
        start = end
    return ends


def test_a_micro_batch_takes_whole_segments_up_to_the_limit(archive: WrittenArchive) -> None:
    with followed(archive, maxBytesPerTrigger="25000") as stream:
        start = stream.initial()
        assert batches_of(stream, start) == [at(_0=20), at(_0=30)]
        assert stream.latest(start) == at(_0=30)  # where the query's trigger says "all"


def test_a_micro_batch_takes_a_part_of_a_segment_that_is_above_the_limit(
    archive: WrittenArchive,
) -> None:
    with followed(archive, maxBytesPerTrigger="4200") as stream:
        ends = batches_of(stream, stream.initial())
        assert ends[:4] == [at(_0=4), at(_0=8), at(_0=10), at(_0=14)]
        assert ends[-1] == at(_0=30)
    with followed(archive, maxBytesPerTrigger="1") as stream:
        assert batches_of(stream, stream.initial())[:2] == [at(_0=1), at(_0=2)]


def test_offsets_of_a_micro_batch_are_shared_by_what_is_new(archive: WrittenArchive) -> None:
    add(archive, 0, OTHER)
    with followed(archive, maxOffsetsPerTrigger="20") as stream:
        assert batches_of(stream, stream.initial()) == [at(_0=15, _1=5), at(_0=30, _1=10)]
    with followed(archive, maxOffsetsPerTrigger="1") as stream:
        ends = batches_of(stream, stream.initial())
        assert len(ends) == 40
        assert ends[-1] == at(_0=30, _1=10)


def test_a_micro_batch_waits_for_its_least_and_no_longer_than_the_delay(
    archive: WrittenArchive,
) -> None:
    with followed(archive, minOffsetsPerTrigger="15", maxTriggerDelay="1d") as stream:
        start = stream.initial()
        first = stream.latest(
            start, apply_batch_limits=True
        )  # as Spark's: the first one does not wait
        assert first == at(_0=30)
        add(archive, 30)
        assert stream.latest(first, apply_batch_limits=True) == first
        add(archive, 40)
        assert stream.latest(first, apply_batch_limits=True) == at(_0=50)
    with followed(archive, minOffsetsPerTrigger="15", maxTriggerDelay="0s") as stream:
        assert stream.latest(at(_0=45), apply_batch_limits=True) == at(_0=50)
        assert stream.latest(at(_0=45), apply_batch_limits=True) == at(_0=50)


def test_a_query_of_what_is_there_ends_with_it(archive: WrittenArchive) -> None:
    options = {"maxOffsetsPerTrigger": "8", "minOffsetsPerTrigger": "8"}
    with followed(archive, **options) as stream:
        stream.stop_at_current_ends()
        add(archive, 30)
        add(archive, 0, OTHER)
        ends = batches_of(stream, at(_0=3))  # the checkpoint of a run that has crashed
        assert ends == [at(_0=11), at(_0=19), at(_0=27), at(_0=30)]
        assert stream.ends_at_last_read() == at(_0=40, _1=10)


def test_a_new_query_of_a_name_that_the_archive_does_not_know_fails(
    archive: WrittenArchive, tmp_path: Path
) -> None:
    with (
        followed(archive, topics="orders,order") as stream,
        pytest.raises(ConfigError, match="the archive has nothing of topic 'order'; it has orders"),
    ):
        stream.initial()
    assigned = {"topics": "", "assign": '{"orders": [0, 5]}'}
    with (
        followed(archive, **assigned) as stream,
        pytest.raises(ConfigError, match="assign names partition 5 of topic 'orders'"),
    ):
        stream.initial()
    with (
        pytest.raises(StorageUnavailable, match=r"store file://.*/no: .*is not there"),
        followed(archive, store=(tmp_path / "no").as_uri()),
    ):
        pass


@pytest.mark.parametrize(
    ("offsets", "there"),
    [
        ('{"orders": {"0": 3, "1": 0}}', True),
        ('{"orders": {"0": 3, "1": -2}}', True),
        ('{"orders": {"0": 3, "1": -1}}', True),
        ('{"orders": {"0": 3, "1": 5}}', False),
        ('{"orders": {"0": 3}, "order": {"0": 0}}', False),
    ],
)
def test_an_empty_partition_may_be_named(
    archive: WrittenArchive, offsets: str, there: bool
) -> None:
    with followed(archive, startingOffsets=offsets) as stream:
        if there:
            assert stream.initial() == at(_0=3)
        else:
            with pytest.raises(ConfigError, match="startingOffsets names"):
                stream.initial()


def test_it_ends_where_it_is_told_although_that_is_not_archived_yet(
    archive: WrittenArchive,
) -> None:
    with followed(archive, endingOffsets='{"orders": {"0": 35}}') as stream:
        assert stream.latest() == at(_0=30)
        add(archive, 30)
        assert stream.latest() == at(_0=35)


def test_what_was_deleted_before_it_was_read_is_a_loss(archive: WrittenArchive) -> None:
    def forget_first() -> None:
        for file in (SegmentFile.METADATA, SegmentFile.LOG, SegmentFile.INDEX):
            archive.path(archive.segments[0], file).unlink()

    with followed(archive) as stream, followed(archive, failOnDataLoss="false") as lenient:
        start = stream.initial()
        forget_first()
        end = stream.latest()
        with pytest.raises(DataLoss, match="offset 0 is not in the archive any more, which begins"):
            stream.tasks(start, end)
        assert lenient.latest() == end
        assert spans(lenient.tasks(start, end)) == [(0, OffsetSpan(10, 30))]
        with pytest.raises(DataLoss, match="gone-0 is not in the archive any more"):
            stream.tasks({"gone": {"0": 1}}, {"gone": {"0": 5}})


async def state(archive: WrittenArchive, end: int) -> None:
    async with RemoteStorage(FilesystemObjectStore(archive.folder)) as storage:
        stated = FinishedOffsets(TP, 0, end, 0)
        await storage.objects.put_finished_offsets(TP, encode_finished_offsets(stated))


def forget(archive: WrittenArchive, number: int) -> None:
    archive.path(archive.segments[number], SegmentFile.METADATA).unlink()


def test_a_new_query_misses_what_vanished_at_the_start(archive: WrittenArchive) -> None:
    asyncio.run(state(archive, 29))
    forget(archive, 0)
    message = "offsets 0 to 9 were archived and are in no segment, which is a fault"
    with followed(archive) as stream, pytest.raises(DataLoss, match=message):
        stream.initial()
    for options in ({"startingOffsets": "latest"}, {"failOnDataLoss": "false"}):
        with followed(archive, **options) as stream:
            stream.initial()


def test_a_batch_that_was_planned_misses_what_vanished_since(archive: WrittenArchive) -> None:
    """Also after a restart: the checkpoint has its offsets."""
    asyncio.run(state(archive, 29))
    forget(archive, 1)
    with followed(archive) as stream:
        with pytest.raises(DataLoss, match="offsets 10 to 19 were archived and are in no segment"):
            stream.tasks(at(_0=0), at(_0=30))
        assert spans(stream.tasks(at(_0=20), at(_0=30))) == [(0, OffsetSpan(20, 30))]
    forget(archive, 2)
    message = "offset 29 is not in the archive any more, which ends"
    with followed(archive) as stream, pytest.raises(DataLoss, match=message):
        stream.tasks(at(_0=0), at(_0=30))
    with followed(archive, failOnDataLoss="false") as lenient:
        assert spans(lenient.tasks(at(_0=0), at(_0=30))) == [(0, OffsetSpan(0, 10))]


# --- a world that moves ---

AGAIN = TopicIdPartition(UUID(int=2), "orders", 0)


def make_again(archive: WrittenArchive, *bases: int) -> None:
    """The topic was deleted and recreated; both are in the archive."""
    for base in bases:
        content = [made_batch(base, [Record(value=bytes(1000), timestamp=base)] * 10)]
        archive.add(content, tp=AGAIN, event_timestamp_ms=1)


def again_at(**offsets: int) -> StreamOffset:
    return {"orders": {**at(**offsets)["orders"], "topicId": str(AGAIN.topic_id)}}


def test_a_topic_that_was_made_again_is_noticed(archive: WrittenArchive) -> None:
    add(archive, 0, OTHER)  # the new topic has no such partition
    with followed(archive) as stream, followed(archive, failOnDataLoss="false") as lenient:
        latest_before = stream.latest(stream.initial())
        assert latest_before == at(_0=30, _1=10)
        assert lenient.latest(latest_before) == latest_before
        make_again(archive, 0)
        message = f"topic orders was deleted and recreated: its id was {TP.topic_id}"
        with pytest.raises(DataLoss, match=message):
            stream.latest(latest_before)
        end = lenient.latest(latest_before)
        assert end == again_at(_0=10)
        assert [task.tp for task in lenient.tasks(latest_before, end)] == [AGAIN]
        assert spans(lenient.tasks(latest_before, end)) == [(0, OffsetSpan(0, 10))]
        assert lenient.latest(end) == end
        make_again(archive, 10, 20, 30)
        grown = lenient.latest(end)
        assert spans(lenient.tasks(end, grown)) == [(0, OffsetSpan(10, 40))]


def test_limits_hold_in_a_topic_that_was_made_again(archive: WrittenArchive) -> None:
    make_again(archive, 0)
    options = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "4"}
    with followed(archive, **options) as lenient:
        assert batches_of(lenient, at(_0=30)) == [again_at(_0=o) for o in (4, 8, 10)]


def test_a_batch_of_a_topic_that_was_made_again_since_reads_nothing_of_the_new_one(
    archive: WrittenArchive,
) -> None:
    make_again(archive, 0, 10, 20)
    with followed(archive) as stream, pytest.raises(DataLoss, match="deleted and recreated"):
        stream.tasks(at(_0=0), at(_0=20))
    with followed(archive, failOnDataLoss="false") as lenient:
        assert lenient.tasks(at(_0=0), at(_0=20)) == []


def test_a_checkpoint_without_the_id_goes_on_and_gets_it(archive: WrittenArchive) -> None:
    with followed(archive) as stream:
        before: StreamOffset = {"orders": {"0": 12}}
        end = stream.latest(before)
        assert end == at(_0=30)
        assert spans(stream.tasks(before, end)) == [(0, OffsetSpan(12, 30))]
        assert stream.tasks({"orders": {"0": 30}}, end) == []


def test_an_archive_that_was_truncated(archive: WrittenArchive) -> None:
    with followed(archive) as stream, followed(archive, failOnDataLoss="false") as lenient:
        latest_before = stream.latest(stream.initial())
        forget(archive, 2)
        with pytest.raises(DataLoss, match="orders-0: offsets 20 to 29 were read and are not in"):
            stream.latest(latest_before)
        back = lenient.latest(latest_before)
        assert back == at(_0=20)
        assert lenient.tasks(latest_before, back) == []
        add(archive, 20)
        add(archive, 30)
        assert spans(lenient.tasks(back, lenient.latest(back))) == [(0, OffsetSpan(20, 40))]


def test_metadata_that_cannot_be_read_are_no_truncation(archive: WrittenArchive) -> None:
    with followed(archive, failOnDataLoss="false") as lenient:
        latest_before = lenient.latest(lenient.initial())
        archive.path(archive.segments[2], SegmentFile.METADATA).write_bytes(b"{")
        assert lenient.latest(latest_before) == latest_before
