"""Names and small files of a broker's log directory."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from planted_archive import TP, batch
from planted_log_dir import CLUSTER_ID, plant_log_dir, plant_partition, plant_segment

from fetchproxy.errors import ConfigError, LogDirUnusable
from fetchproxy.model import EpochStart, TopicIdPartition
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.writing.sources.log_dirs import (
    LogDir,
    list_partition,
    log_dir_of,
    open_log_dir,
    read_epochs,
)


def test_a_directory_says_whose_it_is(tmp_path: Path) -> None:
    assert open_log_dir(plant_log_dir(tmp_path, 7)) == LogDir(tmp_path, CLUSTER_ID, 7)
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=ab\\=\\=\n")
    assert open_log_dir(tmp_path) == LogDir(tmp_path, "ab==", 3)


@pytest.mark.parametrize(
    "content", [None, "", "node.id=1\n", "cluster.id=a\n", "node.id=x\ncluster.id=a\n"]
)
def test_another_directory_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "meta.properties").write_text(content)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        open_log_dir(tmp_path)


def test_a_partition_is_found_by_name_and_topic_id(tmp_path: Path) -> None:
    dirs = [open_log_dir(plant_log_dir(tmp_path / name)) for name in ("a", "b")]
    with pytest.raises(LogDirUnusable, match="no folder orders-0"):
        log_dir_of(dirs, TP)
    for other in (".0123-delete", ".0123-future", ".0123-stray"):
        plant_partition(tmp_path / "a").rename(tmp_path / "a" / f"orders-0{other}")
    folder = plant_partition(tmp_path / "b")
    assert log_dir_of(dirs, TP) == folder
    with pytest.raises(LogDirUnusable, match="another topic of this name"):
        log_dir_of(dirs, TopicIdPartition(UUID(int=2), TP.topic, TP.partition))
    # The same name in two directories: one belongs to an older topic of this name.
    older = plant_partition(tmp_path / "a")
    (older / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_text(UUID(int=2))}\n")
    assert log_dir_of(dirs, TP) == folder


def test_only_segments_of_exact_names_are_listed(tmp_path: Path) -> None:
    folder = plant_partition(tmp_path)
    plant_segment(folder, 40, [batch(40)])
    plant_segment(folder, 0, [batch(0)])
    for name in (
        f"{10:020d}.log.deleted",
        f"{11:020d}.log.swap",
        f"{12:020d}.log.cleaned",
        f"{13:020d}.index",
        "14.log",
        f"{15:021d}.log",
        f"{40:020d}.txnindex",
        f"{41:020d}.txnindex.deleted",
    ):
        (folder / name).write_bytes(b"")
    assert list_partition(folder) == ([0, 40], [40])


def test_the_brokers_leader_epochs(tmp_path: Path) -> None:
    folder = plant_partition(tmp_path, [EpochStart(0, 0), EpochStart(4, 17)])
    assert read_epochs(folder) == (EpochStart(0, 0), EpochStart(4, 17))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n")
    with pytest.raises(LogDirUnusable, match="leader-epoch-checkpoint"):
        read_epochs(folder)
    (folder / "leader-epoch-checkpoint").unlink()
    assert read_epochs(folder) is None
