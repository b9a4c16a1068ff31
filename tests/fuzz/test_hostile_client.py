"""A hostile client beside a well-behaved one: the proxy lives, leaks nothing, and serves the other.

The hostile frames are real clients' requests, mutated (`frame_mutations`). What is sound enough to
be relayed reaches a real broker.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from archived_topics import SETTINGS, archive_and_trim, new_topic
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess, wait_for
from topic_data import produce

from lab.kafka import KafkaServer

HERE = Path(__file__).parent
ARCHIVED_RECORDS = 1_000
WARM_UP_FRAMES = 10_000  # caches, codecs and the allocator reach their working size
# What a process may grow beyond that. One leaked session is 10 KiB and more, so a leak on every
# hundredth connection of the shortest run would already be seen.
GROWTH_BYTES_MAX = 24 << 20


@dataclass
class Field:
    proxy: ProxyProcess
    topic_id: UUID

    def attack(self, seed: int, frames: int) -> dict[str, int]:
        """Send so many hostile frames; what the sender counted."""
        command = [sys.executable, str(HERE / "hostile_client.py"), self.proxy.bootstrap]
        result = subprocess.run(
            [*command, str(self.topic_id), str(seed), str(frames)], capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr[-3000:]
        counted: dict[str, int] = json.loads(result.stdout)
        assert counted["sent"] == frames
        return counted

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.proxy.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.proxy.pid}/fd"))

    def what_is_open(self) -> str:
        """Files, and of sockets the addresses and state as /proc/net/tcp has them."""
        links = [os.readlink(each) for each in Path(f"/proc/{self.proxy.pid}/fd").iterdir()]
        sockets = Path("/proc/net/tcp").read_text().splitlines()
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        socket_lines = [line for line in sockets if inodes & {*line.split()[9:10]}]
        return "\n".join(sorted(links) + socket_lines)


@pytest.fixture(scope="module")
def field(
    module_kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "store").mkdir()
    store = (folder / "store").as_uri()
    module_kafka_server.create_topic("well-behaved")
    settings = {**SETTINGS, "limits.serving.half_frame_max_ms": 5_000}
    with ProxyProcess(
        module_kafka_server.bootstrap, store, folder, archive="replayed|fuzzed", settings=settings
    ) as proxy:
        for name, partitions in (("replayed", 1), ("fuzzed", 2)):
            data = new_topic(module_kafka_server, name, partitions)
            produce(
                module_kafka_server.bootstrap, data, ARCHIVED_RECORDS, partition_count=partitions
            )
            archive_and_trim(module_kafka_server.bootstrap, store, data)
        admin = AdminClient({"bootstrap.servers": module_kafka_server.bootstrap})
        (described,) = admin.describe_topics(TopicCollection(["fuzzed"])).values()
        topic_id = base64.urlsafe_b64decode(f"{described.result().topic_id}==")
        yield Field(proxy, UUID(bytes=topic_id))


@contextmanager
def well_behaved_client(field: Field) -> Iterator[Callable[[], dict[str, object]]]:
    """Runs beside the attack; the callable ends it and gives what it told."""
    command = [sys.executable, str(HERE / "well_behaved_client.py"), field.proxy.bootstrap]
    command += ["replayed", str(ARCHIVED_RECORDS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:

        def end() -> dict[str, object]:
            output, complaints = process.communicate("")
            assert process.returncode == 0, complaints[-3000:]
            result: dict[str, object] = json.loads(output)
            return result

        try:
            yield end
        finally:
            process.kill()


@pytest.mark.kafka
@pytest.mark.parametrize(
    "frames", [15_000, pytest.param(1_000_000, marks=pytest.mark.slow)], ids=["some", "a million"]
)
def test_hostile_frames_harm_nobody_else(field: Field, frames: int) -> None:
    proxy = field.proxy
    idle_files = field.open_files()
    with well_behaved_client(field) as end_well_behaved:
        field.attack(seed=1, frames=WARM_UP_FRAMES)
        warm_bytes = field.resident_bytes()
        counted = field.attack(seed=2, frames=frames)
        assert counted["answered"] > counted["connections"] / 10, "most must get past the start"
        growth = field.resident_bytes() - warm_bytes
        outcome = end_well_behaved()
    assert outcome["fault"] is None
    assert outcome["rounds"] >= 3
    assert proxy.running
    for event in ("session_crashed", "part_failed", "library_message"):
        assert not proxy.logged(event), proxy.logged(event)[0]
    assert growth <= GROWTH_BYTES_MAX
    try:
        wait_for("closed connections", lambda: field.open_files() <= idle_files + 4)
    except AssertionError as late:
        late.add_note(f"{idle_files} were open before; now:\n{field.what_is_open()}")
        raise
