"""ListOffsets results with what the archive says in place of what the broker said. Pure."""

from __future__ import annotations

from fetchproxy.gateway.archive_starts import archive_start
from fetchproxy.metadata.partition_view import PartitionView
from protocol import list_offsets as wire
from protocol.error_codes import ErrorCode
from protocol.list_offsets import OffsetResult


def of_records(timestamp: int) -> bool:
    """Whether records are asked for by their own timestamps. Pure."""
    return timestamp >= 0 or timestamp == wire.MAX_TIMESTAMP


def not_known(result: OffsetResult) -> OffsetResult:
    """Retriable: the client asks again."""
    return result._replace(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR,
        timestamp=wire.UNKNOWN_TIMESTAMP,
        offset=wire.UNKNOWN_OFFSET,
        leader_epoch=wire.UNKNOWN_EPOCH,
    )


def edge_of_archive(result: OffsetResult, timestamp: int, view: PartitionView) -> OffsetResult:
    """EARLIEST and LATEST_TIERED; anything else is the broker's. Pure."""
    if not view.segments:
        return result
    if timestamp == wire.EARLIEST:
        offset, epoch = archive_start(view)
        if 0 <= result.offset <= offset:
            return result
    elif timestamp == wire.LATEST_TIERED:
        offset = view.segments.end_offset(len(view.segments) - 1)
        epoch = view.segments.epoch_at(offset)
    else:
        return result
    return found_at(result, offset, result.timestamp, epoch)


def found_at(result: OffsetResult, offset: int, timestamp_ms: int, epoch: int) -> OffsetResult:
    # Not `_replace`, which takes twice as long.
    topic, partition, error_code, position = result.topic, result.partition, result[2], result[-1]
    return OffsetResult(topic, partition, error_code, timestamp_ms, offset, epoch, position)
