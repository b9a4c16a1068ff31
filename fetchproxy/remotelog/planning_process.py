"""`python -m fetchproxy.remotelog.planning_process`: a process of `planning_processes`.

It is told the data source's options, then partitions, as often as its caller likes, and answers
with their views or with the error. It ends when nothing more is said.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import FetchProxyError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.archive_reading import METADATA_READS_MAX
from fetchproxy.remotelog.options import SourceOptions
from fetchproxy.remotelog.planning_processes import received_or_none, send
from fetchproxy.remotelog.store_thread import opened_store, with_retries

Views = dict[TopicIdPartition, PartitionView]


async def _answer(answers: int) -> None:
    """`answers`: a descriptor that nothing else writes to."""
    loop = asyncio.get_running_loop()
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin.buffer)
    pipe = os.fdopen(answers, "wb")
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    told = asyncio.StreamWriter(transport, protocol, None, loop)
    options: SourceOptions | None = await received_or_none(asked)
    if options is None:
        return
    async with (
        opened_store(options) as rsm,
        StoreBackedRemoteLogMetadataManager(
            rsm,
            MetadataConfig(),
            plans=True,
            reads_max=METADATA_READS_MAX,
            read_max_ms=options.plan_max_ms,
        ) as rlmm,
    ):
        while (tips := await received_or_none(asked)) is not None:
            send(told, await _read(rlmm, tips, options.plan_max_ms / 1000))
            await told.drain()


async def _read(
    rlmm: StoreBackedRemoteLogMetadataManager, tips: list[TopicIdPartition], max_s: float
) -> Views | FetchProxyError:
    views: Views = {}
    failures: list[FetchProxyError] = []
    now = asyncio.get_running_loop().time()

    async def read(tip: TopicIdPartition) -> None:
        try:
            refresh = partial(rlmm.refresh, tip, now)
            views[tip] = await with_retries(f"the metadata of {tip}", refresh, max_s)
        except FetchProxyError as error:
            failures.append(error)

    async with asyncio.TaskGroup() as reading:
        for tip in tips:
            reading.create_task(read(tip))
    return failures[0] if failures else views


if __name__ == "__main__":
    own = os.dup(1)
    os.dup2(2, 1)  # what anybody prints goes where logs go
    asyncio.run(_answer(own))
