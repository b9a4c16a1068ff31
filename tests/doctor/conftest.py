"""What the set-ups share: a mock cluster, a broker with users, its certificate's authority."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from confluent_kafka.admin import AdminClient
from folder_fixture import folder_fixture
from secured_clients import USERS
from set_up import SetUp, new_set_up

from lab.mock_cluster import MockCluster
from lab.secured_kafka import SecuredKafka


@folder_fixture
def mock() -> Iterator[MockCluster]:
    """One mock broker for the folder. Never stop it."""
    with MockCluster() as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for topic in ("orders-1", "orders-2"):  # a look at a topic makes it
            admin.list_topics(topic, timeout=60)
        yield cluster


@folder_fixture
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@folder_fixture
def secured(serve_part, authority: Authority) -> Iterator[SecuredKafka]:
    """A broker with users and ACLs; its administrators' listener needs none. Never stop it."""
    keystore = authority.issue("broker", hosts=("127.0.0.1",))
    yield from serve_part("kafka", SecuredKafka(USERS, keystore=keystore))


@pytest.fixture
def plain(tmp_path: Path, mock: MockCluster) -> SetUp:
    """In front of the mock cluster, with a folder as its store."""
    return new_set_up(tmp_path, mock.bootstrap)


@pytest.fixture
def real(tmp_path: Path, secured: SecuredKafka) -> SetUp:
    """In front of a real broker, as an administrator."""
    return new_set_up(tmp_path, secured.bootstrap)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 512 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)
