"""The archive's side of one fetch: judgements and reads that run while the broker is asked too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch import (
    FetchEntry,
    FetchRequest,
    PartitionKey,
    PartitionPatch,
    entry_bytes_max,
    fetch_offset,
)

from fetchproxy.errors import OffsetLost, OffsetNotArchived
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.reading.error_mapping import kafka_error_code
from fetchproxy.reading.purgatory import DelayedRemoteFetch, RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import (
    PARTITIONS_READ_MAX,
    RemoteReadRequest,
    RemoteReadResult,
)
from fetchproxy.serving.admission import Client
from fetchproxy.serving.fetch_answer import PartitionAnswer
from fetchproxy.serving.relay.judgement import Judgement, Verdict

# How old the shown log edges may be before they are asked for again; they only feed lag figures
# and the crossing back to the broker.
EDGES_AGE_MAX_MS = 2_000


@dataclass(slots=True)
class RemoteSide:
    """`watched` are the reads under way, each with the partitions it is for.

    `bytes_max`: no more than an answer takes, as others wait for the same fetchers.
    Of a client that owes by its byte rate nothing is read for `owed_s`.
    """

    purgatory: RemoteFetchPurgatory
    request: FetchRequest
    asked: Mapping[PartitionKey, FetchEntry]
    client: Client
    bytes_max: int
    owed_s: float
    watched: list[tuple[list[tuple[PartitionKey, TopicIdPartition]], DelayedRemoteFetch]] = field(
        default_factory=list
    )
    completed: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(
        self, remote: Iterable[tuple[PartitionKey, TopicIdPartition]], deadline: float
    ) -> None:
        """Begin reading the first ones; completes at once where the chunk cache has it all."""
        if self.owed_s:
            return
        keys = list(islice(remote, PARTITIONS_READ_MAX - len(self.read_for())))
        if not keys:
            return
        reads = [self._read_request(key, tip) for key, tip in keys]
        delayed = self.purgatory.watch(reads, bytes_max=self.bytes_max, deadline=deadline)
        delayed.on_completion(lambda _: self.completed.set())
        self.watched.append((keys, delayed))

    def _read_request(self, key: PartitionKey, tip: TopicIdPartition) -> RemoteReadRequest:
        entry = self.asked[key]
        isolation = IsolationLevel(self.request.isolation_level)
        return RemoteReadRequest(
            tip, fetch_offset(entry), entry_bytes_max(entry), isolation, self.client
        )

    def asked_bytes(self, keys: Iterable[PartitionKey]) -> int:
        """What the client wants of it: but for first batches, which come whole, it has no more."""
        read = islice(keys, PARTITIONS_READ_MAX)
        return min(self.bytes_max, sum(entry_bytes_max(self.asked[key]) for key in read))

    def read_for(self) -> list[PartitionKey]:
        """The partitions that had their turn."""
        return [key for keys, _ in self.watched for key, _ in keys]

    @property
    def reads(self) -> bool:
        """Something of it is being read, or has been."""
        return bool(self.watched)

    @property
    def ready(self) -> bool:
        """Something can be answered, or nothing will come."""
        return self.completed.is_set()

    @property
    def has_records(self) -> bool:
        return any(result.records for _, result in self.results().values())

    def forget(self) -> None:
        """What was read is in the answer: nothing here keeps it in memory."""
        self.watched.clear()

    def cancel(self) -> None:
        """The fetch is answered, or its client gone; reads under way still fill the cache."""
        for _, delayed in self.watched:
            delayed.cancel()

    def results(self) -> dict[PartitionKey, tuple[TopicIdPartition, RemoteReadResult]]:
        found = {}
        for keys, delayed in self.watched:
            for index, result in delayed.results().items():
                key, tip = keys[index]
                found[key] = (tip, result)
        return found


def read_answer(
    key: PartitionKey, marks: PartitionPatch, result: RemoteReadResult | None, may_fail: bool
) -> PartitionAnswer:
    """What the archive has to say of one withheld partition; `result` None: nothing yet.

    `may_fail`: a storage error is shown to the client. Not where tail partitions share the answer:
    some clients throw a whole answer away for one partition's error.
    """
    if result is None or isinstance(result.error, OffsetNotArchived):
        return PartitionAnswer(key, marks)
    if result.error is not None:
        shown = may_fail or isinstance(result.error, OffsetLost)
        return PartitionAnswer(key, marks, kafka_error_code(result.error) if shown else 0)
    return PartitionAnswer(key, marks, 0, result.records, result.aborted_txns, result.skipped)


def judged_answer(
    key: PartitionKey,
    offset: int,
    judgement: Judgement,
    watermarks: Callable[[TopicIdPartition | None], PartitionPatch],
) -> PartitionAnswer | None:
    """For a partition that no tier has anything of for a reader at `offset`; None: some tier has.

    Where only lost offsets lie between the reader and the log's end, that is shown as the end: then
    the reader is not behind, and one that waits for the end has reached it.
    """
    if judgement.verdict is Verdict.PASS_ON:
        return PartitionAnswer(key, PartitionPatch(), ErrorCode.OFFSET_OUT_OF_RANGE)
    if judgement.verdict is Verdict.REFUSED:
        lost = OffsetLost(f"{judgement.tip}: offset {offset} is in neither tier")
        return PartitionAnswer(key, watermarks(judgement.tip), kafka_error_code(lost))
    if judgement.verdict is Verdict.END:
        log_start = watermarks(judgement.tip).log_start_offset
        return PartitionAnswer(key, PartitionPatch(offset, offset, log_start))
    return None
