"""Reads the metadata of many partitions with all of the driver's cores.

A segment's metadata cost the time of one core, most of it in Python, so threads do not help. The
processes are plain ones: they do not run the calling program again.

Run as a program, this module is such a process. It reads the data source's options and whether an
object that fails is its partition's own fault, then any number of lists of partitions, and answers
each with their views or the error. It ends with its input.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from struct import Struct
from typing import BinaryIO

import structlog

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import FetchProxyError, ObjectFailing, RemoteStorageError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.options import SourceOptions
from fetchproxy.remotelog.store_thread import opened_store, with_retries
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.retries import each_object_alone, is_each_object_alone

log = structlog.get_logger(__name__)

# Handed over at once: each process reads as many partitions at a time as the first one.
PARTITIONS_EACH = 16
# Reads of one partition at once, within the store's own limits.
METADATA_READS_MAX = 32
_LENGTH = Struct(">Q")
_Views = dict[TopicIdPartition, PartitionView]
Failing = dict[TopicIdPartition, RemoteStorageError]


def metadata_of(
    options: SourceOptions, storage: RemoteStorage
) -> StoreBackedRemoteLogMetadataManager:
    """The caller has to enter it while `storage` is open."""
    return StoreBackedRemoteLogMetadataManager(
        storage,
        MetadataConfig(),
        plans=True,
        reads_max=METADATA_READS_MAX,
        read_max_ms=options.plan_max_ms,
    )


async def read_view(
    rlmm: StoreBackedRemoteLogMetadataManager,
    tp: TopicIdPartition,
    not_older_than: float,
    max_s: float,
) -> PartitionView:
    """Raises as `with_retries`. A segment whose metadata object alone fails is no part of a view
    that somebody plans with: the segment is there, and reading it may succeed later.
    """
    refresh = partial(rlmm.refresh, tp, not_older_than)
    view = await with_retries(f"the metadata of {tp}", refresh, max_s)
    for problem in rlmm.problems(tp):
        if problem.retriable:
            raise ObjectFailing(f"the metadata of {tp}: {problem.what}")
    return view


async def read_elsewhere(
    options: SourceOptions,
    waiting: list[TopicIdPartition],
    views: _Views,
    read_here: Callable[[], Awaitable[None]],
    failing: Failing | None = None,
) -> None:
    """Reads `waiting` partitions into `views` in another process, beside `read_here`. `failing`:
    for those with an object that fails alone, see `each_object_alone`.

    `read_here` does the same in this process. Raises the errors of reading. If the process dies,
    only time is lost.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fetchproxy.remotelog.planning_processes"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    batch: list[TopicIdPartition] = []
    try:
        process.stdin.write(pickle.dumps((options, is_each_object_alone())))
        while waiting:
            batch = waiting[-PARTITIONS_EACH:]
            del waiting[-PARTITIONS_EACH:]
            process.stdin.write(pickle.dumps(batch))
            await process.stdin.drain()
            (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
            read_views = pickle.loads(await process.stdout.readexactly(length))
            if isinstance(read_views, FetchProxyError):
                raise read_views
            for tp, view in read_views.items():
                if isinstance(view, PartitionView):
                    views[tp] = view
                elif failing is None:
                    raise view
                else:
                    failing[tp] = view
            batch = []
    except (OSError, EOFError) as error:
        log.warning(
            "planning_process_ended",
            error=str(error),
            exit_code=process.returncode,
            hint="if it happens again, give the driver's machine more memory",
        )
        waiting.extend(batch)
        await read_here()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _respond(responses: BinaryIO) -> None:
    """Only this function writes to `responses`. It may block: there is no other work meanwhile."""
    with suppress(EOFError, pickle.UnpicklingError):  # the input has ended
        options, archive_only = pickle.load(sys.stdin.buffer)
        async with opened_store(options) as storage, metadata_of(options, storage) as rlmm:
            while True:
                tps = pickle.load(sys.stdin.buffer)
                with each_object_alone() if archive_only else nullcontext():
                    views = await _read(rlmm, tps, options.plan_max_ms / 1000)
                content = pickle.dumps(views)
                responses.write(_LENGTH.pack(len(content)) + content)
                responses.flush()


async def _read(
    rlmm: StoreBackedRemoteLogMetadataManager, tps: list[TopicIdPartition], max_s: float
) -> Mapping[TopicIdPartition, PartitionView | ObjectFailing] | FetchProxyError:
    views: dict[TopicIdPartition, PartitionView | ObjectFailing] = {}
    now = asyncio.get_running_loop().time()

    async def read(tp: TopicIdPartition) -> None:
        try:
            views[tp] = await read_view(rlmm, tp, now, max_s)
        except ObjectFailing as error:
            views[tp] = error

    try:
        await for_each(tps, read, len(tps))
    except FetchProxyError as error:
        return error
    return views


if __name__ == "__main__":
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text goes to stderr, like logs
    asyncio.run(_respond(responses))
