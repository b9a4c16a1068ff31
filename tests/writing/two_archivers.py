"""A second archiver in a process of its own, and a reader of both archivers' data. Not a test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from archive_harness import (
    QUICK,
    Archive,
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
)
from confluent_kafka import Producer
from fetchproxy_protocol.record_batch import walk
from planted_archive import gaps_of
from whole_archive import verify_archive

from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.object_keys import SegmentFile

HERE = Path(__file__).parent
MEETING_COUNT = 400  # records of each partition before the two meet, and after
# An archiver stopped there finishes a copy though another has continued from the same offset.
OVERTAKEN_TOO_LATE = "before put metadata COPY_SEGMENT_FINISHED"
SMALL: dict[str, Any] = {"segment_bytes_max": 4_096, "fetch_bytes_max": 16_384}


class ArchiverProcess:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait_for(self, line: str) -> None:
        """Block until the process has printed `line`, for a minute at most."""
        assert self._process.stdout is not None
        late = threading.Timer(60, self._process.kill)
        late.start()
        try:
            while True:
                printed = self._process.stdout.readline()
                assert printed, f"the archiver has ended, or never said {line!r}"
                if printed.decode().strip() == line:
                    return
        finally:
            late.cancel()

    @property
    def stopped(self) -> bool:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


@contextmanager
def archiver_process(
    bootstrap: str, folder: Path, topic: str, label: str = "", **changes: Any
) -> Iterator[ArchiverProcess]:
    """`label`: see `archiver_process.py`. The process is killed at the end."""
    command = [sys.executable, str(HERE / "archiver_process.py"), bootstrap]
    command += [str(folder / "store"), str(folder / "spool"), topic]
    command += [json.dumps({**QUICK, **SMALL, **changes}), label]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.getcwd()])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        yield ArchiverProcess(process)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def readable(archive: Archive, tp: TopicIdPartition) -> bytes:
    """The bytes that a reader gets from the archive's start on: each offset from one segment."""
    view = await archive.view(tp)
    assert view.log_start_offset is not None
    assert view.gaps() == []
    whole, offset = b"", view.log_start_offset
    while (segment := view.segment_at_or_after(offset)) is not None:
        log = await archive.object(segment, SegmentFile.LOG)
        for header in walk(log):
            if header.last_offset >= offset:
                assert header.base_offset == offset, "a hole, or half a batch"
                whole += log[header.position : header.end]
                offset = header.last_offset + 1
        assert offset == segment.end_offset + 1
    assert offset == view.log_end_offset
    return whole


def produce(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 1_000})
    for i in range(count):
        for partition in range(partitions):
            producer.produce(topic, value=b"v" * 100, key=str(i).encode(), partition=partition)
    assert producer.flush(30) == 0


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


async def meet(
    bootstrap: str, topic: str, partitions: int, folder: Path, label: str, **changes: Any
) -> tuple[int, int]:
    """(finished copies, those of them that readers see) after the two have met at `label`."""
    await asyncio.to_thread(produce, bootstrap, topic, partitions, MEETING_COUNT)
    with archiver_process(bootstrap, folder, topic, f"stop {label}", **changes) as other:
        await asyncio.to_thread(other.wait_for, "stopped")
        await until_true(lambda: other.stopped)
        begun = {
            path: content
            for path in (folder / "store").rglob("*.metadata")
            if b"COPY_SEGMENT_STARTED" in (content := path.read_bytes())
        }
        async with (
            open_archive(folder / "store") as archive,
            running_archiver(
                bootstrap, archive, topic, spool_dir=folder / "spool", **{**SMALL, **changes}
            ) as (manager, cluster),
        ):
            await until(
                manager, archived_up_to(topic, dict.fromkeys(range(partitions), MEETING_COUNT))
            )
            other.send(signal.SIGCONT)
            ends = dict.fromkeys(range(partitions), 2 * MEETING_COUNT)
            await asyncio.to_thread(produce, bootstrap, topic, partitions, MEETING_COUNT)
            await until(manager, archived_up_to(topic, ends))
            assert other.running
            assert not other.stopped
            if label == OVERTAKEN_TOO_LATE:  # then the woken one finishes a copy for certain
                await until_true(lambda: any(_content(p) != begun[p] for p in begun))
            await asyncio.sleep(1)  # by then the woken one has written its pending data
            other.send(signal.SIGSTOP)  # a look at the writes of both needs them unchanged
            finished = visible = 0
            for tp in await tps(cluster, topic):
                visible += len((await archive.view(tp)).segments)
                segments = archive.rlmm.list_remote_log_segments(tp)
                finished += sum(s.state.name == "COPY_SEGMENT_FINISHED" for s in segments)
                expected = await broker_batches(cluster, tp, 0, 2 * MEETING_COUNT)
                assert await readable(archive, tp) == expected
            report = await verify_archive(archive.storage, archive.rlmm, chunk_bytes=10_000)
            assert report.clean, report.faults
            assert gaps_of(report) == []
            return finished, visible
