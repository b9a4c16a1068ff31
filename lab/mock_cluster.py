"""librdkafka's mock cluster as a server process: the real protocol over TCP without Java.

Its brokers keep only the last 5 MiB (or 100,000 records) of each partition. It is a process of its
own, so its CPU time and locks are separate from the test's.

Its limits: ListOffsets answers -1 as timestamp; there is no DeleteRecords; CreateTopics and
DescribeCluster time out, so topics appear on first use, always with 4 partitions.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient

from lab.errors import PartFailed
from lab.process import OneProcess, ServerProcess

# The cluster belongs to a producer that must stay alive. The producer's metadata has the addresses.
_OWNER = """
import json, os, sys, threading
from confluent_kafka import Producer

broker_count, answer_file = int(sys.argv[1]), sys.argv[2]
owner = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": broker_count})
brokers = owner.list_topics(timeout=30).brokers.values()
addresses = {broker.id: f"{broker.host}:{broker.port}" for broker in brokers}
with open(answer_file + ".part", "w") as answer:
    json.dump(addresses, answer)
os.rename(answer_file + ".part", answer_file)
threading.Event().wait()
"""


class MockCluster(OneProcess):
    """`with MockCluster(broker_count=3) as cluster: … cluster.bootstrap`."""

    def __init__(self, broker_count: int = 1) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lab-mock-"))
        self._response = self._folder / "addresses.json"
        self._addresses: dict[int, str] = {}
        command = [sys.executable, "-c", _OWNER, str(broker_count), str(self._response)]
        self._process = ServerProcess("mock cluster", command, self._folder / "log")

    @property
    def addresses(self) -> dict[int, str]:
        """`host:port` by broker id."""
        if not self._addresses:
            raise PartFailed("the mock cluster has not been started")
        return dict(self._addresses)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def start(self) -> None:
        """Raises PartFailed. A killed cluster cannot be restored: its log was in memory."""
        self._server().start()
        self._server().wait_until(self._response.exists, timeout_s=60.0)
        addresses = json.loads(self._response.read_text())
        self._addresses = {int(broker_id): address for broker_id, address in addresses.items()}

    def topic_on_several_brokers(self, name: str) -> tuple[str, list[int]]:
        """A topic and the leaders of its partitions, which are on at least two brokers.

        The mock cluster chooses leaders at random when it creates a topic, so topics `name-0`,
        `name-1` … are created until one fits.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for number in range(100):
            topic = f"{name}-{number}"
            partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions
            leaders = [partitions[partition].leader for partition in sorted(partitions)]
            if len(set(leaders)) > 1:
                return topic, leaders
        raise PartFailed("no topic has its partitions on several brokers")

    def stop(self) -> None:
        self._server().stop(timeout_s=2.0)
        shutil.rmtree(self._folder, ignore_errors=True)
