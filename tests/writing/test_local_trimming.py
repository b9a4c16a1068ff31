"""When the archiver sends DeleteRecords, against a broker with scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
from failing_store import FailingStore
from kafka.protocol.admin import DeleteRecordsResponse
from kafka.protocol.consumer import OffsetForLeaderEpochResponse
from kafka.protocol.consumer.offsets import ListOffsetsResponse
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from planted_archive import PlantedArchive, batch
from scripted_broker import TOPIC, TOPIC_ID, VERSIONS, ScriptedBroker, encode, serving
from taken_settings import take_into

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig, MetadataConfig
from fetchproxy.errors import ArchiveMismatch, ClusterError, RemoteStorageError
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import headlines
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, SegmentFile
from fetchproxy.storage.archive_identity import ArchiveIdentity, HandedOver, encode_identity
from fetchproxy.writing.deletion.local_retention import LocalRetention
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.published_conditions import PublishedConditions
from lab.limited import section_and_limits

TP = TopicIdPartition(TOPIC_ID, TOPIC, 0)
LIST_OFFSETS, DELETE_RECORDS, EPOCH_END = 2, 21, 23
UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}
POLICY_VIOLATION = 44


@dataclass
class TrimmedBroker(ScriptedBroker):
    """A broker whose log has the offsets `start` to `end`; its `epoch` ended at `ends_at`."""

    start: int = 0
    end: int = 100
    epoch: int = 0
    ends_at: int = 100
    refusal: int = 0
    deletions: int = 0

    def response(self, api_key: int, version: int, correlation_id: int) -> bytes | None:
        responses = {
            18: self._more_versions,
            LIST_OFFSETS: self._edges,
            DELETE_RECORDS: self._delete,
            EPOCH_END: self._epoch_end,
        }
        if api_key not in responses:
            return super().response(api_key, version, correlation_id)
        return encode(responses[api_key](), version, correlation_id)

    def _more_versions(self) -> Any:
        keys = {**VERSIONS, LIST_OFFSETS: (1, 6), DELETE_RECORDS: (0, 2), EPOCH_END: (0, 4)}
        version = ApiVersionsResponse.ApiVersion
        return ApiVersionsResponse(
            error_code=0,
            api_keys=[
                version(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in keys.items()
            ],
        )

    def _edges(self) -> Any:
        """The three requests come in this order: the log start, the LSO, the high watermark."""
        self.requests.append(LIST_OFFSETS)
        first = self.requests.count(LIST_OFFSETS) % 3 == 1
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        place = topic.ListOffsetsPartitionResponse(
            partition_index=0,
            error_code=0,
            timestamp=-1,
            offset=self.start if first else self.end,
            leader_epoch=0,
        )
        return ListOffsetsResponse(
            throttle_time_ms=0, topics=[topic(name=TOPIC, partitions=[place])]
        )

    def _delete(self) -> Any:
        self.deletions += 1
        topic = DeleteRecordsResponse.DeleteRecordsTopicResult
        place = topic.DeleteRecordsPartitionResult(
            partition_index=0, low_watermark=30, error_code=self.refusal
        )
        return DeleteRecordsResponse(
            throttle_time_ms=0, topics=[topic(name=TOPIC, partitions=[place])]
        )

    def _epoch_end(self) -> Any:
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        place = topic.EpochEndOffset(
            error_code=0, partition=0, leader_epoch=self.epoch, end_offset=self.ends_at
        )
        return OffsetForLeaderEpochResponse(
            throttle_time_ms=0, topics=[topic(topic=TOPIC, partitions=[place])]
        )


@dataclass
class Trimming:
    broker: TrimmedBroker
    store: FailingStore
    local: LocalRetention
    topic_config: dict[str, str]
    planted: PlantedArchive
    published_conditions: PublishedConditions


@asynccontextmanager
async def trimming(**settings: Any) -> AsyncIterator[Trimming]:
    """Three segments of ten offsets are archived, and local retention keeps none of them."""
    store, broker, topic_config = FailingStore(), TrimmedBroker(), dict(UNLIMITED)
    planted = PlantedArchive(store, recorded=False)
    published_conditions = PublishedConditions(planted.storage.objects)
    for base in (0, 10, 20):
        await planted.add([batch(base)], tp=TP)
    config, limits = section_and_limits(
        ArchiveConfig,
        WritingLimits,
        **{
            "local_retention_ms": 1,
            "retention_clock_settle_ms": 0,
            "retention_check_interval_ms": 1,
            **settings,
        },
    )
    async with (
        serving(broker) as bootstrap,
        Cluster(ClusterConfig(bootstrap=bootstrap, request_max_ms=30_000)) as cluster,
        StoreBackedRemoteLogMetadataManager(planted.storage, MetadataConfig()) as rlmm,
    ):
        local = LocalRetention(
            config,
            cluster,
            planted.storage.rsm,
            rlmm,
            topic_config=lambda _: topic_config,
            check_owner=planted.storage.objects.check_owner,
            wall_clock_ms=lambda: 1_000_000,
            published_conditions=published_conditions,
            limits=limits,
        )
        yield Trimming(broker, store, local, topic_config, planted, published_conditions)


async def test_nothing_is_trimmed_by_an_archive_that_is_another_clusters() -> None:
    """Above the seam it has that cluster's records, and these brokers have theirs alone."""
    async with trimming() as world:
        identity, whose = world.planted.storage.identity, ArchiveIdentity(uuid4(), "old")
        await identity.state(whose)
        identity.belongs_to("old")
        handed = replace(whose, cluster_id="new", handed_over=HandedOver("old", 1))
        await world.store.put(f"archive/{LAYOUT_OBJECT}", encode_identity(handed))
        with pytest.raises(ArchiveMismatch, match="belonged to the cluster new"):
            await world.local.trim(TP)
        assert world.broker.deletions == 0


