"""A broker's log directory made by hand, with one partition's rolled segments. Not a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import pack

from fastcrc.crc32 import iscsi as crc32c
from planted_archive import TP

from fetchproxy.model import AbortedTxn, EpochStart
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.segments.side_files import encode_aborted, encode_epochs
from fetchproxy.writing.sources.log_dirs import RolledSegment, list_partition, rolled_at

CLUSTER_ID = "kJ_0gHjKTzKWhEV_zzzzzz"


def plant_log_dir(path: Path, node_id: int = 1, cluster_id: str = CLUSTER_ID) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    lines = f"#\n#Fri Nov 21 08:00:00 UTC 2025\nnode.id={node_id}\nversion=1\n"
    (path / "meta.properties").write_text(f"{lines}cluster.id={cluster_id}\n")
    return path


def plant_partition(log_dir: Path, epochs: Sequence[EpochStart] = (EpochStart(0, 0),)) -> Path:
    folder = log_dir / f"{TP.topic}-{TP.partition}"
    folder.mkdir(parents=True)
    topic_id = uuid_text(TP.topic_id)
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    (folder / "leader-epoch-checkpoint").write_bytes(encode_epochs(epochs))
    return folder


def plant_segment(
    folder: Path, base: int, batches: Iterable[bytes], aborted: Sequence[AbortedTxn] = ()
) -> Path:
    log = folder / f"{base:020d}.log"
    log.write_bytes(b"".join(batches))
    if aborted:
        (folder / f"{base:020d}.txnindex").write_bytes(encode_aborted(aborted))
    return log


def plant_kafka_files(folder: Path, base: int, end: int) -> tuple[bytes, bytes, bytes]:
    """Offset index, time index, and the producer snapshot at `end` (inclusive)."""
    body = bytes(range(30))
    snapshot = pack(">hI", 1, crc32c(body)) + body
    files = pack(">iiii", 9, 0, 19, 170), pack(">qi", 19, 9), snapshot
    for (offset, suffix), content in zip(
        ((base, "index"), (base, "timeindex"), (end + 1, "snapshot")), files, strict=True
    ):
        (folder / f"{offset:020d}.{suffix}").write_bytes(content)
    return files


def rolled(folder: Path, position: int) -> RolledSegment:
    segments, txn_indexes = list_partition(folder)
    rolled_segment = rolled_at(segments, position)
    assert rolled_segment is not None
    return RolledSegment(TP, folder, txn_indexes, *rolled_segment, position)
