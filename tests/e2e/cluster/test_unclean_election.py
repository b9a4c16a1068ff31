"""A lagging replica becomes the leader: archived records that its log lacks are dead.

The archive holds records that were acknowledged, archived, deleted by the brokers, and lost by an
unclean election. From then on no client may read them. At first, while no archiver runs, the proxy
alone ensures that. Then the archive is truncated and continues with the new log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import confluent_kafka
import pytest
from archive_process import archive_process, verify
from archived_topics import SETTINGS
from client_readers import read_confluent, read_kafka_python
from held_reader import HeldReader
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, archived_ends, produce, trim

from fetchproxy.config.schema import MetadataConfig, StoreConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.storage.remote_storage import open_store
from lab.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.kafka

SHARED, DEAD_END, NEW_END = 200, 500, 400
HELD_AT = 300
BUFFERED_MAX = 100  # records that a held client may have fetched before the election
QUIET = {"log_level": 0, "error_cb": lambda error: None}  # brokers stop on purpose
CLIENTS = {"confluent-kafka": (read_confluent, QUIET), "kafka-python": (read_kafka_python, {})}


@dataclass
class Election:
    """The state after the election, and observations on the way."""

    topic: str
    proxy: ProxyProcess
    store: str
    bootstrap: str
    alive: TopicData
    held_readers: dict[str, HeldReader]
    records_by_reader: dict[tuple[str, str], list[tuple[int, bytes, bytes]]] = field(
        default_factory=dict
    )
    watermarks: tuple[int, int] = (-1, -1)
    archive_log: str = ""
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)


async def archived_segments(store: str) -> list[RemoteLogSegmentMetadata]:
    async with (
        open_store(store, StoreConfig()) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        (tp,) = await rlmm.list_partitions()  # the store has no other topic
        view = await rlmm.refresh(tp, asyncio.get_running_loop().time())
        return list(view.segments)


def archive_end(store: str) -> tuple[int, int]:
    """(the offset after the last one, the leader epoch there)."""
    last = asyncio.run(archived_segments(store))[-1]
    return last.end_offset + 1, last.segment_leader_epochs[-1].epoch


def goes_on(store: str, dead_epoch: int) -> bool:
    """Whether the new log is archived. A truncation, segment by segment, may also end there."""
    end, epoch = archive_end(store)
    return end == NEW_END and epoch > dead_epoch


def hold(stack: ExitStack, proxy: ProxyProcess, topic: str) -> dict[str, HeldReader]:
    """Readers in the middle of archived data that will be dead."""
    readers = {}
    for name, (_, more) in CLIENTS.items():
        reader = HeldReader(name, proxy.bootstrap, topic, {0: 1 << 40}, hold_at=HELD_AT, **more)
        readers[name] = stack.enter_context(reader)
        reader.wait_until_held()
    return readers


def elect_lagging(cluster: KafkaCluster, topic: str) -> None:
    """Broker 2 was stopped while 1 took records; now 1 is killed, and 2 leads without them."""
    cluster.nodes[1].kill()
    cluster.nodes[2].start()
    cluster.wait_for_brokers([2, 3])
    # Until the controllers notice, it still counts as the leader.
    wait_for("broker 1 gone", lambda: 1 not in cluster.brokers())
    cluster.elect_unclean(topic, 0)
    wait_for("broker 2 leads", lambda: cluster.partitions(topic)[0].leader == 2)


def read_everywhere(proxy: ProxyProcess, topic: str, end: int) -> dict[tuple[str, str], list]:
    return {
        (name, isolation): read_all(
            proxy.bootstrap, topic, {0: end}, **more, **isolation_of(name, isolation)
        )[0]
        for name, (read_all, more) in CLIENTS.items()
        for isolation in ("read_committed", "read_uncommitted")
    }


def isolation_of(client: str, isolation: str) -> dict[str, str]:
    return {("isolation.level" if client == "confluent-kafka" else "isolation_level"): isolation}


def watermarks(bootstrap: str, topic: str) -> tuple[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "w", **QUIET})
    try:
        return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=30)
    finally:
        consumer.close()


@pytest.fixture(
    scope="module", params=["proxy-alone", pytest.param("one-process", marks=pytest.mark.slow)]
)
def election(
    request: pytest.FixtureRequest,
    three_brokers: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Election]:
    """An unclean election with readers in the archive.

    `proxy-alone`: no archiver runs from before the election until readers have read after it.
    `one-process`: the proxy's own archiver runs all the time.
    """
    cluster, topic = three_brokers, f"unclean-{request.param}"
    alone = request.param == "proxy-alone"
    folder = tmp_path_factory.mktemp(topic)
    store = tmp_path_factory.mktemp(f"{topic}-store").as_uri()
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    cluster.create_topic(topic, [[1, 2]], unclean)
    alive, dead = TopicData(topic), TopicData(topic)
    archiver = archive_process(cluster.bootstrap, store, topic, folder)
    with ExitStack() as stack:
        stack.callback(restore, cluster)
        archive = None if alone else topic
        proxy = stack.enter_context(
            ProxyProcess(cluster.bootstrap, store, folder, archive=archive, settings=SETTINGS)
        )
        if alone:
            stack.callback(archiver.stop)
            archiver.start()
        produce(cluster.bootstrap, alive, SHARED)
        wait_for("both in sync", lambda: cluster.partitions(topic)[0].in_sync == {1, 2})
        cluster.nodes[2].stop()
        produce(cluster.bootstrap, dead, DEAD_END - SHARED)
        wait_for("the archive", lambda: archived_ends(store, topic) == {0: DEAD_END})
        dead_epoch = archive_end(store)[1]
        trim(cluster.bootstrap, topic, {0: DEAD_END - 50})
        held_readers = hold(stack, proxy, topic)
        scene = Election(topic, proxy, store, cluster.bootstrap, alive, held_readers)
        if alone:
            archiver.stop()
        elect_lagging(cluster, topic)
        scene.records_by_reader = read_everywhere(proxy, topic, SHARED)
        scene.watermarks = watermarks(proxy.bootstrap, topic)
        for reader in held_readers.values():
            reader.go_on()
        wait_for("both to hear of it", lambda: all(r.finished for r in held_readers.values()))
        produce(cluster.bootstrap, alive, NEW_END - SHARED, size=310)
        if alone:
            archiver.start()
        wait_for("the archive", lambda: goes_on(store, dead_epoch))
        scene.archive_log = (folder / "archive.log").read_text() if alone else proxy.log_text()
        scene.segments = asyncio.run(archived_segments(store))
        yield scene


def restore(cluster: KafkaCluster) -> None:
    for node in (1, 2):
        if not cluster.nodes[node].running:
            cluster.nodes[node].start()
    cluster.wait_for_brokers([1, 2, 3])


def test_before_the_archive_is_truncated_nobody_reads_a_dead_record(election: Election) -> None:
    for reader, records in election.records_by_reader.items():
        assert records == election.alive.written[0][:SHARED], reader
    assert election.watermarks == (0, SHARED)


def test_a_reader_on_dead_offsets_is_told_so(election: Election) -> None:
    """It has read the log of that time, gets the new end, and gets no more records."""
    for name, reader in election.held_readers.items():
        assert HELD_AT <= reader.count <= HELD_AT + BUFFERED_MAX, name
        (error,) = map(repr, reader.errors)
        told_where = "LogTruncationError" in error and f"offset={SHARED}," in error  # by KIP-320
        assert told_where or "OffsetOutOfRange" in error or "_AUTO_OFFSET_RESET" in error, error


def test_the_archive_is_truncated_and_goes_on(election: Election) -> None:
    assert "archive_truncated" in election.archive_log
    segments = election.segments
    assert [s.end_offset + 1 for s in segments[:-1]] == [s.start_offset for s in segments[1:]]
    old = [s for s in segments if s.start_offset < SHARED]
    assert old[-1].end_offset == SHARED - 1
    epochs = {s.segment_leader_epochs[-1].epoch for s in old}
    assert epochs < {e.epoch for s in segments for e in s.segment_leader_epochs}, "they go on"
    verify(election.store)


def test_the_new_log_is_read_from_both_tiers_and_from_the_archive_alone(
    election: Election,
) -> None:
    expected = election.alive.written[0]
    assert len(expected) == NEW_END
    for reader, records in read_everywhere(election.proxy, election.topic, NEW_END).items():
        assert records == expected, reader
    direct = read_confluent(election.bootstrap, election.topic, {0: NEW_END}, **QUIET)[0]
    assert direct == expected[-len(direct) :]
    trim(election.bootstrap, election.topic, {0: NEW_END})
    for reader, records in read_everywhere(election.proxy, election.topic, NEW_END).items():
        assert records == expected, reader
