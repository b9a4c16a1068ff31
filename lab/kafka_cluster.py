"""Several real Kafka brokers as one KRaft cluster on loopback.

Each broker is a process that a test may stop, kill or freeze. Tests can also move leaders and
replicas between brokers. This module must not hide Kafka's behaviour: it retries no client's
request and waits no longer than a test asks for.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from lab.errors import PartFailed
from lab.kafka import KafkaServer, new_cluster_id
from lab.kafka_versions import KAFKA_VERSION
from lab.process import StartedServer, free_port

if TYPE_CHECKING:
    import kafka
    from confluent_kafka.admin import AdminClient

# Everything has three replicas, so any one broker may be absent. Elections and followers are quick,
# because tests wait for them. There are no unclean elections, because they lose acknowledged
# records.
_CLUSTER: dict[str, str] = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "controlled.shutdown.enable": "true",
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "6000",
    "replica.fetch.wait.max.ms": "100",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "2500",
    "controller.quorum.election.backoff.max.ms": "200",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's leader and replicas in the cluster's metadata. Leader -1: there is none."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]


class KafkaCluster(StartedServer):
    """`with KafkaCluster() as cluster: …`: brokers 1 … `broker_count`, all of them also
    controllers.

    Broker N is in rack `rack-N`. `properties` are for all brokers; `of_node[N]` is added for broker
    N.
    """

    def __init__(
        self,
        broker_count: int = 3,
        properties: Mapping[str, str] | None = None,
        of_node: Mapping[int, Mapping[str, str]] | None = None,
        heap: str = "256m",
        version: str = KAFKA_VERSION,
    ) -> None:
        self.version = version
        self._folder = Path(tempfile.mkdtemp(prefix="lab-kafka-cluster-"))
        self._properties = dict(properties or {})
        self._of_node = dict(of_node or {})
        self._heap = heap
        self._cluster_id = new_cluster_id()
        self._controller_ports = {n: free_port() for n in range(1, broker_count + 1)}
        self._servers = {n: self._server(n) for n in self._controller_ports}

    @property
    def nodes(self) -> dict[int, KafkaServer]:
        """By node id, including brokers that are stopped or killed."""
        return dict(self._servers)

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_of(*self._servers)

    def bootstrap_of(self, *node_ids: int) -> str:
        return ",".join(self._servers[n].bootstrap for n in node_ids)

    def start(self) -> None:
        """Starts all brokers at once, because a broker serves only with a majority of controllers.

        Raises PartMissing (no Java, no jars) and PartFailed (with the end of a broker's log).
        """
        self._each(self._servers, KafkaServer.start)
        self.wait_for_brokers(self._servers)

    def stop(self) -> None:
        """Stops all at once: the last controllers would otherwise wait for a majority."""
        self._each(self._servers, KafkaServer.stop)
        shutil.rmtree(self._folder, ignore_errors=True)

    def lose(self) -> float:
        """SIGKILL of all brokers at once, and the end of their disks: nothing is left to start
        again. Returns when the first one was killed (monotonic, s).
        """
        running = [server for server in self._servers.values() if server.running]
        began_at = monotonic()
        self._each_of(running, KafkaServer.kill)
        shutil.rmtree(self._folder)
        return began_at

    def add_broker(self) -> int:
        """Starts one more broker, without a controller, in its own rack. Returns its node id."""
        node_id = max(self._servers) + 1
        self._servers[node_id] = self._server(node_id)
        self._servers[node_id].start()
        self.wait_for_brokers([node_id])
        return node_id

    def remove_broker(self, node_id: int) -> None:
        """Stops an added broker for good. It must hold no partition any more."""
        self._servers.pop(node_id).stop()

    def create_topic(
        self,
        name: str,
        assignment: Sequence[Sequence[int]],
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Creates one partition for each list of replicas, led by its first; returns the name.

        Raises confluent_kafka.KafkaException, for example if the topic exists.
        """
        from confluent_kafka.admin import NewTopic

        replicas = [list(of_partition) for of_partition in assignment]
        new = NewTopic(name, len(replicas), replica_assignment=replicas, config=dict(config or {}))
        admin = self._admin()  # it must live until the response is there
        admin.create_topics([new], operation_timeout=30.0)[name].result(timeout=60.0)
        node_ids = [node_id for node_id, server in self._servers.items() if server.running]
        _wait(
            f"leaders of {name}, as all brokers see them",
            lambda: all(self._led(name, len(replicas), node_id) for node_id in node_ids),
        )
        return name

    def partitions(self, topic: str, node_id: int | None = None) -> dict[int, PartitionState]:
        """The view of the given broker, or of any living one, which may be slightly behind. It is
        empty if the broker does not know the topic. Raises confluent_kafka.KafkaException if no
        broker answers."""
        partitions_by_id = (
            self._admin(node_id).list_topics(topic, timeout=20.0).topics[topic].partitions
        )
        return {
            p: PartitionState(state.leader, tuple(state.replicas), frozenset(state.isrs))
            for p, state in partitions_by_id.items()
        }

    def brokers(self) -> set[int]:
        """The node ids that are registered and not fenced. Raises KafkaException."""
        return set(self._admin().list_topics(timeout=20.0).brokers)

    def wait_for_brokers(self, node_ids: Collection[int]) -> None:
        expected_ids = set(node_ids)
        _wait(f"brokers {sorted(expected_ids)}", lambda: expected_ids <= self.brokers())

    def wait_for_in_sync(self, topic: str) -> None:
        """Waits until every replica of every partition is in sync."""
        _wait(
            f"{topic} in sync",
            lambda: all(
                s.leader >= 0 and s.in_sync == set(s.replicas)
                for s in self.partitions(topic).values()
            ),
        )

    def reassign(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        """Gives partitions other replicas (the first is the preferred leader) and waits until they
        are in sync. A leader that is among the new replicas stays leader: see `move_leaders`."""
        from kafka import TopicPartition

        assignments = {
            TopicPartition(topic, p): list(replicas) for p, replicas in assignment.items()
        }
        with _Admin(self.bootstrap) as admin:
            refused = admin.alter_partition_reassignments(assignments)
        for partition, error in refused.items():
            if error is not None:
                raise PartFailed(f"{partition} to {assignments[partition]}: {error}")

        def done() -> bool:
            states = self.partitions(topic)
            return all(
                set(states[p].replicas) == set(replicas) == states[p].in_sync
                for p, replicas in assignment.items()
            )

        _wait(f"{topic} at {dict(assignment)}", done)

    def move_leaders(self, topic: str, leaders: Mapping[int, int]) -> None:
        """Makes the given node, one of the replicas, leader. Each move is a new leader epoch."""
        states = self.partitions(topic)
        turned = {
            p: [leader, *(n for n in states[p].replicas if n != leader)]
            for p, leader in leaders.items()
        }
        self.reassign(topic, turned)
        self.elect_preferred(topic, leaders)
        _wait(
            f"{topic} led by {dict(leaders)}",
            lambda: all(self.partitions(topic)[p].leader == n for p, n in leaders.items()),
        )

    def elect_preferred(self, topic: str, partitions: Collection[int]) -> None:
        """Makes the first replica leader. Raises confluent_kafka.KafkaException."""
        from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition

        partitions_to_elect = [TopicPartition(topic, p) for p in partitions]
        admin = self._admin()
        errors_by_partition = admin.elect_leaders(
            ElectionType.PREFERRED, partitions_to_elect
        ).result(timeout=60.0)
        for error in errors_by_partition.values():
            if error is not None and error.code() != KafkaError.ELECTION_NOT_NEEDED:
                raise KafkaException(error)

    def elect_unclean(self, topic: str, partition: int) -> None:
        """Makes any living replica leader, after the in-sync replicas are known to be gone.

        Acknowledged records may be lost, which is the purpose of this call.
        """
        from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition

        to_elect = TopicPartition(topic, partition)

        def led() -> bool:
            if self.partitions(topic)[partition].leader in self.brokers():
                return True
            try:
                errors_by_partition = (
                    self._admin().elect_leaders(ElectionType.UNCLEAN, [to_elect]).result(timeout=30)
                )
            except KafkaException:
                return False  # the controllers elect one of their own first
            refused = [e.code() for e in errors_by_partition.values() if e is not None]
            return not refused or refused == [KafkaError.ELECTION_NOT_NEEDED]

        _wait(f"{to_elect} led by any replica", led)

    def _server(self, node_id: int) -> KafkaServer:
        folder = self._folder / str(node_id)
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in self._controller_ports.items())
        node_settings = {
            "node.id": str(node_id),
            "broker.rack": f"rack-{node_id}",
            "controller.quorum.voters": voters,
        }
        controller_port = self._controller_ports.get(node_id)
        listeners = "PLAINTEXT://127.0.0.1:{port}"
        if controller_port is None:
            node_settings |= {"process.roles": "broker", "listeners": listeners}
        else:
            node_settings["listeners"] = f"{listeners},CONTROLLER://127.0.0.1:{controller_port}"
        properties = {
            **_CLUSTER,
            **node_settings,
            **self._properties,
            **self._of_node.get(node_id, {}),
        }
        return KafkaServer(
            properties,
            data_dir=folder,
            heap=self._heap,
            port=free_port(),
            cluster_id=self._cluster_id,
            version=self.version,
        )

    def _admin(self, node_id: int | None = None) -> AdminClient:
        # Imported here, so brokers can be set up and run before any client is installed. The
        # client's log is off, because it would report faults that a test causes on purpose.
        from confluent_kafka.admin import AdminClient

        bootstrap = self.bootstrap if node_id is None else self.bootstrap_of(node_id)
        return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def _each(self, node_ids: Collection[int], act: Callable[[KafkaServer], None]) -> None:
        self._each_of([self._servers[n] for n in node_ids], act)

    def _each_of(self, servers: Sequence[KafkaServer], act: Callable[[KafkaServer], None]) -> None:
        with ThreadPoolExecutor(max_workers=len(servers)) as pool:
            for future in [pool.submit(act, server) for server in servers]:
                future.result()

    def _led(self, topic: str, partition_count: int, node_id: int) -> bool:
        states = self.partitions(topic, node_id)
        return len(states) == partition_count and all(s.leader >= 0 for s in states.values())


class _Admin:
    """kafka-python's admin client, for requests that confluent-kafka lacks."""

    def __init__(self, bootstrap: str) -> None:
        import kafka

        self._client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

    def __enter__(self) -> kafka.KafkaAdminClient:
        return self._client

    def __exit__(self, *exc: object) -> None:
        self._client.close()


def _wait(what: str, check: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = monotonic() + timeout_s
    while not check():
        if monotonic() > deadline:
            raise PartFailed(f"not in {timeout_s} s: {what}")
        sleep(0.1)
