"""One answer to a consumer's fetch against the truth: order, bytes, errors, watermarks, time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client_connection import ClientFetchSession, FetchEntry, Responded
from fetchproxy_protocol.record_batch import check_crc, walk

from fetchproxy.model import TopicIdPartition
from fetchproxy.reading.segment_reader import READ_WAIT_MIN_S

if TYPE_CHECKING:
    from simulated_consumer import SimulatedConsumer

OFFSET_OUT_OF_RANGE = 1
KAFKA_STORAGE_ERROR = 56
SESSION_ERRORS = (70, 71)
# Available tail data may be kept back this long, as other partitions fill the answers.
STARVING_S_MAX = 10.0
CLOCK_SLACK_S = 1e-6
# Early empty responses allowed in a row: they come from a catch or from a parked poll.
EARLY_MAX = 8
# Answers, per partition asked, in which an archived partition may get no data while others do.
PASSED_OVER_MAX = 10


@dataclass(slots=True)
class FetchCheck:
    consumer: SimulatedConsumer
    entries: dict[TopicIdPartition, FetchEntry]
    tail: set[TopicIdPartition]  # at the time of the request
    responded: Responded
    incremental: bool
    empty: bool = True  # neither records nor an error

    def run(self, session: ClientFetchSession) -> None:
        consumer, response = self.consumer, self.responded.message
        world, error = consumer.world, getattr(response, "error_code", 0)
        world.responses += 1
        self._in_time(None)
        session.responded(error, getattr(response, "session_id", 0))
        if error:
            assert error in SESSION_ERRORS, f"{consumer.name}: top-level error {error}"
            assert consumer.habits.sessions
            world.sessions_lost += 1
            world.note(consumer.name, "session error", error)
            return
        parts = self._named(response)
        summary = []
        for tp, part in parts.items():
            size = len(part.records or b"")
            summary.append((tp.topic, tp.partition, self.entries[tp].offset, size))
            self.empty = self.empty and not part.error_code and not size
            if tp in consumer.above:
                self._check_above_the_end(tp, part)
            elif part.error_code:
                self._check_error(tp, part)
            else:
                self._check_data(tp, part)
        world.note(consumer.name, *summary)
        self._check_size(parts)
        self._check_not_in_a_loop(self.incremental and bool(parts))
        self._check_fair(parts)
        for tp in self.entries:
            part = parts.get(tp)
            self._check_tail(tp, part is not None and bool(part.records))

    def _named(self, response: Any) -> dict[TopicIdPartition, Any]:
        """Each partition once; all requested partitions, unless the response is incremental."""
        by_id = self.consumer.habits.version >= 13
        known = {(t.topic_id if by_id else t.topic, t.partition): t for t in self.entries}
        parts: dict[TopicIdPartition, Any] = {}
        for topic in response.responses:
            for part in topic.partitions:
                tp = known.get((topic.topic_id if by_id else topic.topic, part.partition_index))
                assert tp is not None, f"{part.partition_index} was not asked for"
                assert tp not in parts, f"{tp} is answered twice"
                parts[tp] = part
        if not self.incremental:
            listed = [topic.topic_id if by_id else topic.topic for topic in response.responses]
            assert len(listed) == len(set(listed)), "a topic has two entries"
            missing = [str(tp) for tp in self.entries if tp not in parts]
            assert not missing, f"not answered: {missing}"
        return parts

    # -- time ------------------------------------------------------------------------------------
    def _in_time(self, ready_at: float | None) -> None:
        """Not later than the client's own wait, or (tail data) than `ready_at`, plus the margin."""
        habits, responded = self.consumer.habits, self.responded
        wait_s = habits.max_wait_ms / 1000
        if not self.tail:
            read_max_s = self.consumer.world.limits.serving.remote_fetch_max_wait_ms / 1000
            wait_s = max(wait_s, min(READ_WAIT_MIN_S, read_max_s))
        due = responded.began_at + wait_s
        if ready_at is not None:
            due = min(due, max(ready_at, responded.began_at))
        late_s = responded.at - due - responded.dawdled_s
        if ready_at is None:
            self.consumer.world.slowest_s = max(self.consumer.world.slowest_s, late_s)
        margin_s = self.consumer.world.margin_s(responded.size + min(habits.max_bytes, 200_000))
        assert late_s <= margin_s, f"{late_s:.3f} s late, where {margin_s:.3f} s are allowed"

    def _check_fair(self, parts: dict[TopicIdPartition, Any]) -> None:
        """While the store is well, no archived partition waits until another is read to its end.

        This needs a cache: without one, each read throws away the data of the other partitions.
        """
        consumer, world = self.consumer, self.consumer.world
        cache_bytes_max = world.config.remote_fetch.chunk_cache_bytes_max
        if cache_bytes_max < 8 * world.limits.reading.chunk_bytes:
            return
        skipped_records = consumer.skipped_records
        served = [tp for tp, part in parts.items() if part.records]
        archived = {
            tp
            for tp, entry in self.entries.items()
            if entry.offset < min(world.archived_end[tp], world.log_of(tp).start_offset)
        }
        # A partition that is not judged yet may still wait for a metadata read that hung earlier.
        judged_s = world.config.store.metadata_read_max_ms / 1000
        well = self.responded.began_at > world.fair_since + world.recovery_s + judged_s
        if not well or not archived.intersection(served):
            return
        skipped_records.update(archived.difference(served))
        for tp in {*served, *(tp for tp in skipped_records if tp not in archived)}:
            skipped_records.pop(tp, None)
        turns_max = PASSED_OVER_MAX * len(self.entries)
        for tp, turns in skipped_records.items():
            assert turns <= turns_max, f"{consumer.name}: {tp} was passed over {turns} times"

    def _check_not_in_a_loop(self, has_news: bool) -> None:
        """An early empty response is allowed now and then; many in a row are a loop."""
        consumer = self.consumer
        took_s = self.responded.at - self.responded.began_at
        early = took_s < min(consumer.habits.max_wait_ms / 1000, 0.1) / 2
        consumer.early = consumer.early + 1 if self.empty and early and not has_news else 0
        assert consumer.early <= EARLY_MAX, f"{consumer.name}: {consumer.early} answers of nothing"

    def _check_tail(self, tp: TopicIdPartition, has_data: bool) -> None:
        consumer, responded = self.consumer, self.responded
        log = consumer.world.log_of(tp)
        offset = self.entries[tp].offset
        if tp not in self.tail or log.start_offset > offset:
            consumer.starving_since.pop(tp, None)
            return
        index = log.index_of(offset)
        end = log.last_stable_offset if consumer.habits.isolation else log.high_watermark
        there = index < log.replicated and log.batches[index].base_offset < end
        if not there:
            consumer.starving_since.pop(tp, None)
            return
        if not consumer.habits.isolation:
            self._in_time(log.committed_at[index])
        if has_data:
            consumer.starving_since.pop(tp, None)
            return
        since = consumer.starving_since.setdefault(tp, responded.at)
        starved_s = responded.at - since
        assert starved_s <= STARVING_S_MAX, f"{tp} at {offset}: tail kept back for {starved_s} s"

    # -- contents --------------------------------------------------------------------------------
    def _check_above_the_end(self, tp: TopicIdPartition, part: Any) -> None:
        """No data, and "out of range" once the proxy knows it for sure."""
        consumer = self.consumer
        assert not part.records, f"{consumer.name}: records above the end of {tp}"
        if part.error_code == OFFSET_OUT_OF_RANGE:
            consumer.above.discard(tp)
            consumer.positions[tp] = consumer.world.log_of(tp).first_offset
            consumer.world.told_out_of_range += 1
        else:
            assert part.error_code == 0, f"{consumer.name}: {tp}: error {part.error_code}"

    def _check_error(self, tp: TopicIdPartition, part: Any) -> None:
        consumer, now = self.consumer, self.responded.at
        world, offset = consumer.world, self.entries[tp].offset
        where = f"{consumer.name}: {tp} at {offset}: error {part.error_code}"
        assert part.error_code == KAFKA_STORAGE_ERROR, where
        world.storage_errors += 1
        world.note(where)
        after_s = world.config.remote_fetch.remote_error_after_ms / 1000
        excused = world.outage_s(now) >= after_s or now <= world.corrupt_until
        assert excused, f"{where} without an outage"
        others = self.tail - {tp}
        assert not others, f"{where} beside the tail of {sorted(map(str, others))}"
        wait_ms = min(consumer.habits.max_wait_ms, world.limits.serving.remote_fetch_max_wait_ms)
        assert now - self.responded.began_at >= wait_ms / 1000 - CLOCK_SLACK_S, f"{where} too early"

    def _check_data(self, tp: TopicIdPartition, part: Any) -> None:
        """The log's own batches from the requested offset on, each once, none left out."""
        consumer = self.consumer
        log = consumer.world.log_of(tp)
        records = part.records or b""
        offset_asked = self.entries[tp].offset
        index = log.index_of(offset_asked)
        first = index
        for header in walk(records):
            batch = log.batches[index]
            assert records[header.position : header.end] == batch.content, (
                f"{consumer.name}: {tp} asked at {offset_asked}: got {header.base_offset}, "
                f"where {batch.base_offset} is next"
            )
            assert check_crc(records, header)
            index += 1
        self._check_watermarks(tp, part, index)
        if index == first:
            return
        consumer.world.consumed_batches += index - first
        if consumer.habits.isolation:
            self._check_aborted(tp, part, first, index)
        if consumer.positions[tp] == offset_asked:
            consumer.positions[tp] = log.batches[index - 1].last_offset + 1

    def _check_watermarks(self, tp: TopicIdPartition, part: Any, index: int) -> None:
        log = self.consumer.world.log_of(tp)
        end = log.batches[index - 1].last_offset + 1 if index else log.first_offset
        if part.records:
            assert part.high_watermark == -1 or part.high_watermark >= end, "watermark below data"
        assert part.high_watermark <= log.high_watermark
        assert part.last_stable_offset <= log.last_stable_offset
        start = getattr(part, "log_start_offset", -1)
        assert start <= log.start_offset

    def _check_aborted(self, tp: TopicIdPartition, part: Any, first: int, end: int) -> None:
        """All aborted transactions that overlap the data are listed; all listed ones are real."""
        log = self.consumer.world.log_of(tp)
        batches_given = log.batches[first:end]
        listed = {(a.producer_id, a.first_offset) for a in part.aborted_transactions or ()}
        needed = {
            (a.producer_id, a.first_offset)
            for a in log.overlapping(
                batches_given[0].base_offset, batches_given[-1].last_offset + 1
            )
        }
        # In a first batch only offsets from the requested one on count.
        needed &= {
            (a.producer_id, a.first_offset)
            for a in log.aborted
            if a.marker_offset >= self.entries[tp].offset
        }
        assert needed <= listed, f"{tp}: aborted transactions {needed - listed} are not listed"
        known = {(a.producer_id, a.first_offset) for a in log.aborted}
        assert listed <= known, f"{tp}: {listed - known} were never aborted"

    def _check_size(self, parts: dict[TopicIdPartition, Any]) -> None:
        """Both tiers together keep to max_bytes, except that the first batch comes whole."""
        habits = self.consumer.habits
        largest = max(
            len(batch.content)
            for tp in self.entries
            for batch in self.consumer.world.log_of(tp).batches
        )
        total = sum(len(part.records or b"") for part in parts.values())
        assert total <= max(habits.max_bytes, largest), f"{total} bytes of {habits.max_bytes}"
