"""Pads partitions up to their start offsets, and proves that nobody else has written.

One batch of a partition is on its way at a time, so each response says where the next one belongs.
A batch whose response was lost is waited for: sent again, it could be in the log twice, and the log
would end above the start offset for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_restore import padding_requests as requests
from fetchproxy.cluster_restore.padding_batch import PADDING_RECORDS_MAX, padding_batch
from fetchproxy.cluster_restore.padding_plan import cost_text, duration_text
from fetchproxy.errors import ClusterError
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.runtime.cooperative import for_each

# Enough to keep the threads of a broker busy that has other work, too.
PARTITIONS_AT_ONCE_PER_BROKER = 4
# A batch without response that is not in the log after this long never comes: a replica that stands
# in its way is out of sync after replica.lag.time.max.ms (30 s), and brokers close the
# connection of a request that they have not read, and work on the others within milliseconds.
LOST_WAIT_S = 60.0
END_UNKNOWN_MAX_S = 120.0  # nobody tells the end of the log
_LOOK_INTERVAL_S = 0.2
_MEASURED_AFTER_S = 1.0
_PROGRESS_INTERVAL_S = 10.0
_NAMED_MAX = 20  # partitions whose time is said


class _WrittenByOthers(Exception):
    """`offset`: where the log was expected to end, or where others have written."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset


