"""A whole RemoteLogManager keeps a local index beside its archive, as leader or follower."""

from __future__ import annotations

from pathlib import Path

from archive_harness import archived_up_to, open_archive, running_archiver, until, until_true
from confluent_kafka import Producer

from fetchproxy.segments.object_keys import SegmentFile, partition_folder
from fetchproxy.storage.index_files import LOG_INDEX, SUFFIXES
from lab.mock_cluster import MockCluster

TOPIC = "weather"


def produce(bootstrap: str, count: int, partitions: int) -> None:
    client = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 10_000})
    for number in range(count * partitions):
        client.produce(TOPIC, value=bytes(200), partition=number % partitions)
    assert client.flush(180) == 0


async def test_the_local_index_is_the_store_s_index_objects_of_every_partition(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    produce(mock_cluster.bootstrap, 1_000, partitions=4)
    folder = tmp_path / "index"
    keys = {
        "segment_bytes_max": 20_000,
        "local_index_dir": folder,
        "local_index_file_bytes_max": 1_024,
        "remote_refresh_interval_ms": 0,
    }
    ends = {partition: 1_000 for partition in range(4)}
    async with open_archive(tmp_path / "store") as archive:

        async def stored(partition_tp: object) -> bytes:
            view = await archive.view(partition_tp)  # type: ignore[arg-type]
            objects = [await archive.object(s, SegmentFile.INDEX) for s in view.segments]
            assert len(objects) > 5
            return b"".join(objects)

        def local(tp: object) -> bytes:
            place = folder / partition_folder("", tp)  # type: ignore[arg-type]
            return b"".join(p.read_bytes() for p in sorted(place.glob(f"*.{LOG_INDEX}")))

        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **keys) as (manager, _):
            await until(manager, archived_up_to(TOPIC, ends))
            tps = [status.tp for status in manager.status()]
            for tp in tps:
                expected = await stored(tp)
                await until_true(lambda tp=tp, expected=expected: local(tp) == expected)
        files = sorted(path for path in folder.rglob("*") if path.suffix[1:] in SUFFIXES)
        assert len(files) > len(SUFFIXES) * len(tps), "rolled"
        # The next process removes another topic's leftovers and mends a torn end.
        newest = [path for path in files if path.suffix == f".{LOG_INDEX}"][-1]
        newest.write_bytes(newest.read_bytes()[:-1])
        (folder / "other-AAAAAAAAAAAAAAAAAAAAAA" / "0").mkdir(parents=True)
        expected = {tp: await stored(tp) for tp in tps}
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **keys) as (manager, _):
            await until_true(lambda: all(local(tp) == expected[tp] for tp in tps))
            await until_true(lambda: not list(folder.glob("other-*")))
