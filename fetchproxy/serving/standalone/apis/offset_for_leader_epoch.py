"""OffsetForLeaderEpoch: where the log of an epoch ended, by the lineage that the segments keep.

The client's own idea of the current leader epoch is not checked: no leader is there to fence it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import Fields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.lineage import end_offset_for, lineage_of
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    catalogue = parts.archive.catalogue
    asked = [
        (
            topic["topic"],
            partition,
            catalogue.partition(topic["topic"], partition["partition"])
            if request.may_read(topic["topic"])
            else None,
        )
        for topic in elements(request.read()["topics"])
        for partition in elements(topic["partitions"])
    ]
    views = await parts.archive.views(tip for _, _, tip in asked if tip is not None)
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, partition, tip in asked:
        view = None if tip is None else views[tip]
        end = _end_offset(view, partition, request.missing(name))
        topics.setdefault(name, []).append(end)
    values = [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]
    return request.respond({"topics": values})


def _end_offset(
    view: PartitionView | RemoteStorageError | None, asked: Fields, missing: ErrorCode
) -> dict[str, Any]:
    result: dict[str, Any] = {"partition": asked["partition"]}
    if view is None:
        return result | {"error_code": missing}
    if isinstance(view, RemoteStorageError):
        return result | {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    end = end_offset_for(lineage_of(view), asked["leader_epoch"], view.log_end_offset or 0)
    return result | {"leader_epoch": end.epoch, "end_offset": end.end_offset}


OFFSET_FOR_LEADER_EPOCH = ServedApi(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, answer)
