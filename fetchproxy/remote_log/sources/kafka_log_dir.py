"""What lies where in a broker's log directory. Reads names and small files; writes nothing there.

    <log dir>/meta.properties                        cluster.id, node.id
    <log dir>/<topic>-<partition>/partition.metadata      topic id
                                  leader-epoch-checkpoint
                                  <20-digit base offset>.log .index .timeindex .txnindex .snapshot

A snapshot's number is the offset that it stands at, the others' that of their segment's first
record. Folders that the broker is about to remove, or still fills, have other names (`-delete`,
`-stray`, `-future`), and so have files (`.deleted`, `.cleaned`, `.swap`): whoever looks for exact
names never meets them. All functions block. Source: Kafka's UnifiedLog, LogFileUtils,
PartitionMetadataFile, MetaProperties.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from fetchproxy.errors import ConfigError, CorruptSegment, LogDirUnusable
from fetchproxy.index.leader_epochs import decode_epochs
from fetchproxy.model import EpochStart, TopicIdPartition
from fetchproxy.storage.layout import parse_uuid

LOG = "log"
OFFSET_INDEX = "index"
TIME_INDEX = "timeindex"
TXN_INDEX = "txnindex"
SNAPSHOT = "snapshot"

_NUMBERED = re.compile(r"([0-9]{20})\.(log|txnindex)", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogDir:
    path: Path
    cluster_id: str
    node_id: int


@dataclass(frozen=True, slots=True)
class PartitionListing:
    """Base offsets, rising: of all segments (the last one is active) and of transaction indexes."""

    segments: tuple[int, ...]
    txn_indexes: tuple[int, ...]


def open_log_dir(path: Path) -> LogDir:
    """Raises ConfigError where `path` is no broker's log directory or cannot be read."""
    file = path / "meta.properties"
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        os.scandir(path).close()
    except OSError as error:
        raise ConfigError(
            f"archive.log_dirs: {path} is no log directory of a broker that can be read: "
            f"{error.strerror}: {error.filename}"
        ) from error
    found = dict(
        (name.strip(), value.strip())
        for name, _, value in (line.partition("=") for line in lines if not line.startswith("#"))
    )
    node_id = found.get("node.id", found.get("broker.id", ""))  # `broker.id` before KRaft
    if "cluster.id" not in found or not re.fullmatch(r"[0-9]{1,10}", node_id, re.ASCII):
        raise ConfigError(f"archive.log_dirs: {file} does not say cluster.id and node.id")
    # Java escapes = and : where it writes properties.
    return LogDir(path, found["cluster.id"].replace("\\", ""), int(node_id))


def partition_folder(log_dirs: Iterable[LogDir], tip: TopicIdPartition) -> Path:
    """Raises LogDirUnusable where none holds this incarnation of the topic."""
    wrong = None
    for log_dir in log_dirs:
        folder = log_dir.path / f"{tip.topic}-{tip.partition}"
        try:
            found = _topic_id((folder / "partition.metadata").read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            found = None
        if found == tip.topic_id:
            return folder
        wrong = f"{folder} is of another topic of this name"
    raise LogDirUnusable(wrong or f"no folder {tip} in archive.log_dirs; are these all log.dirs?")


def list_partition(folder: Path) -> PartitionListing:
    """One listing: names that come or go meanwhile may be missing."""
    found: dict[str, list[int]] = {LOG: [], TXN_INDEX: []}
    for name in os.listdir(folder):
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            found[match.group(2)].append(int(match.group(1)))
    return PartitionListing(tuple(sorted(found[LOG])), tuple(sorted(found[TXN_INDEX])))


def file_of(folder: Path, offset: int, suffix: str) -> Path:
    return folder / f"{offset:020d}.{suffix}"


def read_file(folder: Path, offset: int, suffix: str) -> bytes | None:
    """None: there is none."""
    try:
        return file_of(folder, offset, suffix).read_bytes()
    except FileNotFoundError:
        return None


def read_epochs(folder: Path) -> tuple[EpochStart, ...] | None:
    """The leader epochs of the log as its broker knows them; None: there is no checkpoint.

    Raises LogDirUnusable for one that cannot be understood.
    """
    path = folder / "leader-epoch-checkpoint"
    try:
        return decode_epochs(path.read_bytes())
    except FileNotFoundError:
        return None
    except CorruptSegment as error:
        raise LogDirUnusable(f"{path}: {error}") from error


def _topic_id(content: str) -> UUID | None:
    for line in content.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            return parse_uuid(value.strip())
    return None