async def test_it_is_sent_at_an_interval() -> None:
    async with trimming(retention_check_interval_ms=3_600_000) as world:
        for _ in range(3):
            await world.local.trim(TP)
        assert world.broker.deletions == 1


async def test_not_where_all_of_it_is_gone() -> None:
    async with trimming() as world:
        world.broker.start = 30
        await world.local.trim(TP)
        assert world.broker.deletions == 0


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"ends_at": 29}, id="the epoch ends below"),
        pytest.param({"epoch": -1, "ends_at": -1}, id="the epoch is not known"),
        pytest.param({"end": 29}, id="the log ends below"),
        pytest.param({"start": 31}, id="the archive is behind"),
    ],
)
async def test_not_where_the_leaders_log_is_another(change: dict[str, int]) -> None:
    async with trimming() as world:
        for name, value in change.items():
            setattr(world.broker, name, value)
        await world.local.trim(TP)
        assert world.broker.deletions == 0


async def test_a_refusal_of_the_broker_is_tried_again() -> None:
    async with trimming(retention_check_interval_ms=3_600_000) as world:
        world.broker.refusal = POLICY_VIOLATION
        for _ in range(2):
            with pytest.raises(ClusterError, match="DeleteRecords of orders: error 44"):
                await world.local.trim(TP)
        world.broker.refusal = 0
        await world.local.trim(TP)
        assert world.broker.deletions == 3


async def test_a_store_that_is_away_ends_it() -> None:
    async with trimming() as world:
        await world.local.trim(TP)
        world.store.away = True
        await asyncio.sleep(0.01)
        for _ in range(3):
            with pytest.raises(RemoteStorageError):
                await world.local.trim(TP)
        assert world.broker.deletions == 1


@pytest.mark.remedy("local_retention_refused")
async def test_settings_that_change() -> None:
    async with trimming() as world:
        world.topic_config["retention.ms"] = "86400000"
        await world.local.trim(TP)
        assert "retention.ms=86400000" in str(world.local.refusal(TOPIC))
        world.topic_config["retention.ms"] = "-1"
        await asyncio.sleep(0.01)
        await world.local.trim(TP)
        assert world.local.refusal(TOPIC) is None
        assert world.broker.deletions == 1


async def test_without_local_retention_nobody_is_asked() -> None:
    async with trimming(local_retention_ms=-1) as world:
        await world.local.trim(TP)
        assert world.broker.requests == []


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(
    ("file", "edit", "message"),
    [
        (SegmentFile.LOG, None, "is missing"),
        (SegmentFile.LOG, lambda log: log[:-1], "is shorter"),
        (SegmentFile.LOG, lambda log: log[:-50], "is shorter"),
        (SegmentFile.LOG, lambda log: log + b"x", "is longer"),
        (SegmentFile.INDEX, None, "is missing"),
        (SegmentFile.INDEX, lambda index: b"", "no entry"),
        (SegmentFile.INDEX, lambda index: index[:-1], "entry 0"),
    ],
)
async def test_not_where_the_store_has_lost_what_was_copied(
    file: SegmentFile, edit: Any, message: str, number: int
) -> None:
    async with trimming() as world:
        segment = world.planted.segments[number]
        key = world.planted.key(segment, file)
        before = await world.store.get(key)
        if edit is None:
            await world.store.delete(key)
        else:
            await world.planted.change(segment, file, edit)
        for _ in range(3):
            await world.local.trim(TP)
            await asyncio.sleep(0.01)
        assert world.broker.deletions == 0
        [headline] = headlines(world.published_conditions.health.conditions(0.0))
        assert message in headline
        assert key in headline
        # Once mended, trimming continues by itself.
        await world.store.put(key, before)
        await world.local.trim(TP)
        assert world.broker.deletions == 1
        assert headlines(world.published_conditions.health.conditions(0.0)) == ()


async def test_a_store_that_cannot_say_is_no_damage_and_no_leave() -> None:
    async with trimming() as world:
        world.store.logs_away = True
        with pytest.raises(RemoteStorageError):
            await world.local.trim(TP)
        assert world.broker.deletions == 0
        assert headlines(world.published_conditions.health.conditions(0.0)) == ()


@pytest.mark.live("archive.local_retention_ms", "archive.local_retention_bytes")
@pytest.mark.parametrize("setting", ["local_retention_ms", "local_retention_bytes"])
async def test_local_retention_may_be_set_while_the_archiver_runs(setting: str) -> None:
    async with trimming(local_retention_ms=-1) as world:
        await world.local.trim(TP)
        assert world.broker.deletions == 0
        take_into(world.local.config, **{setting: 0})
        while not world.broker.deletions:
            await world.local.trim(TP)
