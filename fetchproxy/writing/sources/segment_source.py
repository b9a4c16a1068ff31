"""The archiver's segment source, and the spool in which it accumulates segments."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import IO, Self

import structlog
from fetchproxy_protocol.record_batch import BatchHeader

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import LogTruncated
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVE_THROTTLE_SECONDS
from fetchproxy.runtime.fairness import TokenBucket
from fetchproxy.segments.contents import AccumulatedSegment, SegmentSummary
from fetchproxy.storage.ciphers import KEY_BYTES, stream_at

# The folder where segments are accumulated before they are copied. Its content is never trusted.
#
# Each process has its own folder below `archive.spool_dir` and holds a lock in it, so that the next
# start can tell leftovers of a killed process from the folder of a running archiver.

log = structlog.get_logger(__name__)

_PREFIX = "fetchproxy-spool-"
_LOCK = "lock"


class Spool:
    """`async with`: creates the folder and removes leftovers; on exit it removes the folder with
    its files. `encrypted`: each file is encrypted with its own key, which never leaves the memory.
    """

    def __init__(self, spool_dir: Path | None, *, encrypted: bool = False) -> None:
        self._encrypted = encrypted
        self._parent = spool_dir or Path(tempfile.gettempdir())
        self._folder: Path | None = None
        self._lock: IO[bytes] | None = None
        self._files = 0
        self.size_bytes = 0  # of all segments being accumulated; their writers keep it

    async def __aenter__(self) -> Self:
        """Raises OSError if the folder cannot be created."""
        await asyncio.to_thread(self._remove_leftovers)
        # Not in the thread, which goes on after a cancelled start and would leave a folder.
        self._take_folder()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._lock is not None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._lock.close()

    def new_file(self) -> Path:
        """A path in the folder that was never used before. The file is not created."""
        if self._folder is None:
            raise RuntimeError("the spool is not open")
        self._files += 1
        return self._folder / f"{self._files:08d}.log"

    def new_key(self) -> bytes | None:
        """The key of a new file. None: files are not encrypted."""
        return os.urandom(KEY_BYTES) if self._encrypted else None

    def _take_folder(self) -> None:
        while True:
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
            self._lock = (self._folder / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self._folder / _LOCK).exists():
                return
            # Another starting process took it for a leftover before it was locked.
            self._lock.close()

    def _remove_leftovers(self) -> None:
        self._parent.mkdir(parents=True, exist_ok=True)
        for folder in self._parent.glob(f"{_PREFIX}*"):
            try:
                if os.lstat(folder).st_uid != os.geteuid():
                    continue  # in /tmp any user may create such a folder
                with (folder / _LOCK).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            except FileNotFoundError:
                continue  # another archiver is just starting, or has just removed it
            except BlockingIOError:
                continue  # in use
            except OSError as error:
                # Perhaps another user's: it costs disk space but harms nothing.
                log.warning("spool_leftover_not_deleted", path=os.fspath(folder), error=str(error))


@dataclass(frozen=True, slots=True)
class LogGap:
    """The log does not have the position any more: it begins above it."""

    log_start_offset: int


@dataclass(eq=False, repr=False)
class SegmentAccumulator(ABC):
    """Accumulates one partition's next segment. Its PartitionArchiver calls one method at a
    time.
    """

    tp: TopicIdPartition
    spool: Spool
    _: KW_ONLY
    cluster: Cluster
    pace: CopyPace
    # As last known. None: not known yet.
    log_start_offset: int | None = None
    last_stable_offset: int | None = None
    # The segment being accumulated or waiting to be copied. None or no bytes: nothing is
    # accumulated.
    accumulated: SegmentSummary | None = None
    closed: AccumulatedSegment | None = None  # waiting to be copied

    @abstractmethod
    async def accumulate(
        self, position: int, *, close_short: bool
    ) -> AccumulatedSegment | LogGap | None:
        """Return the closed segment that begins at `position`. None: it cannot be closed yet.

        Accumulated data stay over calls with the same position; another position drops them.
        `close_short`: close the segment with the available records, even if it is short. A source
        whose segments the broker closes ignores it.

        Raises LogTruncated if the log ends below `position`, CorruptSegment, ClusterError, and
        OSError of the disk. After any error except a ClusterError the accumulated data are
        unusable: call `discard`.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Drop the accumulated data and free the disk space. Idempotent."""

    async def find_log_start(self) -> int:
        """The current log start. Raises ClusterError."""
        return (await self._log_offsets()).log_start_offset

    async def _log_offsets(self) -> LogOffsets:
        now = asyncio.get_running_loop().time()
        log_offsets = await self.cluster.log_offsets(self.tp, not_older_than=now)
        self.log_start_offset = log_offsets.log_start_offset
        self.last_stable_offset = log_offsets.last_stable_offset
        return log_offsets

    def _gap(self, position: int, log_offsets: LogOffsets) -> LogGap | None:
        """None: there is no gap. Raises LogTruncated if the log ends below `position`."""
        if position > log_offsets.high_watermark:
            raise LogTruncated(
                f"{self.tp} ends at offset {log_offsets.high_watermark}, archived up to {position}"
            )
        return (
            LogGap(log_offsets.log_start_offset)
            if position < log_offsets.log_start_offset
            else None
        )


# Accumulates one segment's batches in a spool file. Uploads nothing and decides nothing about them.
#
# The file is open only during each write, because there may be more partitions than file handles.


class SpoolFull(OSError):
    """The spool's disk has no room left."""


