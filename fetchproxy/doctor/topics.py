"""Checks of the topics: which are archived, and whether brokers keep records until they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import walk

from fetchproxy.archive import wall_clock_ms
from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.config.memory_plan import FETCH_BYTES_MAX
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.doctor.installation import (
    NOTHING,
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
    Passed,
    from_brokers,
)
from fetchproxy.errors import ClusterError
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.writing.deletion.retention import effective_retention, trimming_refusal
from fetchproxy.writing.discovery import TopicDiscovery

# Clocks of a machine that asks for the time differ by less; a request takes part of it.
CLOCK_DIFFERS_MAX_MS = 60_000
# Partitions whose newest record is read: one batch each.
_NEWEST_READ_MAX = 20
# A broker's own limit for timestamps from the future before Kafka 3.6 and, by default, before 4.0.
_NO_LIMIT_MS = (1 << 63) - 1
# Above this, a limit of the broker does not help against a wrong clock.
_FUTURE_MAX_MS = 7 * 24 * 3_600_000
_FRAME_OVERHEAD_BYTES = 64 * 1024


class _Archived(NamedTuple):
    topic: TopicInfo
    settings: Mapping[str, str]


async def discovery_of(installation: Installation) -> TopicDiscovery:
    """As the archiver's, after one look. Raises ClusterError, NotChecked."""
    if installation.config.archive.topics is None:
        raise DoesNotApply("`archive.topics` is not set")
    discovery = TopicDiscovery(
        (await installation.cluster()),
        installation.config.archive,
        interval_ms=0,
        metadata_topic=installation.config.metadata.topic_name,
    )
    await discovery.look()
    return discovery


async def _archived_topics(installation: Installation) -> list[_Archived]:
    discovery = await from_brokers(discovery_of(installation))
    cluster, archived_topics = await installation.cluster(), []
    for topic in await from_brokers(cluster.topics()):
        settings = discovery.topic_config(topic.topic_id)
        if settings is not None and topic.name not in discovery.refused:
            archived_topics.append(_Archived(topic, settings))
    return archived_topics


async def _metadata_topic_keeps(installation: Installation) -> Sequence[Finding]:
    metadata = installation.config.metadata
    if metadata.manager != "topic":
        raise DoesNotApply("`metadata.manager = store`")
    cluster = await installation.cluster()
    topic = KafkaMetadataLog(cluster, installation.config.cluster, metadata, wall_clock_ms)
    brokers = len(await from_brokers(cluster.brokers()))
    if await topic.check() or metadata.topic_replication_factor <= brokers:
        return NOTHING
    return [
        Finding(
            f"metadata.topic_replication_factor = {metadata.topic_replication_factor}, and there "
            f"are {brokers} brokers: the topic {metadata.topic_name} cannot be created"
        )
    ]


async def _match(installation: Installation) -> Passed | Sequence[Finding]:
    discovery = await discovery_of(installation)
    if (reason := discovery.why_nothing()) is not None:
        return [Finding(reason)]
    return Passed(f"{len(await _archived_topics(installation))} topics are archived")


async def _none_from_the_future(installation: Installation) -> Sequence[Finding]:
    findings: list[Finding] = []
    for segment in (await _archived_topics(installation))[:_NEWEST_READ_MAX]:
        newest_ms = await _newest_ms(installation, segment.topic)
        ahead_s = ((newest_ms or 0) - installation.wall_clock_ms()) // 1000
        if ahead_s > CLOCK_DIFFERS_MAX_MS // 1000:
            stamped_by = segment.settings.get("message.timestamp.type", "CreateTime")
            reason = (
                f"the newest record of {segment.topic.name} ({stamped_by}) is {ahead_s} s ahead of "
                "this machine's clock"
            )
            findings.append(Finding(reason, {"topic": segment.topic.name}))
    return findings


async def _newest_ms(installation: Installation, topic: TopicInfo) -> int | None:
    """The timestamp of the newest record in the topic's first partition. None: not known."""
    tp = TopicIdPartition(topic.topic_id, topic.name, min(topic.leaders, default=0))
    cluster = await installation.cluster()
    try:
        offsets = await cluster.log_offsets(tp)
        if offsets.high_watermark <= offsets.log_start_offset:
            return None
        fetched = await cluster.fetch(
            tp,
            offsets.high_watermark - 1,
            bytes_max=1,
            wait_max_ms=0,
            isolation=IsolationLevel.READ_UNCOMMITTED,
        )
        return max((header.max_timestamp for header in walk(fetched.records)), default=None)
    except (ClusterError, WireError):
        return None  # other checks say what is wrong with the brokers


