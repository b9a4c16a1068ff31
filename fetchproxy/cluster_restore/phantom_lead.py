"""The part of a restore in which phantoms lead, from their registration until they have left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from uuid import UUID

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_restore import checks, new_cluster, rights
from fetchproxy.cluster_restore import controller_requests as requests
from fetchproxy.cluster_restore.archive_handover import ArchiveHandover
from fetchproxy.cluster_restore.archived_records import NoRecords, RecordSource, archived_records
from fetchproxy.cluster_restore.client_relay import RealBroker, relaying
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.led_partitions import LedPartitions
from fetchproxy.cluster_restore.new_cluster import InterBrokerListener
from fetchproxy.cluster_restore.next_step import PartitionGoal, partition_goals
from fetchproxy.cluster_restore.phantom_security import PhantomSecurity
from fetchproxy.cluster_restore.phantom_server import PhantomServer
from fetchproxy.cluster_restore.phantoms import Phantoms
from fetchproxy.cluster_restore.placement import Placement, led_log
from fetchproxy.cluster_restore.plan import Place, RestorePlan, TopicAction
from fetchproxy.cluster_restore.producer_ids import ProducerIds
from fetchproxy.cluster_restore.state_file import RestoreProgress, RestoreStep
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ConfigError
from fetchproxy.model import TopicIdPartition

UNCLEAN_ELECTION = "unclean.leader.election.enable"
_PROGRESS_INTERVAL_S = 2.0
_QUIET_MAX_S = 10.0
_QUIET_LOOK_S = 0.02
_LEAVE_TRIES_MAX = 5
_CREATE_TRIES_MAX = 5


@dataclass(eq=False, kw_only=True)
class PhantomLead:
    """`listener`: of the brokers among themselves. `clients_listener`: the one at which this
    command reaches the brokers. `listen`, `advertise`: as in RestoreOrder. `brokers`: the real
    ones.
    """

    config: Config
    progress: RestoreProgress
    cluster: Cluster
    controller: ActiveController
    phantoms: Phantoms
    brokers: Mapping[int, HostPort]
    listener: InterBrokerListener
    clients_listener: InterBrokerListener | None
    listen: HostPort
    advertise: str | None
    security: PhantomSecurity
    producer_ids: ProducerIds
    producer_id_max: int
    handover: ArchiveHandover | None
    plan: RestorePlan

    async def run(self) -> None:
        """Raises ConfigError, ClusterError, RemoteStorageError."""
        if self.progress.job.has_phantoms or not self.plan.is_done:
            await self._lead_and_leave()
        else:
            await self._hand_over()

    async def _lead_and_leave(self) -> None:
        led = LedPartitions(self.brokers)
        features = await requests.supported_features(self.controller)
        async with AsyncExitStack() as stack:
            records, look = await self._records(stack, led)
            server = PhantomServer(led, self._relay(), records, self.security, self.progress.say)
            port = await stack.enter_async_context(server.listening(self._listen()))
            clients_port = await stack.enter_async_context(
                relaying(self.listen.host, self.brokers[min(self.brokers)])
            )
            alive = await stack.enter_async_context(asyncio.TaskGroup())
            address = HostPort(self.advertise or self.listen.host, port)
            listeners = {self.listener: address}
            if self.clients_listener is not None:
                listeners.setdefault(self.clients_listener, HostPort(address.host, clients_port))
            checks.check_address(address, self.brokers.values())
            await checks.check_reach(address, self.security.as_broker)
            self.progress.job = replace(self.progress.job, port=port)
            await self.progress.note(RestoreStep.REGISTER)
            await self.phantoms.register(self.progress.job.cluster_id, listeners, features)
            beats = alive.create_task(self.phantoms.keep_alive())
            if self.plan.has_local_history:
                await self.progress.note(RestoreStep.PRODUCER_IDS)
                await self.producer_ids.pass_over(self.producer_id_max)
            placement = Placement(
                self.cluster, self.controller, self.phantoms, led, self.progress.note, look
            )
            await self._create(led)
            await self.progress.note(RestoreStep.CONTINUE)
            await self._hand_over()
            await placement.converge(self._goals())
            await self.progress.note(RestoreStep.LEAVE)
            await self._leave(placement, server)
            beats.cancel()

    async def _records(
        self, stack: AsyncExitStack, led: LedPartitions
    ) -> tuple[RecordSource, Callable[[], None]]:
        """What the phantoms serve, and a look at it, which raises FetchProxyError if it fails."""
        tps: dict[Place, TopicIdPartition] = {}
        ends: dict[Place, int] = {}
        for topic in self.plan.of(TopicAction.CREATE, TopicAction.TAKE):
            archived = topic.archived
            for number, one in enumerate(archived.partitions):
                if one.local is not None and archived.topic_id is not None:
                    place = (topic.name, number)
                    tps[place] = TopicIdPartition(archived.topic_id, topic.name, number)
                    ends[place] = one.end_offset
        if not tps:
            return NoRecords(), lambda: None
        source = archived_records(self.config, tps, ends, self.producer_ids.pass_over)
        records = await stack.enter_async_context(source)
        said_at, said_bytes = 0.0, 0
        clock = asyncio.get_running_loop().time

        def look() -> None:
            nonlocal said_at, said_bytes
            if records.fault is not None:
                raise records.fault
            if led.sent_bytes > said_bytes and clock() > said_at + _PROGRESS_INTERVAL_S:
                said_at, said_bytes = clock(), led.sent_bytes
                self.progress.say(f"local history: followers have fetched {said_bytes >> 10} KiB")

        return records, look

    def _relay(self) -> RealBroker | None:
        """None: no client connects to the listener of the brokers."""
        if self.config.cluster.security_protocol != self.listener.protocol:
            return None
        address = self.brokers[min(self.brokers)]
        return RealBroker(address, self.security.as_nobody)

    def _listen(self) -> HostPort:
        """Raises ConfigError if followers of an earlier run connect to another port."""
        job, (host, port) = self.progress.job, (self.listen.host, self.listen.port)
        if not job.has_phantoms or not job.port:
            return self.listen
        if port not in (0, job.port):
            raise ConfigError(
                f"brokers still connect to port {job.port}, where this restore listened before: "
                f"use --listen {HostPort(host, job.port)}"
            )
        return HostPort(host, job.port)

    async def _create(self, led: LedPartitions) -> None:
        await self.progress.note(RestoreStep.CREATE)
        to_take = self.plan.of(TopicAction.TAKE)
        configs_of_taken = {topic.name: {UNCLEAN_ELECTION: "false"} for topic in to_take}
        for fault in await rights.set_topic_configs(self.cluster, configs_of_taken):
            self.progress.say(fault)  # the report has it, too
        for topic in self.plan.of(TopicAction.CREATE):
            # As in taken topics: an unclean election would choose a follower that is not placed.
            configs = dict(topic.archived.configs) | {UNCLEAN_ELECTION: "false"}
            replicas = [
                self.phantoms.of_partition(topic.name, n)
                for n in range(len(topic.archived.partitions))
            ]
            topic_id = await self._created(topic.name, replicas, configs)
            if topic_id is not None:
                goals = enumerate(partition_goals(topic))
                led.lead(topic.name, topic_id, {n: led_log(goal) for n, goal in goals})

    async def _created(
        self, name: str, replicas: Sequence[Sequence[int]], configs: Mapping[str, str]
    ) -> UUID | None:
        """As `create_topic`. On a busy machine the controller may take phantoms for dead."""
        for _ in range(_CREATE_TRIES_MAX - 1):
            try:
                return await requests.create_topic(self.controller, name, replicas, configs)
            except ClusterError as error:
                if error.error_code != ErrorCode.INVALID_REPLICA_ASSIGNMENT:
                    raise
            await self.phantoms.rise()
        return await requests.create_topic(self.controller, name, replicas, configs)

    async def _hand_over(self) -> None:
        """No partition that was created here has a leader yet that takes records."""
        planned = self.plan.of(TopicAction.CREATE, TopicAction.TAKE, TopicAction.KEEP)
        topics = [topic.archived for topic in planned if topic.archived.goes_on]
        if self.handover is None or not topics:
            return
        await self.handover.run(topics, await self._topic_ids([topic.name for topic in topics]))

    async def _topic_ids(self, names: Sequence[str]) -> dict[str, UUID]:
        """A broker may be a moment behind the controller."""
        async with asyncio.timeout(_QUIET_MAX_S):
            while True:
                present = await new_cluster.read_placements(self.cluster, names)
                if len(present.topics) == len(names):
                    return {name: topic.topic_id for name, topic in present.topics.items()}
                await asyncio.sleep(_QUIET_LOOK_S)

    def _goals(self) -> dict[Place, PartitionGoal]:
        return {
            (topic.name, number): goal
            for topic in self.plan.of(TopicAction.CREATE, TopicAction.TAKE)
            for number, goal in enumerate(partition_goals(topic))
        }

    async def _leave(self, placement: Placement, server: PhantomServer) -> None:
        """No phantom stays among the replicas of any topic, also of those created meanwhile."""
        for _ in range(_LEAVE_TRIES_MAX):
            await placement.converge(await self._strays())
            await self._quiet(server)
            await self.phantoms.lay_down()
            if not await self._strays():
                await self.phantoms.unregister()
                return
            await self.phantoms.rise()
        raise ClusterError(
            "the cluster keeps giving new partitions to the phantoms: stop what creates topics "
            "(auto.create.topics.enable), then run the same command again"
        )

    async def _strays(self) -> dict[Place, PartitionGoal]:
        """Partitions of any topic with a phantom among the replicas; they begin at 0."""
        present = await new_cluster.read_placements(self.cluster)
        goals = self._goals()
        strays = {}
        for topic in present.topics.values():
            for number, partition in topic.partitions.items():
                if not set(partition.replicas) & set(self.phantoms.ids):
                    continue
                real = tuple(n for n in partition.replicas if n not in self.phantoms.ids)
                spare = [n for n in sorted(self.brokers) if n not in real]
                replicas = (*real, *spare[: len(partition.replicas) - len(real)])
                as_new = PartitionGoal(0, 0, replicas)
                strays[topic.name, number] = goals.get((topic.name, number), as_new)
        return strays

    async def _quiet(self, server: PhantomServer) -> None:
        """Until the brokers have closed their connections: else each of them logs a warning."""
        try:
            async with asyncio.timeout(_QUIET_MAX_S):
                while True:
                    if not server.has_fetchers:
                        return
                    await asyncio.sleep(_QUIET_LOOK_S)
        except TimeoutError:
            return
