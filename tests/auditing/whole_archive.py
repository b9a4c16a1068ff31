"""All partitions of an archive verified, as the job does it one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.auditing.verify import VERIFY_CHUNK_BYTES, verify_partition
from fetchproxy.jobs.verify import merged_report
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.remote_storage import RemoteStorage


async def verify_archive(
    storage: RemoteStorage,
    rlmm: StoreBackedRemoteLogMetadataManager,
    *,
    partitions: Iterable[TopicIdPartition] | None = None,
    metadata_topic: RemoteLogMetadataManager | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    chunk_bytes: int = VERIFY_CHUNK_BYTES,
) -> VerifyReport:
    if partitions is None:
        partitions = set(await rlmm.list_partitions())
        if metadata_topic is not None:
            partitions.update(await metadata_topic.list_partitions())
    return merged_report(
        [
            await verify_partition(
                storage,
                rlmm,
                tp,
                metadata_topic=metadata_topic,
                on_progress=on_progress,
                chunk_bytes=chunk_bytes,
            )
            for tp in sorted(partitions)
        ]
    )