async def _refuse_the_future(installation: Installation) -> Sequence[Finding]:
    findings: list[Finding] = []
    for topic, settings in await _archived_topics(installation):
        retention = effective_retention(installation.config.archive, topic.name, settings)
        by_time = retention.remote_ms >= 0 or retention.local_ms >= 0
        limit_ms = int_setting(settings, "message.timestamp.after.max.ms", 0)
        by_producer = settings.get("message.timestamp.type") == "CreateTime"
        if by_time and by_producer and limit_ms > _FUTURE_MAX_MS:
            limit = "none" if limit_ms == _NO_LIMIT_MS else f"{limit_ms} ms"
            reason = f"{topic.name}: limit of timestamps from the future: {limit}"
            findings.append(Finding(reason, {"topic": topic.name}))
    return findings


async def _responses_fit(installation: Installation) -> Sequence[Finding]:
    frame = installation.config.cluster.frame_bytes_max
    findings: list[Finding] = []
    for topic, settings in await _archived_topics(installation):
        largest = int_setting(settings, "max.message.bytes", 0)
        needs = FETCH_BYTES_MAX + largest + _FRAME_OVERHEAD_BYTES
        if needs > frame:
            reason = (
                f"{topic.name} has max.message.bytes={largest}, and cluster.frame_bytes_max is "
                f"{frame}"
            )
            findings.append(Finding(reason, {"topic": topic.name, "bytes": needs}))
    return findings


async def _can_trim(installation: Installation) -> Sequence[Finding]:
    findings: list[Finding] = []
    for topic, settings in await _archived_topics(installation):
        retention = effective_retention(installation.config.archive, topic.name, settings)
        refusal = trimming_refusal(settings) if retention.trims_locally else None
        if refusal is not None:
            findings.append(Finding(f"{topic.name}: {refusal}", {"topic": topic.name}))
    return findings


async def _keep_until_archived(installation: Installation) -> Sequence[Finding]:
    archive = installation.config.archive
    findings: list[Finding] = []
    for topic, settings in await _archived_topics(installation):
        if (reason := retention_fault(archive, settings)) is not None:
            words = {"topic": topic.name, "retention_ms": 2 * archived_after_ms(archive)}
            findings.append(Finding(f"{topic.name}: {reason}", words))
    return findings


def archived_after_ms(archive: ArchiveConfig) -> int:
    """The age at which a record is archived at the latest, while nothing fails."""
    return archive.segment_age_max_ms + archive.copy_max_ms


def retention_fault(archive: ArchiveConfig, settings: Mapping[str, str]) -> str | None:
    """Why the brokers may delete records before they are archived, as a clause."""
    kept_ms = int_setting(settings, "retention.ms", -1)
    after_ms = archived_after_ms(archive)
    if kept_ms < 0 or kept_ms > after_ms or "delete" not in settings.get("cleanup.policy", ""):
        return None
    return (
        f"retention.ms={kept_ms}, and a record is archived within {after_ms} ms "
        "(archive.segment_age_max_ms and archive.copy_max_ms)"
    )


async def _keep_enough_bytes(installation: Installation) -> Sequence[Finding]:
    segment = installation.config.archive.segment_bytes_max
    findings: list[Finding] = []
    for topic, settings in await _archived_topics(installation):
        retention_bytes = int_setting(settings, "retention.bytes", -1)
        if 0 <= retention_bytes < segment:
            reason = (
                f"{topic.name}: retention.bytes={retention_bytes}, "
                f"and a segment has {segment} bytes"
            )
            words = {"topic": topic.name, "retention_bytes": 4 * segment}
            findings.append(Finding(reason, words))
    return findings


async def _can_be_archived(installation: Installation) -> Sequence[Finding]:
    discovery = await discovery_of(installation)
    return [
        Finding(f"{topic}: {reason}", {"topic": topic})
        for topic, reason in discovery.refused.items()
    ]


def int_setting(settings: Mapping[str, str], key: str, default: int) -> int:
    """A broker's setting; `default` if it does not report it as a number."""
    try:
        return int(settings[key])
    except (KeyError, ValueError):
        return default


TOPIC_CHECKS: Mapping[str, CheckFunction] = {
    "FP0111": _metadata_topic_keeps,
    "FP0112": _match,
    "FP0113": _none_from_the_future,
    "FP0114": _refuse_the_future,
    "FP0115": _responses_fit,
    "FP0116": _can_trim,
    "FP0117": _keep_until_archived,
    "FP0118": _keep_enough_bytes,
    "FP0119": _can_be_archived,
}