class Padding:
    """One run. `say` gets lines for people."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._say = say
        self._start_offsets: Mapping[TopicIdPartition, int] = {}
        self._ends: dict[TopicIdPartition, int] = {}
        self._at_once = 1
        self._padded = 0
        self._began_at = self._tell_at = 0.0
        self._throttled_s = 0.0

    async def pad(
        self, start_offsets: Mapping[TopicIdPartition, int], brokers: int
    ) -> dict[TopicIdPartition, str]:
        """Returns the partitions that do not begin, and end, where they should, and why. Raises
        ClusterError: then the same call goes on later.
        """
        faults: dict[TopicIdPartition, str] = {}
        self._start_offsets = start_offsets
        self._ends = {
            tp: one.high_watermark for tp, one in (await self._log(start_offsets)).items()
        }
        before = dict(self._ends)
        to_do = [tp for tp, start in start_offsets.items() if self._ends[tp] < start]
        to_do.sort(key=lambda tp: self._ends[tp] - start_offsets[tp])  # no long one alone at last
        await asyncio.to_thread(padding_batch, 1)  # what is made once is not measured
        self._at_once = brokers * PARTITIONS_AT_ONCE_PER_BROKER
        self._began_at = asyncio.get_running_loop().time()
        self._tell_at = self._began_at + _MEASURED_AFTER_S

        async def pad_one(tp: TopicIdPartition) -> None:
            try:
                await self._pad(tp, start_offsets[tp])
            except _WrittenByOthers as error:
                faults[tp] = await self._named(tp, error.offset, str(error))

        await for_each(to_do, pad_one, self._at_once)
        if self._throttled_s:
            self._say(f"padding: the brokers' quotas delayed it by {self._throttled_s:.1f} s")
        await self._prove_ends(start_offsets, faults)
        sound = {tp: start for tp, start in start_offsets.items() if tp not in faults}
        await requests.delete_below(
            self._cluster, sound, lambda tp, error: faults.update({tp: str(error)})
        )
        await self._prove_starts(start_offsets, faults, before)
        return faults

    # --- one partition ---
    async def _pad(self, tp: TopicIdPartition, start_offset: int) -> None:
        records_max = PADDING_RECORDS_MAX
        while (end := self._ends[tp]) < start_offset:
            records = min(start_offset - end, records_max)
            batch = await asyncio.to_thread(padding_batch, records)
            try:
                result = await requests.append(self._cluster, tp, batch)
            except ClusterError as error:
                if error.error_code != ErrorCode.MESSAGE_TOO_LARGE or records == 1:
                    raise
                records_max = records // 2  # max.message.bytes of this topic
                continue
            if isinstance(result, requests.Unsure):
                await self._settle(tp, end, records)
                continue
            if result.has_broker_time:
                why = "message.timestamp.type=LogAppendTime, so padding looks like other records"
                raise ClusterError(f"{tp} has {why}: set it to CreateTime")
            if result.base_offset != end:
                why = f"a batch expected at {end} is at {result.base_offset}"
                raise _WrittenByOthers(end, why)
            self._gained(tp, records)
            if result.throttle_ms:
                self._throttled_s += result.throttle_ms / 1000
                await asyncio.sleep(result.throttle_ms / 1000)

    async def _settle(self, tp: TopicIdPartition, end: int, records: int) -> None:
        """Until it is known whether a batch is in the log whose response was lost."""
        loop = asyncio.get_running_loop()
        began_at, unchanged_since = loop.time(), None
        while True:
            try:
                now = (await self._log([tp]))[tp].high_watermark
            except ClusterError:
                if loop.time() > began_at + END_UNKNOWN_MAX_S:
                    raise
                unchanged_since = None
            else:
                if now == end + records:
                    return self._gained(tp, records)
                if now != end:
                    why = (
                        f"after a lost response it ends at {now}, expected {end} or {end + records}"
                    )
                    raise _WrittenByOthers(end, why)
                unchanged_since = unchanged_since or loop.time()
                if loop.time() > unchanged_since + LOST_WAIT_S:
                    return None
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def _gained(self, tp: TopicIdPartition, records: int) -> None:
        self._ends[tp] += records
        self._padded += records
        self._tell()

    # --- proofs ---
    async def _log(
        self, tps: Mapping[TopicIdPartition, int] | list[TopicIdPartition]
    ) -> dict[TopicIdPartition, LogOffsets]:
        """Raises ClusterError if one partition's leader does not tell."""
        now = asyncio.get_running_loop().time()
        offsets_by_partition = await self._cluster.fetch_log_offsets(list(tps), not_older_than=now)
        logs: dict[TopicIdPartition, LogOffsets] = {}
        for tp, one in offsets_by_partition.items():
            if isinstance(one, ClusterError):
                raise one
            logs[tp] = one
        return logs

    async def _prove_ends(
        self, start_offsets: Mapping[TopicIdPartition, int], faults: dict[TopicIdPartition, str]
    ) -> None:
        """Before anything is deleted: what others have written below stays."""
        sound = [tp for tp in start_offsets if tp not in faults]
        firsts = await requests.first_records(self._cluster, sound)
        logs = await self._log(sound)
        for tp in sound:
            start, first, end = start_offsets[tp], firsts[tp], logs[tp].high_watermark
            if first is not None and first.offset < start:
                faults[tp] = await self._named(tp, first.offset, "it is not only padding")
            elif end < start or (end > start and (first is None or first.offset > start)):
                why = f"it ends at {end}, expected {start}"
                faults[tp] = await self._named(tp, min(end, start), why)

    async def _prove_starts(
        self,
        start_offsets: Mapping[TopicIdPartition, int],
        faults: dict[TopicIdPartition, str],
        before: Mapping[TopicIdPartition, int],
    ) -> None:
        """Records from the start offset on are new ones, if they came before this run."""
        sound = [tp for tp in start_offsets if tp not in faults]
        logs = await self._log(sound)
        for tp in sound:
            start, log = start_offsets[tp], logs[tp]
            if log.log_start_offset != start:
                faults[tp] = f"{tp} begins at {log.log_start_offset}, expected {start}"
            elif log.high_watermark != max(start, before[tp]):
                why = f"it already has {log.high_watermark - start} records"
                faults[tp] = await self._named(tp, start, why)

    async def _named(self, tp: TopicIdPartition, offset: int, why: str) -> str:
        """The fault of a partition with records of somebody else, and what brokers know of them."""
        first = (await requests.first_records(self._cluster, [tp]))[tp]
        ids = await requests.producer_ids(self._cluster, tp)
        text = f"{tp}: somebody else has written from offset {offset} on: {why}"
        if first is not None:
            text += f"; first record at {first.offset}, timestamp {first.timestamp_ms}"
        if ids is None:
            return f"{text}, whose producer cannot be named without READ on the topic"
        if ids:
            return f"{text}, by producer id {', '.join(map(str, ids))}"
        return f"{text}, by a producer without an id (not idempotent)"

    # --- telling ---
    def _tell(self) -> None:
        """The time that is left: after a second, of each partition, and then from time to time."""
        now = asyncio.get_running_loop().time()
        if now < self._tell_at:
            return
        is_first = self._tell_at == self._began_at + _MEASURED_AFTER_S
        self._tell_at = now + _PROGRESS_INTERVAL_S
        left = {tp: start - self._ends[tp] for tp, start in self._start_offsets.items()}
        left = {tp: offsets for tp, offsets in left.items() if offsets > 0}
        if not left:
            return
        total, rate = sum(left.values()), self._padded / (now - self._began_at)
        self._say(
            f"padding: {rate:,.0f} offsets a second, {total:,} left in {len(left)} partitions: "
            f"{duration_text(total / rate)}"
        )
        if is_first:
            share = rate / min(len(left), self._at_once)
            for tp, offsets in list(left.items())[:_NAMED_MAX]:
                self._say(f"padding: {tp}: {cost_text(offsets, share)}")
