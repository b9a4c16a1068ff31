"""The restore of a cluster, from the first check to the report.

Each step may be interrupted anywhere: run again, a restore reads from the cluster what is done, and
goes on. Its file keeps only who its phantoms are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.archive import open_cluster
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.group_offsets import commit_offsets, coordinator_of
from fetchproxy.cluster_restore import checks, new_cluster, rights
from fetchproxy.cluster_restore.archive_handover import ArchiveHandover, opened_handover
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.group_plan import GroupPlan, PlacedPartition, plan_groups
from fetchproxy.cluster_restore.needed_rights import is_refusal, needed_rights, rights_to_begin
from fetchproxy.cluster_restore.new_cluster import FoundTopics
from fetchproxy.cluster_restore.padded_topics import make_topics, pad_topics, planned_padding
from fetchproxy.cluster_restore.padding_plan import configs_afterwards
from fetchproxy.cluster_restore.phantom_lead import UNCLEAN_ELECTION, PhantomLead
from fetchproxy.cluster_restore.phantom_security import phantom_security
from fetchproxy.cluster_restore.phantoms import Phantoms, new_identities
from fetchproxy.cluster_restore.plan import (
    LostTopic,
    Place,
    PlannedTopic,
    RestoreBy,
    RestorePlan,
    TopicAction,
    beyond_state,
    epochs_to_ask,
    is_where_it_belongs,
    logs_that_end,
    plan_restore,
)
from fetchproxy.cluster_restore.producer_ids import ProducerIds, check_producer_ids
from fetchproxy.cluster_restore.raised_epochs import raise_epochs
from fetchproxy.cluster_restore.report import LocalRecords, LostRecords, RestoreReport
from fetchproxy.cluster_restore.state_file import (
    RestoreJob,
    RestoreProgress,
    RestoreStep,
    read_restore_job,
)
from fetchproxy.cluster_restore.surroundings import (
    brokers_notes,
    padding_notes,
    phantoms_notes,
)
from fetchproxy.cluster_state.state import ClusterState, PartitionState
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ConfigError

_COORDINATORS_MAX_S = 60.0
_COORDINATOR_LOOK_S = 0.2
_COORDINATOR_BEGIN_MAX_S = 10.0
_LATER = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOrder:
    """`topics`: what the archive has of the state's topics. `advertise`: the host that brokers
    connect to; None: that of `listen`. `controllers`: none means that the brokers tell them.
    `broker_users`: by whom brokers log in at the phantoms; None: by `cluster.sasl_username`.
    `at_state`: partitions begin at the ends of the state. `archive_faults`: of the archive, for the
    report. `take_over`: see `ArchiveHandover`.
    """

    state: ClusterState
    topics: Sequence[LostTopic]
    listen: HostPort
    advertise: str | None
    controllers: Sequence[HostPort]
    state_file: Path
    broker_users: Path | None = None
    by: RestoreBy = RestoreBy.PHANTOMS
    at_state: bool = False
    archive_faults: tuple[str, ...] = ()
    take_over: bool = False


class ClusterRestore:
    """One run. `say` gets a line for people at each step."""

    def __init__(self, config: Config, order: RestoreOrder, say: Callable[[str], None]) -> None:
        self._config = config
        self._order = order
        self._say = say

    # --- the plan ---
    async def plan(self) -> RestorePlan:
        """Changes nothing. Raises ConfigError, ClusterError, RemoteStorageError."""
        async with self._opened() as run:
            return run.plan

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[_Run]:
        order = self._order
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(open_cluster(self._config))
            present = await new_cluster.read_placements(cluster)
            job = self._job(present)
            if order.by is RestoreBy.PADDING:
                yield await self._padding_run(stack, cluster, present, job)
                return
            to_begin = rights_to_begin(not order.controllers)
            await checks.check_brokers(cluster, list(to_begin), self._principal, self._bootstrap)
            addresses = order.controllers or await self._controllers(cluster)
            controller = await stack.enter_async_context(ActiveController(self._config, addresses))
            alive = await stack.enter_async_context(ActiveController(self._config, addresses))
            phantoms = Phantoms(job.phantoms, alive)
            real = {n: at for n, at in present.brokers.items() if n not in phantoms.ids}
            if not real:
                raise ConfigError("the new cluster has no live broker: start it first")
            configs = await new_cluster.configs_of_broker(cluster, min(real))
            listener = new_cluster.listener_of(configs)
            security = await asyncio.to_thread(
                phantom_security, self._config, listener, order.broker_users
            )
            free_id = max({*real, *phantoms.ids}) + 1
            await checks.check_controllers(controller, free_id, self._principal, self._bootstrap)
            handover, topics = await self._handover(stack, present)
            plan = await self._planned(cluster, controller, present, real, phantoms, topics)
            if handover is not None:
                plan = replace(plan, archive=handover.in_words())
            if plan.has_local_history:
                check_producer_ids(order.state.producer_id_max)
            further = partial(ActiveController, self._config, addresses)
            address = HostPort(order.advertise or order.listen.host, order.listen.port)
            notes = (
                *phantoms_notes(listener, address, phantoms.ids),
                *brokers_notes(configs, present.topics),
                *await self._missing_rights(cluster, plan),
            )
            progress = RestoreProgress(job, order.state_file, self._say)
            lead = PhantomLead(
                config=self._config,
                progress=progress,
                cluster=cluster,
                controller=controller,
                phantoms=phantoms,
                brokers=real,
                listener=listener,
                clients_listener=new_cluster.listener_at(configs, real[min(real)]),
                listen=order.listen,
                advertise=order.advertise,
                security=security,
                producer_ids=ProducerIds(cluster, controller, further, phantoms, real.values()),
                producer_id_max=order.state.producer_id_max,
                handover=handover,
                plan=plan,
            )
            plan = replace(plan, notes=notes)
            yield _Run(order, progress, cluster, real, plan, handover, lead)

    async def _handover(
        self, stack: AsyncExitStack, present: FoundTopics
    ) -> tuple[ArchiveHandover | None, Sequence[LostTopic]]:
        """With the topics of the order, as they are in the archive now."""
        topics, take_over = self._order.topics, self._order.take_over
        handover = await stack.enter_async_context(
            opened_handover(self._config, topics, present.cluster_id, take_over=take_over)
        )
        if handover is not None:
            topics = await handover.as_continued(topics, present.topics)
            await handover.check_journal(topics)
        return handover, topics

    async def _controllers(self, cluster: Cluster) -> Sequence[HostPort]:
        try:
            return await new_cluster.controllers(cluster)
        except ConfigError as error:
            raise ConfigError(f"{error}. {checks.PADDING_HINT}") from None

    async def _padding_run(
        self, stack: AsyncExitStack, cluster: Cluster, present: FoundTopics, job: RestoreJob
    ) -> _Run:
        """A run without phantoms, which asks no controller."""
        handover, topics = await self._handover(stack, present)
        plan = await planned_padding(cluster, topics, present)
        if handover is not None:
            plan = replace(plan, archive=handover.in_words())
        try:
            configs = await new_cluster.configs_of_broker(cluster, min(present.brokers))
        except ClusterError as error:
            if not is_refusal(error):
                raise
            configs = None
        notes = (
            *padding_notes([one for one in topics if not one.why_not]),
            *brokers_notes(configs, present.topics),
            *await self._missing_rights(cluster, plan),
        )
        progress = RestoreProgress(job, self._order.state_file, self._say)
        plan, brokers = replace(plan, notes=notes), present.brokers
        elections = ActiveController(self._config, list(brokers.values()))
        await stack.enter_async_context(elections)
        return _Run(
            self._order, progress, cluster, brokers, plan, handover, None, elections=elections
        )

    async def _missing_rights(self, cluster: Cluster, plan: RestorePlan) -> list[str]:
        needed = list(needed_rights(self._order.by, plan, self._order.state))
        return await checks.check_brokers(cluster, needed, self._principal, self._bootstrap)

    @property
    def _principal(self) -> str:
        return f"User:{self._config.cluster.sasl_username or 'NAME'}"

    @property
    def _bootstrap(self) -> str:
        return self._config.cluster.bootstrap or ""

    def _job(self, present: FoundTopics) -> RestoreJob:
        job, order = read_restore_job(self._order.state_file), self._order
        read_at_ms, at_state = order.state.read_at_ms, order.at_state
        by_padding = order.by is RestoreBy.PADDING
        if job is None:
            phantoms = () if by_padding else new_identities(present.brokers)
            return RestoreJob(present.cluster_id, read_at_ms, phantoms, at_state=at_state)
        if job.cluster_id != present.cluster_id:
            raise ConfigError(
                f"{self._order.state_file} belongs to the restore of cluster {job.cluster_id}, "
                f"and this is cluster {present.cluster_id}: name another file with --state"
            )
        if job.is_unfinished and (job.read_at_ms, job.at_state) != (read_at_ms, at_state):
            option = f"with --at {job.read_at_ms}" if job.at_state else "without --at"
            raise ConfigError(
                f"{self._order.state_file} has an unfinished restore of another state of the "
                f"cluster (read at {job.read_at_ms} ms): finish it {option}"
            )
        if by_padding and job.has_phantoms:
            raise ConfigError(
                f"{self._order.state_file} has an unfinished restore by phantoms, which may be in "
                "the cluster: finish it without --by padding"
            )
        if not by_padding and not job.phantoms:
            job = replace(job, phantoms=new_identities(present.brokers))
        return replace(job, read_at_ms=read_at_ms, at_state=at_state)

    async def _planned(
        self,
        cluster: Cluster,
        controller: ActiveController,
        present: FoundTopics,
        real: Mapping[int, HostPort],
        phantoms: Phantoms,
        archived: Sequence[LostTopic],
    ) -> RestorePlan:
        names = {topic.name for topic in archived}
        some = {name: topic for name, topic in present.topics.items() if name in names}
        with_ends = await new_cluster.with_offsets(cluster, some, phantoms.ids)
        epochs = epochs_to_ask(archived, with_ends)
        with_ends = await new_cluster.with_epoch_ends(cluster, with_ends, epochs)
        plan = plan_restore(archived, with_ends, sorted(real), phantoms.ids)
        refused = await checks.refused_by_controller(controller, plan)
        topics = (
            PlannedTopic(one.archived, TopicAction.REFUSE, why=refused[one.name])
            if one.name in refused
            else one
            for one in plan.topics
        )
        return RestorePlan(tuple(topics))

    # --- the restore ---
    async def run(self) -> RestoreReport:
        """Raises ConfigError, ClusterError, RemoteStorageError; then the same run goes on later."""
        began_at = asyncio.get_running_loop().time()
        async with self._opened() as run:
            return await run.to_the_end(began_at)


@dataclass(eq=False)
class _Run:
    """`lead`: None for a restore by padding, which has `elections`: the brokers, that pass requests
    on to their controller. `unproven`: partitions, and why. `low_epochs`: topics whose logs do not
    go on, and why.
    """

    order: RestoreOrder
    progress: RestoreProgress
    cluster: Cluster
    brokers: Mapping[int, HostPort]
    plan: RestorePlan
    handover: ArchiveHandover | None
    lead: PhantomLead | None
    elections: ActiveController | None = None
    unproven: Mapping[Place, str] = field(default_factory=dict)
    low_epochs: Mapping[str, str] = field(default_factory=dict)

    async def to_the_end(self, began_at: float) -> RestoreReport:
        say, note = self.progress.say, self.progress.note
        for text in self.plan.notes:
            say(text)
        await self._begin_coordinators()
        if self.lead is None:
            await self._pad()
        else:
            await self.lead.run()
        await note(RestoreStep.PROVE)
        restored, faults = await self._prove()
        await note(RestoreStep.GROUPS)
        groups = plan_groups(self.order.state.groups, restored)
        faults += await self._commit(groups)
        await note(RestoreStep.RIGHTS)
        faults += await self._set_rights()
        await note(RestoreStep.DONE)
        seconds = asyncio.get_running_loop().time() - began_at
        return self._report(restored, groups, faults, seconds)

    async def _pad(self) -> None:
        """The archive is taken before it takes long, so that it does not grow meanwhile. That a log
        goes on is recorded after it: an archiver would take padding for a log that was cut.
        """
        await self.progress.note(RestoreStep.PAD)
        ids = await make_topics(self.cluster, self.plan)
        topics = [topic.archived for topic in self._planned if topic.archived.goes_on]
        if self.handover is not None and self.elections is not None:
            self.low_epochs = await raise_epochs(self.cluster, self.elections, topics)
            topics = [topic for topic in topics if topic.name not in self.low_epochs]
            if topics:
                await self.handover.take(topics)
        self.unproven = await pad_topics(
            self.cluster, self.plan, ids, len(self.brokers), self.progress.say
        )
        unproven = {topic for topic, _ in self.unproven}
        topics = [topic for topic in topics if topic.name not in unproven]
        if self.handover is not None and topics:
            await self.progress.note(RestoreStep.RECORD)
            await self.handover.record(topics, ids)

    @property
    def _planned(self) -> Iterator[PlannedTopic]:
        return self.plan.of(TopicAction.CREATE, TopicAction.TAKE, TopicAction.KEEP)

    async def _begin_coordinators(self) -> None:
        """A new cluster makes the topic of the groups' offsets when it is first asked for a group's
        coordinator. That takes it some seconds. It is asked before the phantoms are there, which
        could else get partitions of it.
        """
        group = next((one.group_id for one in self.order.state.groups), None)
        if group is None:
            return
        with suppress(ClusterError, TimeoutError):  # the commits try again, and name what fails
            async with asyncio.timeout(_COORDINATOR_BEGIN_MAX_S):
                while True:
                    if await self._has_coordinator(group):
                        return
                    await asyncio.sleep(_COORDINATOR_LOOK_S)

    async def _has_coordinator(self, group: str) -> bool:
        """Raises ClusterError, but not for one that is there later."""
        try:
            await coordinator_of(self.cluster, group)
        except ClusterError as error:
            if error.error_code not in _LATER:
                raise
            return False
        return True

    # --- afterwards ---
    async def _prove(self) -> tuple[dict[Place, PlacedPartition], list[str]]:
        """Asks the real leaders. A partition that does not begin where it should is a fault."""
        planned = list(self._planned)
        present = await new_cluster.read_placements(self.cluster, [topic.name for topic in planned])
        phantoms = () if self.lead is None else self.lead.phantoms.ids
        with_ends = await new_cluster.with_offsets(self.cluster, present.topics, phantoms)
        epochs = epochs_to_ask([topic.archived for topic in planned], with_ends)
        with_ends = await new_cluster.with_epoch_ends(self.cluster, with_ends, epochs)
        lost_logs = {
            (topic.name, one.partition): one
            for topic in self.order.state.topics
            for one in topic.partitions
        }
        restored: dict[Place, PlacedPartition] = {}
        faults: list[str] = []
        for topic in planned:
            for number, one in enumerate(topic.archived.partitions):
                place, end = (topic.name, number), one.end_offset
                partition = with_ends[topic.name].partitions[number]
                if place in self.unproven:
                    faults.append(self.unproven[place])
                    continue
                start = partition.log_start_offset
                if start is None or not is_where_it_belongs(topic.archived, number, partition):
                    faults.append(
                        f"{topic.name}-{number} begins at {start}, expected {one.start_offset}, "
                        f"and new records at {end}: stop its producers, delete the topic, and run "
                        "the command again"
                    )
                    continue
                old = lost_logs.get(place, PartitionState(number, 0, end))
                restored[place] = PlacedPartition(
                    end,
                    max(old.log_end_offset, end),
                    partition.leader_epoch,
                    min(start, end),
                    old.log_start_offset,
                )
        return restored, faults

    async def _set_configs(self) -> list[str]:
        """Gives taken topics the archived values, and undoes what only the restore needed."""
        if self.lead is None:
            return await self._set_configs_after_padding()
        configs: dict[str, dict[str, str | None]] = {}
        for topic in self._planned:
            archived = dict(topic.archived.configs)
            is_taken = topic.action is TopicAction.TAKE
            values: dict[str, str | None] = {**archived} if is_taken else {}
            if archived.get(UNCLEAN_ELECTION) != "false":
                values[UNCLEAN_ELECTION] = archived.get(UNCLEAN_ELECTION)
            configs[topic.name] = values
        return await rights.set_topic_configs(self.cluster, configs)

    async def _set_configs_after_padding(self) -> list[str]:
        """Not of a topic that is not proven: a run again needs those of padding."""
        unproven = {topic for topic, _ in self.unproven}
        configs = {
            one.name: configs_afterwards(one) for one in self._planned if one.name not in unproven
        }
        return await rights.set_topic_configs(self.cluster, configs)

    async def _commit(self, groups: GroupPlan) -> list[str]:
        """The first group of a new cluster makes the topic of the groups' offsets, which takes it
        some seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _COORDINATORS_MAX_S
        failed: Mapping[str, ClusterError] = {}
        left = dict(groups.offsets)
        while left:
            failed = await commit_offsets(self.cluster, left)
            left = {group: left[group] for group, e in failed.items() if e.error_code in _LATER}
            if loop.time() > deadline:
                break
            await asyncio.sleep(_COORDINATOR_LOOK_S if left else 0)
        return [f"group {group}: {error}" for group, error in failed.items()]

    async def _set_rights(self) -> list[str]:
        failed = await self._set_configs()
        failed += await rights.create_acls(self.cluster, self.order.state.acls)
        return failed + await rights.set_quotas(self.cluster, self.order.state.quotas)

    def _report(
        self,
        restored: Mapping[Place, PlacedPartition],
        groups: GroupPlan,
        faults: Sequence[str],
        seconds: float,
    ) -> RestoreReport:
        state, handover = self.order.state, self.handover
        lost = tuple(
            LostRecords(*place, one.end_offset, one.old_end_offset)
            for place, one in sorted(restored.items())
            if one.old_end_offset > one.end_offset
        )
        return RestoreReport(
            topics=len({topic for topic, _ in restored}),
            partitions=len(restored),
            groups=len(groups.offsets),
            acls=len(state.acls),
            quotas=len(state.quotas),
            refused={topic.name: topic.why for topic in self.plan.of(TopicAction.REFUSE)},
            lost=lost,
            differences=groups.differences,
            by_hand=(*_by_hand(state, groups), *self._apart()),
            faults=(*self.order.archive_faults, *faults),
            beyond_state=tuple(beyond_state(self.plan)),
            seconds=round(seconds, 3),
            local=tuple(self._local(restored)),
            producer_id_max=-1 if self.lead is None else self.lead.producer_ids.passed,
            archive="" if handover is None else handover.done_in_words(),
            commits_until_ms=state.read_at_ms,
            uncertain_starts=groups.uncertain_starts,
        )

    def _apart(self) -> Iterator[str]:
        """Topics whose new log is not that of the archive."""
        lower = {
            name: f"its leader epochs are lower: {why}" for name, why in self.low_epochs.items()
        }
        for name, why in (logs_that_end(self.plan) | lower).items():
            yield f"topic {name}: its new log does not continue the archived one: {why}"

    def _local(self, restored: Mapping[Place, PlacedPartition]) -> Iterator[LocalRecords]:
        for topic in self._planned:
            for number, one in enumerate(topic.archived.partitions):
                placed = restored.get((topic.name, number))
                if placed is None or (one.local is None and not one.why_not_local):
                    continue
                start, end = placed.start_offset, placed.end_offset
                yield LocalRecords(topic.name, number, start, end, one.why_not_local)


def _by_hand(state: ClusterState, groups: GroupPlan) -> list[str]:
    work = [f"group {name}: {why}" for name, why in groups.left_out.items()]
    if state.scram_users:
        users = ", ".join(state.scram_users)
        work.append(f"set new passwords for these SCRAM users (brokers keep them secret): {users}")
    work += [
        f"give the brokers the dynamic setting of the old ones: {name}={value}"
        for name, value in state.broker_configs
    ]
    work += [
        f"{one.what} could not be read from the old cluster: {one.why}" for one in state.missing
    ]
    return work
