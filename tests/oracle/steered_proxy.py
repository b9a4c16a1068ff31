"""`fetchproxy serve --archive` whose archiver cuts segments where it is told to, as a process.

Everything is the product's (`app.run_server`) but the archiver's clock: it takes a turn only when
asked to, and sees the log only up to the border that it is given. So its segments can be made the
same as those that another Kafka has moved to its own tiered storage.

    python steered_proxy.py BOOTSTRAP STORE_URL PORT CONTROL_PORT

The control port takes one line `TOPIC PARTITION BORDER…` at a time and answers `end N` when the
archive reaches up to the last border, or `error …`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace

from fetchproxy_protocol.record_batch import BatchHeader

from fetchproxy import app
from fetchproxy.brokers.cluster import FetchedPartition
from fetchproxy.config.schema import Config, LogConfig
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.logs import configure_logging
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.serving.limits import ArchiveOnlyLimits
from fetchproxy.writing.completeness_records import CompletenessRecords
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.partition_archiver import PartitionArchiver
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from fetchproxy.writing.sources.fetched_batches import BatchAccumulator
from fetchproxy.writing.sources.segment_accumulator import LogGap
from fetchproxy.writing.spool import Spool

# Small chunks, so that small segments have several. So soon do answers of the tail show where the
# archive begins.
LIMITS = app.Limits(
    serving=ArchiveOnlyLimits(log_start_max_age_ms=1_000), reading=ReadingLimits(chunk_bytes=4096)
)


class BorderedAccumulator(BatchAccumulator):
    """The broker's log as if it ended at `border`."""

    border = 0

    async def read(
        self, position: int, bytes_max: int
    ) -> tuple[FetchedPartition, Sequence[BatchHeader]] | LogGap:
        chunk = await super().read(position, bytes_max)
        if isinstance(chunk, LogGap):
            return chunk
        fetched, headers = chunk
        stable = min(fetched.last_stable_offset, self.border)
        below = [header for header in headers if header.last_offset < self.border]
        return replace(fetched, last_stable_offset=stable), below


class SteeredManager(RemoteLogManager):
    control_port = 0

    async def run(self) -> None:
        self._archivers: dict[TopicIdPartition, tuple[PartitionArchiver, BorderedAccumulator]] = {}
        async with Spool(self.config.spool_dir) as self._spool:
            server = await asyncio.start_server(self._serve, "127.0.0.1", self.control_port)
            async with server:
                await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                topic, partition, *borders = line.decode().split()
                try:
                    response = await self._archive(topic, int(partition), [int(b) for b in borders])
                except Exception as error:  # noqa: BLE001 - shown by the test that asked
                    response = f"error {error!r}"
                writer.write(f"{response}\n".encode())
                await writer.drain()
        finally:
            writer.close()

    async def _archive(self, topic: str, partition: int, borders: list[int]) -> str:
        info = await self.cluster.topic_by_name(topic, max_age_ms=0)
        tp = TopicIdPartition(info.topic_id, topic, partition)
        if tp not in self._archivers:
            accumulator = BorderedAccumulator(
                tp, self._spool, cluster=self.cluster, pace=CopyPace(lambda: 0), config=self.config
            )
            archiver = PartitionArchiver(
                tp,
                accumulator=accumulator,
                rlmm=self.rlmm,
                copier=self.copier,
                truncation=self.truncation,
                records=CompletenessRecords(self.storage.objects, tp),
                check_own_log=self.storage.objects.check_own_log,
            )
            self._archivers[tp] = archiver, accumulator
        archiver, accumulator = self._archivers[tp]
        for border in borders:
            accumulator.border = border
            while await archiver.process(close_short=True):
                pass
        return f"end {archiver.archive_end}"


def configuration(bootstrap: str, store: str, port: str) -> Config:
    assigned = {
        "cluster.bootstrap": bootstrap,
        "store.url": store,
        "gateway.listen": f"127.0.0.1:{port}",
        "log.format": "json",
        "archive.topics": "oracle-.*",
    }
    sections: dict[str, dict[str, object]] = {}
    for key, value in assigned.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    sections["console"] = {"listen": None}
    return Config.model_validate(sections)


def main() -> None:
    bootstrap, store, port, control_port = sys.argv[1:5]
    configure_logging(LogConfig(format="json"), sys.stderr)
    SteeredManager.control_port = int(control_port)
    app.RemoteLogManager = SteeredManager  # type: ignore[misc]
    # As of an archiver that has found its topics; this one learns of each when it is steered.
    app.Parts.is_archiving = lambda parts, tp: tp.topic.startswith("oracle-")  # type: ignore[method-assign]
    asyncio.run(app.run_server(configuration(bootstrap, store, port), limits=LIMITS))


if __name__ == "__main__":
    main()
