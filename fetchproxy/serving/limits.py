"""The bounds of both servers that nobody has to set, and what all connections may hold together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

from fetchproxy.config.schema import KiB, MiB

# What an operator has no reason to change. Tests pass smaller ones.


@dataclass(frozen=True, kw_only=True)
class ServingLimits:
    """Of both servers, as far as each has what they bound."""

    # A begun request arrives whole within this. Slow links send 2 MiB in it.
    half_frame_max_ms: int = 30_000
    # Shaking hands takes a few round trips. Until then a client counts as connected.
    tls_handshake_max_ms: int = 10_000
    # A client that takes nothing that waits for it is closed, after as long as a consumer may stay
    # away from poll() (max.poll.interval.ms).
    client_stall_max_ms: int = 300_000
    # Of several bootstrap brokers the next is asked too when one has not answered within RFC 8305's
    # delay, so that one that hangs costs a client no more.
    bootstrap_stagger_ms: int = 250
    # Unanswered requests of a connection; then reading pauses. Clients have 5 by default.
    inflight_requests_max: int = 64
    # What waits for a slow reader; then the other side pauses. Sockets have buffers of their own:
    # more than this is only copied once more.
    buffer_bytes_max: int = 64 * KiB
    # Records still to come of an answer from which on they pass within the kernel (Linux, plaintext
    # on both sides). Less is copied sooner. 0: never.
    splice_bytes_min: int = 64 * KiB
    # The largest request that has to be whole before it is handled (Fetch, ListOffsets,
    # OffsetForLeaderEpoch, DeleteRecords): room for 50,000 partitions, which is the most there may
    # be. All others pass as they arrive.
    held_request_bytes_max: int = 2 * MiB
    # Longest a fetch waits for remote data, where its own max_wait is longer still: as long as
    # clients wait for an answer (request.timeout.ms). Kafka has remote.fetch.max.wait.ms instead of
    # the client's own.
    remote_fetch_max_wait_ms: int = 30_000
    # A reader waits so long for an offset that an archiver is gathering, and then continues behind
    # it. Where segments may become older than a third of this, it is three times their age.
    held_max_ms: int = 1_800_000
    # Archived records in one answer, whatever the client's max_bytes. Its next fetch goes on there.
    remote_answer_bytes_max: int = 16 * MiB
    # Answers with archived records that are made and written at once. Further fetches wait, and the
    # connection that was given least goes next: so consumers of the same history stay together.
    remote_answer_turns_max: int = 16
    # After this such an answer counts no more: a client that takes it slowly holds nobody up.
    remote_answer_turn_max_ms: int = 50
    # Topics that clients read at the tail are looked up in the archive this often: one listing per
    # topic and one per archived partition, however many clients.
    log_start_max_age_ms: int = 300_000


@dataclass(frozen=True, kw_only=True)
class StandaloneLimits(ServingLimits):
    """`group_*` and `offset_metadata_bytes_max` are Kafka's settings with Kafka's defaults."""

    # Nobody produces here, so requests are small: far below gateway.frame_bytes_max.
    request_bytes_max: int = 1 * MiB
    # Committed offsets of all groups. The file is written whole at each commit.
    offsets_max: int = 100_000
    offset_metadata_bytes_max: int = 4 * KiB  # offset.metadata.max.bytes
    # Groups with members at once, each with a timer. Their memory has a limit of its own.
    groups_max: int = 10_000
    group_members_max: int = 1_000  # of one group; group.max.size, which has no limit in Kafka
    group_session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    group_session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    group_initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms


# What all connections hold together, and which of them go when that is too much. Pure.
#
# A relay pauses the faster side, so what one connection holds is bounded by
# `buffer_bytes_max`, a read of the other side, the frames that have to be whole before
# they are looked at, and the partitions of a fetch session. A thousand connections are bounded
# here.

T = TypeVar("T")


def to_close(held: Collection[tuple[int, T]], bytes_max: int) -> list[T]:
    """Of (bytes, connection): those that hold most, as few as bring the rest within the limit."""
    above = sum(size for size, _ in held) - bytes_max
    closed: list[T] = []
    if above <= 0:
        return closed
    for size, connection in sorted(held, key=lambda pair: pair[0], reverse=True):
        if above <= 0:
            break
        closed.append(connection)
        above -= size
    return closed
