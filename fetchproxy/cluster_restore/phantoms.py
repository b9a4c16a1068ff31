"""Brokers that exist only while a cluster is restored: registered, kept alive, removed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from zlib import crc32

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.cluster_restore import controller_requests as requests
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.new_cluster import InterBrokerListener
from fetchproxy.cluster_restore.state_file import PhantomIdentity
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.runtime.cooperative import for_each

# A broker follows each leader by a thread of its own, which takes one partition after the other. So
# several phantoms lead, and as many partitions are brought to their start at once.
PHANTOMS = 8
_HIGHEST_ID = 9_999  # well above the ids that people give to brokers
# A third of the shortest session that a test uses; brokers send every 2 s, for sessions of 9 s.
_HEARTBEAT_INTERVAL_S = 1.0
_FIRST_LOOK_S = 0.05
# The session of another incarnation, which ends by itself after broker.session.timeout.ms.
_OTHER_SESSION_MAX_S = 60.0
_UNFENCE_MAX_S = 30.0


@asynccontextmanager
async def _in_time(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_UNFENCE_MAX_S):
            yield
    except TimeoutError:
        raise ClusterUnavailable(f"not within {_UNFENCE_MAX_S:.0f} s: {what}") from None


def new_identities(taken: Collection[int]) -> tuple[PhantomIdentity, ...]:
    """Identities with ids that no broker has."""
    free = [node for node in range(_HIGHEST_ID, 0, -1) if node not in taken]
    return tuple(PhantomIdentity(node, uuid.uuid4(), uuid.uuid4()) for node in free[:PHANTOMS])


@dataclass(eq=False)
class Phantoms:
    """`epochs`: the broker epoch of each registered phantom, by its id."""

    identities: tuple[PhantomIdentity, ...]
    controller: ActiveController
    epochs: dict[int, int] = field(default_factory=dict)
    leaving: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(one.node_id for one in self.identities)

    def of_partition(self, topic: str, partition: int) -> tuple[int, ...]:
        """The two that lead it in turn: a leader epoch is raised when one hands over to the other.
        In each run the same.
        """
        first = crc32(topic.encode()) + partition
        return tuple(self.ids[(first + n) % len(self.ids)] for n in range(min(2, len(self.ids))))

    async def register(
        self,
        cluster_id: str,
        listeners: Mapping[InterBrokerListener, HostPort],
        features: Mapping[str, tuple[int, int]],
    ) -> None:
        """Registers all, and returns when all may lead. Raises ClusterError."""
        for one in self.identities:
            self.epochs[one.node_id] = await self._registered(one, cluster_id, listeners, features)
        await self.rise()

    async def rise(self) -> None:
        """Returns when all may lead, also after `lay_down`. Raises ClusterError."""
        self.leaving = False
        async with _in_time("the controller lets the new brokers lead"):
            while True:
                if not any(beat.is_fenced for beat in await self._beats()):
                    return
                await asyncio.sleep(_FIRST_LOOK_S)

    async def _registered(
        self,
        phantom: PhantomIdentity,
        cluster_id: str,
        listeners: Mapping[InterBrokerListener, HostPort],
        features: Mapping[str, tuple[int, int]],
    ) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _OTHER_SESSION_MAX_S
        while True:
            try:
                return await requests.register_broker(
                    self.controller, phantom, cluster_id, listeners, features
                )
            except ClusterError as error:
                is_alive = error.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
                if not is_alive or loop.time() > deadline:
                    raise
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)

    async def keep_alive(self) -> None:
        """Sends heartbeats until it is cancelled. Raises ClusterError."""
        while True:
            await self._beats()
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)

    async def lay_down(self) -> None:
        """No phantom leads or gets a partition from now on. Raises ClusterError."""
        self.leaving = True
        async with _in_time("the controller lets the new brokers go"):
            while True:
                if all(beat.should_shut_down for beat in await self._beats()):
                    return
                await asyncio.sleep(_FIRST_LOOK_S)

    async def unregister(self) -> None:
        """Raises ClusterError."""
        self.epochs.clear()
        for node in self.ids:
            await requests.unregister_broker(self.controller, node)

    async def _beats(self) -> list[requests.Heartbeat]:
        """Of all at once: the sessions do not wait for each other. Raises ClusterError."""
        beats: list[requests.Heartbeat] = []

        async def beat(node: int) -> None:
            beats.append(await self._beat(node))

        await for_each(list(self.epochs), beat, PHANTOMS)
        return beats

    async def _beat(self, node_id: int) -> requests.Heartbeat:
        epoch = self.epochs.get(node_id)
        if epoch is None:
            return requests.Heartbeat(True, True)  # it has just been removed
        return await requests.heartbeat(self.controller, node_id, epoch, leave=self.leaving)
