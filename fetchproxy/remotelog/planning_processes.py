"""Reads the metadata of many partitions with all of the driver's cores.

What a segment's metadata cost is the time of one core, most of it in Python, so threads do not
help. A process is started only where a planning has gone on for a while, and it is a plain one:
whatever program called us is not run again in it. `planning_process` is what it does.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any

import structlog

from fetchproxy.errors import FetchProxyError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition

log = structlog.get_logger(__name__)

# Most archives are planned before a second process would have started.
ALONE_S = 2.0
# Handed over at once: a process reads as many at a time as the first one does.
PARTITIONS_EACH = 16
_LENGTH = Struct(">Q")


@dataclass(eq=False, repr=False)
class PlanningProcesses:
    """`options`: of the data source, to be pickled. `read_here` reads what is `waiting` into
    `views`, until nothing is; so do these meanwhile."""

    options: Any
    waiting: list[TopicIdPartition]
    views: dict[TopicIdPartition, PartitionView]
    read_here: Callable[[], Awaitable[None]]

    async def read(self, all_taken: asyncio.Event, processes: int | None = None) -> None:
        """Raises what the reading raises; a process that dies costs time alone."""
        try:
            async with asyncio.timeout(ALONE_S):
                await all_taken.wait()
                return
        except TimeoutError:
            pass
        number = (os.cpu_count() or 1) - 1 if processes is None else processes
        async with asyncio.TaskGroup() as reading:
            for _ in range(min(number, -(-len(self.waiting) // PARTITIONS_EACH))):
                reading.create_task(self._read_in_another())

    async def _read_in_another(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fetchproxy.remotelog.planning_process"),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        taken: list[TopicIdPartition] = []
        try:
            send(process.stdin, self.options)
            while self.waiting:
                taken = self.waiting[-PARTITIONS_EACH:]
                del self.waiting[-PARTITIONS_EACH:]
                send(process.stdin, taken)
                await process.stdin.drain()
                found = await received(process.stdout)
                if isinstance(found, FetchProxyError):
                    raise found
                self.views.update(found)
                taken = []
        except (OSError, EOFError) as error:
            log.warning("planning_process_ended", error=str(error), exit_code=process.returncode)
            self.waiting.extend(taken)
            await self.read_here()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def send(to: StreamWriter, value: object) -> None:
    content = pickle.dumps(value)
    to.write(_LENGTH.pack(len(content)) + content)


async def received(of: StreamReader) -> Any:
    """Raises EOFError."""
    (length,) = _LENGTH.unpack(await of.readexactly(_LENGTH.size))
    return pickle.loads(await of.readexactly(length))


async def received_or_none(of: StreamReader) -> Any:
    """None: nothing comes any more."""
    try:
        return await received(of)
    except asyncio.IncompleteReadError:
        return None
