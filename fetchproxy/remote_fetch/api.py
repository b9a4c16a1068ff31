"""The values that cross between the gateway and the read side. No behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple

from fetchproxy.errors import FetchProxyError
from fetchproxy.model import AbortedTxn, IsolationLevel, TopicIdPartition

# So long a fetch waits for the archive alone, whatever its max_wait: a store is slower than a
# broker's disk, and a client that waits for less would be answered empty again and again. Kafka's
# own tiered storage waits as long (`remote.fetch.max.wait.ms` by default).
READ_WAIT_MIN_S = 0.5
# Partitions that are read for one fetch: looking for one in memory takes some 10 µs of one step.
# Answers are full with fewer; where partitions are small, the next fetches have the others.
PARTITIONS_READ_MAX = 200


# Both are made for every fetch: a named tuple in a third of a frozen dataclass's time.
class RemoteReadRequest(NamedTuple):
    """One partition of a fetch; `bytes_max` is the partition's own limit.

    `client` is who asks, as far as turns go: the fetchers serve clients evenly. None: the proxy.
    """

    tip: TopicIdPartition
    fetch_offset: int
    bytes_max: int
    isolation: IsolationLevel
    client: Hashable = None


class RemoteReadResult(NamedTuple):
    """What the archive has for one request.

    `records`: whole stored batches in order, byte for byte; the first one contains or follows the
    fetch offset, so its first records may lie below it (clients skip those). Empty: nothing yet.
    `aborted_txns`: under READ_COMMITTED those with an offset among the returned ones; else ().
    `error`: OffsetNotArchived, judged by a view that is newer than the request; OffsetLost;
    CorruptSegment; or StorageUnavailable, which is stated only after `remote_error_after_ms` of
    failures. `skipped`: the recorded gap between the fetch offset and the records, as (first, last)
    lost offsets.
    """

    records: tuple[memoryview | bytes, ...]
    aborted_txns: tuple[AbortedTxn, ...]
    error: FetchProxyError | None
    size_bytes: int
    skipped: tuple[int, int] | None = None


NOTHING_YET = RemoteReadResult((), (), None, 0)


class CompletionReason(Enum):
    """Why a DelayedRemoteFetch ended; the value is the label of its metric."""

    DATA = "data"  # at least one request has records
    ERROR = "error"  # an error that neither a retry nor waiting can mend
    DEADLINE = "deadline"
    CANCELLED = "cancelled"  # its owner is gone, or the purgatory closes
