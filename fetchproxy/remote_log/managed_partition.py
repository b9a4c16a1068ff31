"""How one partition of an archiver stands: what its last turn has come to, said once."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from fetchproxy.errors import CompactedLog, FetchProxyError, RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.sparing_warnings import SparingWarnings
from fetchproxy.remote_log.concerns import ArchiverConcerns, Concern
from fetchproxy.remote_log.disk_troubles import DiskTroubles
from fetchproxy.remote_log.partition_steps import PartitionSteps

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ManagedPartition:
    tip: TopicIdPartition
    steps: PartitionSteps
    concerns: ArchiverConcerns
    warnings: SparingWarnings
    disk: DiskTroubles
    last_error: str | None = None
    last_success_ms: int | None = None
    stopped: bool = False
    given_up: bool = False  # for good, until a restart
    led: bool = False  # by us, when the leadership last changed

    async def stop(self, error: FetchProxyError) -> None:
        """Nothing that was archived is overwritten: what is right only an operator can say."""
        await self.steps.release()
        # From here on nothing is awaited until the turn is over.
        self.given_up = isinstance(error, CompactedLog)
        self.last_error = str(error)
        self.stopped = True
        self.concerns.hold(Concern.PARTITION_STOPPED, self.tip, str(error))

    def note_failure(self, error: Exception) -> None:
        message = str(error) or type(error).__name__
        if isinstance(error, OSError):
            self.disk.failed(self.tip, error)
        if self.stopped:
            return  # that is what somebody must hear of, whatever keeps us from looking again
        # A store that fails does so for all: one line a minute, not one for each partition.
        about = "store" if isinstance(error, RemoteStorageError) else self.tip.topic
        self.warnings.warn(
            "partition_process_failed",
            about,
            topic=self.tip.topic,
            partition=self.tip.partition,
            error=message,
        )
        self.last_error = message

    def note_success(self, now_ms: int) -> None:
        if self.last_error is not None:
            self.warnings.info(
                "partition_recovered",
                self.tip.topic,
                topic=self.tip.topic,
                partition=self.tip.partition,
            )
        self.stopped = False
        self.disk.over(self.tip)
        if self.steps.leads:
            self.concerns.release(Concern.PARTITION_STOPPED, self.tip)
        else:  # what its leader says of it stands
            self.concerns.forget(self.tip, Concern.PARTITION_STOPPED)
        self.last_error = None
        self.last_success_ms = now_ms

    async def drop(self) -> None:
        """Another archiver's from now on, or nobody's."""
        self.concerns.forget(self.tip, Concern.PARTITION_STOPPED)
        self.disk.over(self.tip)
        log.info("partition_unassigned", topic=self.tip.topic, partition=self.tip.partition)
        await self.steps.release()
