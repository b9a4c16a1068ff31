"""New producers get ids above those of the archived batches that the new brokers take over.

A broker that gets such batches remembers the last sequence numbers of their producers. A new
producer with the same id would be told that its first records are duplicates, or out of order, and
its transaction would be mixed up with the archived ones. The controller gives ids to brokers in
blocks of 1,000, in rising order, so blocks are taken for the phantom until the next one lies above.
A broker may still have a block from before: it is asked for ids until they lie above, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from fetchproxy_protocol.apis import ErrorCode
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.messages import raise_for
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.controller_requests import allocate_producer_ids
from fetchproxy.cluster_restore.phantoms import Phantoms
from fetchproxy.cluster_restore.plan import PRODUCER_ID_BLOCK
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable, ConfigError
from fetchproxy.runtime.cooperative import for_each

# As many ids as a cluster gives away in years. Blocks take a millisecond or two each.
PRODUCER_ID_BLOCKS_MAX = 100_000
# The controller answers a connection's requests one after the other, each when its record is on a
# majority of controllers; those of several connections share that wait.
_CONNECTIONS_MAX = 16
# A broker has one block in use and the next one at most.
_IDS_OF_A_BROKER_MAX = 2 * PRODUCER_ID_BLOCK + 100
_BROKER_WAIT_MAX_S = 60.0
_BROKER_LOOK_S = 0.05
_LATER = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,  # it waits for a block of the controller
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
)
_NO_PRODUCER, _NO_EPOCH, _TRANSACTION_MAX_MS = -1, -1, 60_000


def check_producer_ids(highest: int) -> None:
    """Raises ConfigError if it would take too long to pass over all ids up to `highest`."""
    if highest // PRODUCER_ID_BLOCK >= PRODUCER_ID_BLOCKS_MAX:
        raise ConfigError(
            f"archived batches have producer ids up to {highest}, but a restore skips at most "
            f"{PRODUCER_ID_BLOCKS_MAX * PRODUCER_ID_BLOCK} ids: run it without --local"
        )


class ProducerIds:
    """`passed`: all new producers get ids above this one; -1: nothing has been passed over."""

    def __init__(
        self,
        cluster: Cluster,
        controller: ActiveController,
        further: Callable[[], ActiveController],
        phantoms: Phantoms,
        brokers: Collection[HostPort],
    ) -> None:
        """`further`: makes connections of their own. `brokers`: all real ones that are alive."""
        self._cluster = cluster
        self._controller = controller
        self._further = further
        self._phantoms = phantoms
        self._brokers = brokers
        self._one_at_a_time = asyncio.Lock()
        self.passed = -1

    async def pass_over(self, highest: int) -> None:
        """Returns when no broker gives away an id up to `highest` any more. Right to do twice.
        Raises ConfigError, ClusterError.
        """
        async with self._one_at_a_time:
            if highest <= self.passed:
                return
            check_producer_ids(highest)
            last = (highest // PRODUCER_ID_BLOCK + 1) * PRODUCER_ID_BLOCK - 1
            await self._take_blocks(last)
            brokers = list(self._brokers)
            await for_each(brokers, lambda broker: self._use_up(broker, last), len(brokers))
            self.passed = last

    async def _take_blocks(self, last: int) -> None:
        taken = await self._take(self._controller)
        missing = -(-(last - taken) // PRODUCER_ID_BLOCK)
        if missing <= 0:
            return

        async def take_on(_: int) -> None:
            nonlocal taken
            async with self._further() as controller:
                while taken < last:
                    taken = max(taken, await self._take(controller))

        count = min(missing, _CONNECTIONS_MAX)
        await for_each(range(count), take_on, count)

    async def _take(self, controller: ActiveController) -> int:
        """The last id of the next block, which nobody else gets."""
        node = self._phantoms.ids[0]
        start, count = await allocate_producer_ids(controller, node, self._phantoms.epochs[node])
        return start + count - 1

    async def _use_up(self, broker: HostPort, last: int) -> None:
        for _ in range(_IDS_OF_A_BROKER_MAX):
            if await self._next_id(broker) > last:
                return
        raise ClusterError(f"broker {broker} keeps giving out old producer ids")

    async def _next_id(self, broker: HostPort) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _BROKER_WAIT_MAX_S
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=_TRANSACTION_MAX_MS,
            producer_id=_NO_PRODUCER,
            producer_epoch=_NO_EPOCH,
        )
        while True:
            async with self._cluster.exclusive(broker) as connection:
                response = await connection.call(request, InitProducerIdResponse)
            if response.error_code not in _LATER:
                break
            if loop.time() > deadline:
                raise ClusterUnavailable(f"broker {broker} gives no producer id")
            await asyncio.sleep(_BROKER_LOOK_S)
        if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise ConfigError(
                f"broker {broker} does not allow IDEMPOTENT_WRITE on the cluster to the user of "
                "cluster.sasl_username, which local history needs: add this ACL, then run it again"
            )
        raise_for(response.error_code, f"InitProducerId of {broker}")
        return int(response.producer_id)
