"""A process logs its archive at its start; if the store is away then, after the outage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import cast
from uuid import uuid4

from faulty_store import NO_FAULTS, OUTAGE, FaultyObjectStore
from memory_object_store import MemoryObjectStore
from structlog.testing import capture_logs
from virtual_loop import VirtualTimeLoop, run_virtual

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ArchiveOnlyConfig, Config, MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.own_archive import ARCHIVE_LOOK_INTERVAL_S, OwnArchive


def test_an_archive_is_found_after_an_outage(tmp_path: Path) -> None:
    config = Config(
        archive=ArchiveConfig(topics=".*", spool_dir=tmp_path),
        archive_only=ArchiveOnlyConfig(enabled=True),  # with this setting it asks no broker
    )

    async def main() -> None:
        store = FaultyObjectStore(MemoryObjectStore(), Random(1))
        storage = RemoteStorage(store)
        async with storage, StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm:
            nobody = cast("Cluster", None)
            own_archive = OwnArchive(
                config, storage, rlmm, nobody, uuid4, archives=True, create=True
            )
            await own_archive.confirm()
            store.faults = OUTAGE
            with capture_logs() as logs:
                running = asyncio.create_task(own_archive.run())
                await asyncio.sleep(2.5 * ARCHIVE_LOOK_INTERVAL_S)
                assert "archive_found" not in {entry["event"] for entry in logs}
                store.faults = NO_FAULTS
                await asyncio.sleep(3 * ARCHIVE_LOOK_INTERVAL_S)
                assert [entry["event"] for entry in logs].count("archive_found") == 1
                running.cancel()
                await asyncio.wait([running])

    run_virtual(main, VirtualTimeLoop)
