"""Limits of both servers that no operator has to set, and a bound on all connections' memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fetchproxy.config.memory_plan import LARGE_REQUEST_BYTES, TLS_HANDSHAKES_MAX
from fetchproxy.config.schema import KiB, MiB

T = TypeVar("T")


# Limits that an operator has no reason to change. Tests pass smaller ones.


@dataclass(frozen=True, kw_only=True)
class ServingLimits:
    """For both servers; each uses the limits that apply to it."""

    # A request must arrive whole within this time. Slow links send 2 MiB in it.
    half_frame_max_ms: int = 30_000
    # A client that has ended its sending may still wait for its responses, as `nc -N` does, or be
    # gone, as all others: what it waits for is cancelled after so much silence. Kafka answers any
    # request of such clients within their own max_wait, 0.5 s by default.
    ended_client_max_ms: int = 5_000
    # A handshake takes a few round trips. Meanwhile the client counts as connected.
    tls_handshake_max_ms: int = 10_000
    # A load balancer sends its header (`gateway.proxy_protocol_from`) before all else.
    proxy_header_max_ms: int = 10_000
    # Handshakes that have begun and not ended. The memory plan counts with the default.
    tls_handshakes_max: int = TLS_HANDSHAKES_MAX
    # A client that takes none of its unsent bytes is closed after this: a consumer may stay away
    # from poll() as long (max.poll.interval.ms).
    client_stall_max_ms: int = 300_000
    # If a bootstrap broker has not answered within RFC 8305's delay, the next one is asked too. So
    # a broker that hangs costs a client no more than this.
    bootstrap_stagger_ms: int = 250
    # Unanswered requests of a connection; at this limit reading pauses. Clients send 5 by default.
    inflight_requests_max: int = 64
    # Bytes that wait for a slow reader; at this limit the other side pauses. Sockets have buffers
    # of their own: more than this would only be copied once more.
    buffer_bytes_max: int = 64 * KiB
    # With at least this many bytes of records still to come, a response's records pass within the
    # kernel (Linux, plaintext on both sides). Fewer bytes are copied faster. 0: never.
    splice_bytes_min: int = 64 * KiB
    # The largest request that must be whole before it is handled (Fetch, ListOffsets,
    # OffsetForLeaderEpoch, DeleteRecords): room for a Fetch of 50,000 partitions, the most allowed.
    # All other requests pass as they arrive.
    held_request_bytes_max: int = 2 * MiB
    # Longest wait of a fetch for remote data, if its own max_wait is longer: as long as clients
    # wait for a response (request.timeout.ms). Kafka uses remote.fetch.max.wait.ms instead of the
    # client's max_wait.
    remote_fetch_max_wait_ms: int = 30_000
    # Longest wait of a reader for an offset that an archiver is accumulating; then it continues
    # after that offset. If segments may become older than a third of this, it is three times their
    # age.
    held_max_ms: int = 1_800_000
    # Archived records in one response, whatever the client's max_bytes; its next fetch gets the
    # rest.
    remote_answer_bytes_max: int = 16 * MiB
    # Answers with archived records that are made and written at once. Further fetches wait, and the
    # connection that was given the least goes next: so consumers of the same history stay together.
    remote_answer_turns_max: int = 16
    # After this time such a response no longer counts: a client that takes it slowly delays no
    # other client.
    remote_answer_turn_max_ms: int = 50
    # Time between two look-ups of a topic that clients read at the tail: one listing per topic and
    # one per archived partition, for any number of clients.
    log_start_max_age_ms: int = 300_000


@dataclass(frozen=True, kw_only=True)
class ArchiveOnlyLimits(ServingLimits):
    """`group_*` and `offset_metadata_bytes_max` are Kafka's settings with Kafka's defaults."""

    # No client produces to this server, so requests are small: far below gateway.frame_bytes_max.
    request_bytes_max: int = 1 * MiB
    # A large request waits for memory at most so long: twice as long as librdkafka waits for a
    # response (socket.timeout.ms), four times as long as Java's clients (request.timeout.ms).
    large_request_max_wait_ms: int = 120_000
    # Memory of large requests, besides half of gateway.connection_buffers_bytes_max. The memory
    # plan counts with the default.
    large_request_bytes: int = LARGE_REQUEST_BYTES
    # Committed offsets of all groups. Each commit writes the whole file.
    offsets_max: int = 100_000
    offset_metadata_bytes_max: int = 4 * KiB  # offset.metadata.max.bytes
    # Groups that have members, each with a timer. Their memory has a limit of its own.
    groups_max: int = 10_000
    group_members_max: int = 1_000  # of one group; group.max.size, by default unlimited in Kafka
    group_session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    group_session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    group_initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms


# The memory of all connections together, and the connections to close if it is too much. Pure.
#
# A relay pauses the faster side. So the memory of one connection is bounded by
# `buffer_bytes_max`, one read of the other side, the frames that must be whole before they are
# handled, and the partitions of a fetch session. This part bounds a thousand connections.

# Requests and responses that are accumulated grow as fast as the other side sends. So they are
# counted while they grow, and the others at intervals.


class Holder(Protocol):
    def give_up(self) -> None:
        """Drop the bytes and close the connection, at once."""


class AccumulatedBytes:
    """Memory of all incomplete requests and responses. Above `bytes_max`, the holder of most bytes
    gives up. What was reserved counts, too, and gives way to nobody.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.total = 0
        self.reserved = 0
        self._by_holder: dict[Holder, int] = {}

    def hold(self, holder: Holder, size: int) -> None:
        """`holder` has `size` bytes now."""
        self.total += size - self._by_holder.pop(holder, 0)
        if size:
            self._by_holder[holder] = size
        self._make_room()

    def reserve(self, change: int) -> None:
        """`change` more bytes (fewer, if below 0) are taken by work with a limit of its own."""
        self.reserved += change
        self.total += change
        self._make_room()

    def _make_room(self) -> None:
        while self.total > self.bytes_max and self._by_holder:
            largest = max(self._by_holder, key=self._by_holder.__getitem__)
            self.total -= self._by_holder.pop(largest)
            largest.give_up()

    def leave_to_others(self, others: int, of_all: int) -> None:
        """`of_all`: the limit of all connections. `others`: bytes of it that other data takes."""
        self.bytes_max = of_all - min(max(others, 0), of_all)


def to_close(sizes: Collection[tuple[int, T]], bytes_max: int) -> list[T]:
    """The connections to close, so that the rest is within the limit: the largest, and as few as
    possible. `sizes`: pairs (bytes, connection).
    """
    above = sum(size for size, _ in sizes) - bytes_max
    closed: list[T] = []
    if above <= 0:
        return closed
    for size, connection in sorted(sizes, key=lambda pair: pair[0], reverse=True):
        if above <= 0:
            break
        closed.append(connection)
        above -= size
    return closed