class SegmentWriter:
    """`began_at` is the loop time (s) of the first append, None before it."""

    def __init__(self, tp: TopicIdPartition, start_offset: int, spool: Spool) -> None:
        self.summary = SegmentSummary(tp, start_offset)
        self.size_bytes = 0  # of the file; 0 after `discard`
        self.began_at: float | None = None
        self._spool = spool
        self._path = spool.new_file()
        self._stream_key = spool.new_key()

    @property
    def position(self) -> int:
        return self.summary.position

    async def append(
        self,
        records: memoryview,
        headers: Sequence[BatchHeader],
        aborted: Iterable[tuple[int, int]],
        leader_epoch: int = -1,
    ) -> None:
        """`headers`: consecutive batches in `records`. `aborted`: as their fetch reported.
        `leader_epoch`: of the leader that was fetched from; -1: not known.

        Raises SpoolFull if the disk has no room for them: the data before stay as they were. Raises
        CorruptSegment if they do not continue the log, OSError from the disk. After either of
        these, or a cancellation, the writer is unusable.
        """
        if not headers:
            return
        first, last = headers[0], headers[-1]
        chunk = records[first.position : last.end]
        self._spool.size_bytes += len(chunk)
        self.size_bytes += len(chunk)
        try:
            await asyncio.to_thread(self._append_file, chunk, self.size_bytes)
        except SpoolFull:
            self._spool.size_bytes -= len(chunk)
            self.size_bytes -= len(chunk)
            raise
        if self.began_at is None:
            self.began_at = asyncio.get_running_loop().time()
        self.summary.report(aborted)
        for header in headers:
            self.summary.add(records, header, leader_epoch)

    def close(self) -> AccumulatedSegment:
        """At least one batch must have been appended."""
        closed = self.summary.close(self._path, settled=True)
        return replace(closed, stream_key=self._stream_key)

    async def discard(self) -> None:
        """Free the disk space. Idempotent."""
        self._spool.size_bytes -= self.size_bytes
        self.size_bytes = 0
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    def _append_file(self, chunk: memoryview, size_after: int) -> None:
        size_before = size_after - len(chunk)
        if self._stream_key is not None:
            chunk = memoryview(stream_at(self._stream_key, size_before).update(chunk))
        try:
            with self._path.open("ab", buffering=0) as file:
                _write_all(file, chunk)
                if file.tell() != size_after:
                    raise OSError(
                        f"spool file {self._path} has {file.tell()} bytes; expected {size_after}"
                    )
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            if self._path.exists():
                os.truncate(self._path, size_before)
            raise SpoolFull(error.errno, f"no room in the spool: {error}") from error
        self.summary.add_bytes(chunk)


def _write_all(file: io.FileIO, chunk: memoryview) -> None:
    """Write in a loop: a nearly full disk takes a part and fails at the next write."""
    while chunk:
        chunk = chunk[file.write(chunk) :]


# Limits how fast the archiver reads from the brokers, over all partitions together.
#
# `archive.copy_bytes_per_s_max` is Kafka's remote.log.manager.copy.max.bytes.per.second (KIP-956).
# It limits the sources: bytes that are not fetched cost neither broker nor store.

_ACCUMULATE_MAX_S = 60.0


class CopyPace:
    """One for all partitions of an archiver; first come, first served. 0: no limit."""

    def __init__(self, bytes_per_s_max: int) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._bucket = TokenBucket(bytes_per_s_max, 0.0) if bytes_per_s_max else None
        self._turns = asyncio.Lock()

    def step(self, bytes_max: int) -> int:
        """The limit of one read: at most one second's bytes, to keep the debt short."""
        return min(bytes_max, self._bytes_per_s_max or bytes_max)

    async def turn(self, until: float | None) -> bool:
        """Wait until no debt is left. False: some is left at `until` (loop time, s)."""
        if self._bucket is None:
            return True
        clock = asyncio.get_running_loop().time
        began_at = clock()
        try:
            async with asyncio.timeout_at(until), self._turns:
                # The next caller waits for the bytes that other reads bring meanwhile.
                await asyncio.sleep(self._bucket.owed_s(clock()))
        except TimeoutError:
            return False
        finally:
            ARCHIVE_THROTTLE_SECONDS.inc(clock() - began_at)
        return True

    def spend(self, size_bytes: int) -> None:
        """Count the bytes of a read."""
        if self._bucket is not None:
            self._bucket.spend(size_bytes, asyncio.get_running_loop().time())


def accumulate_until() -> float:
    """The loop time (s) until which a turn waits for the rate. The next turn goes on from there."""
    return asyncio.get_running_loop().time() + _ACCUMULATE_MAX_S
