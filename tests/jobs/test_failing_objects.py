"""A real S3 server behind a relay that answers 503 for one segment's log: what the jobs say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import typer
from faulty_relay import Fault, Request, faulty_relay, refusal
from planted_archive import PlantedArchive, batch
from stored_archives import PREFIX, config_at

from fetchproxy.auditing.mirroring import MirrorOptions
from fetchproxy.cli.jobs import end_job
from fetchproxy.cli.running import EXIT_USER_ERROR
from fetchproxy.config.schema import StoreConfig
from fetchproxy.jobs.mirror import mirror
from fetchproxy.jobs.runner import Here
from fetchproxy.jobs.verify import verify
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.stores.registry import open_object_store
from lab.s3 import S3Server

SLOW_DOWN = Fault(refusal("503 Slow Down", "SlowDown"))


@pytest.mark.s3
async def test_verify_and_mirror(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    direct = s3_server.store_url(s3_bucket, PREFIX)
    store, _ = open_object_store(direct, StoreConfig(), create=True)
    async with store:
        archive = PlantedArchive(store)  # type: ignore[arg-type]
        for base in range(0, 80, 20):
            await archive.add([batch(base), batch(base + 10)])
    bad = archive.key(archive.segments[2], SegmentFile.LOG)

    def judge(request: Request) -> Fault | None:
        return SLOW_DOWN if bad in request.name else None

    port = s3_server.endpoint_url.rpartition(":")[2]
    async with faulty_relay(int(port)) as relay:
        relay.judge = judge
        config = config_at(direct.replace(f"%3A{port}", f"%3A{relay.port}"))
        copy, options = (tmp_path / "copy").as_uri(), MirrorOptions()
        verified, mirrored = await asyncio.gather(
            asyncio.to_thread(verify, Here(), config),
            asyncio.to_thread(mirror, Here(), config, copy, options, cut_over=True),
        )
        for failures in (verified.failures, mirrored.failures):
            with pytest.raises(typer.Exit) as ended:
                end_job(failures)
            assert ended.value.exit_code == EXIT_USER_ERROR
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"failed: orders-0: {bad}: offsets 40 to 59: get {bad}")
            assert "503 Slow Down" in line
            assert "(tried 4 times); the store returns other objects" in line
        assert (verified.report.segments, verified.report.faults) == (3, [])
        assert sum(partition.copied for partition in mirrored.partitions) == 3
        assert (mirrored.cut_over, mirrored.refused) == (False, "not everything was copied")
        relay.judge = lambda request: None
        again = await asyncio.to_thread(mirror, Here(), config, copy, options)
        assert (again.failures, again.partitions[0].copied) == ((), 1)
