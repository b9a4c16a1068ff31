"""Mirrors the fetch sessions (KIP-227) of one connection. Pure.

The client has one session with the proxy, the proxy has another with the broker. Each is an (id,
epoch) pair with a set of partitions. While both agree (`in_lockstep`), requests pass unchanged and
the mirror only remembers the partitions that the client last asked for. They part when the first
partition is read from the archive. From then on the broker gets the difference between what it last
asked for and what it should serve now, and responses carry the client's own session id. The cost
per request is proportional to the changed partitions and those of the archive, not to the session.

A session belongs to the connection that began it. A broker would serve it on any connection, but no
client is known to use that. Here such a request gets error 70, as after an eviction, and the client
begins a new session.

Sources: Kafka's FetchManager.java and FetchSession.java (order of checks, of update and forget,
epochs, the end of an emptied session), FetchSessionHandler.java (which answers clients accept).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch import (
    INITIAL_EPOCH,
    SESSIONLESS_EPOCH,
    FetchEntry,
    FetchRequest,
    PartitionKey,
    TopicRef,
    encode_fetch_request,
    from_offset,
)
from fetchproxy_protocol.fetch_layout import TOPIC_IDS_FROM

EPOCH_MAX = (1 << 31) - 1
# Memory per partition: its key, its entry and its places in maps; and one more place in a map.
PARTITION_BYTES = 300
PLACE_BYTES = 50


class FetchKind(Enum):
    """How a response lists partitions: all that were asked (`lists_all`), or only those with news.

    `error_code`: the proxy refuses the request with it, without the broker; 0: it is in order.
    """

    lists_all: bool
    error_code: int

    def __new__(cls, words: str, lists_all: bool, error_code: int) -> FetchKind:
        kind = object.__new__(cls)
        kind._value_ = words
        kind.lists_all = lists_all
        kind.error_code = error_code
        return kind

    SESSIONLESS = "sessionless", True, 0
    FULL = "full", True, 0
    INCREMENTAL = "incremental", False, 0
    UNKNOWN_SESSION = "unknown session", False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    WRONG_EPOCH = "wrong epoch", False, ErrorCode.INVALID_FETCH_SESSION_EPOCH
    WRONG_TOPIC_IDS = (
        "topics by id in a session by name, or by name in one by id",
        False,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )


@dataclass(frozen=True, slots=True)
class UpstreamFetch:
    """The request that the broker gets instead: its own session, and the changes in it."""

    session_id: int
    session_epoch: int
    partitions: Mapping[PartitionKey, FetchEntry]
    forgotten: tuple[PartitionKey, ...]

    def encode(self, request: FetchRequest, max_wait_ms: int) -> bytes:
        """`request` in the broker's session. Without a wait, min_bytes is 0."""
        return encode_fetch_request(
            request,
            partitions=self.partitions,
            forgotten=self.forgotten,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=request.min_bytes if max_wait_ms else 0,
            bytes_max=request.bytes_max,
        )


def next_epoch(epoch: int) -> int:
    return 1 if epoch == EPOCH_MAX else epoch + 1


class _BeforeResponse(NamedTuple):
    """What a response changes. It replaces the mappings and does not change them."""

    client_id: int
    client_epoch: int
    upstream_epoch: int
    needs_full_fetch: bool
    upstream_partitions: dict[PartitionKey, FetchEntry] | None
    dirty: dict[PartitionKey, None]
    kept_from_broker: Set[PartitionKey]


class FetchSessionPair:
    """Both sides' sessions of one connection. Each fetch is answered before the next one.

    `new_session_id` makes a positive int32 for sessions that no broker knows.
    """

    def __init__(self, new_session_id: Callable[[], int]) -> None:
        self._new_session_id = new_session_id
        self.forget()

    def forget(self) -> None:
        """Both sides lose their session (a top-level error of the broker)."""
        self.partitions: dict[PartitionKey, FetchEntry] = {}
        # Those of `partitions` that the last request changed.
        self.changed: Collection[PartitionKey] = ()
        self._by_id = False
        self._kind = FetchKind.SESSIONLESS
        self._client_session_id = 0
        self._client_epoch = 0  # the next incremental request must carry it
        self._upstream_session_id = 0
        self._upstream_epoch = 0
        self.sent_full = False  # the broker's next response lists all partitions
        self._needs_full_fetch = False  # the next request to the broker must be a full one
        self._upstream_partitions: dict[PartitionKey, FetchEntry] | None = None  # None: in lockstep
        self._undo: dict[PartitionKey, FetchEntry | None] = {}
        self._dirty: dict[PartitionKey, None] = {}  # ordered, so that equal runs send equal bytes
        self._kept_from_broker: Set[PartitionKey] = frozenset()
        self._broker_offsets: Mapping[PartitionKey, int] = {}
        self._before: _BeforeResponse | None = None

    @property
    def kept_bytes(self) -> int:
        upstream = 0 if self._upstream_partitions is None else len(self._upstream_partitions)
        return len(self.partitions) * PARTITION_BYTES + upstream * PLACE_BYTES

    @property
    def in_lockstep(self) -> bool:
        return self._upstream_partitions is None

    def on_request(self, request: FetchRequest) -> FetchKind:
        """Take in the client's request; afterwards `partitions` has the partitions of its
        response.
        """
        epoch = request.session_epoch
        if epoch in (SESSIONLESS_EPOCH, INITIAL_EPOCH):
            self._kind = FetchKind.FULL if epoch == INITIAL_EPOCH else FetchKind.SESSIONLESS
            if self._upstream_partitions is None:
                self._upstream_session_id = request.session_id
            else:
                self._needs_full_fetch = True
            self._by_id = request.version >= TOPIC_IDS_FROM
            self.partitions = dict(request.partitions)
            self.changed = self.partitions
            return self._kind
        if request.session_id != self._client_session_id or not self._client_session_id:
            return FetchKind.UNKNOWN_SESSION
        if epoch != self._client_epoch:
            return FetchKind.WRONG_EPOCH
        if self._by_id != (request.version >= TOPIC_IDS_FROM):
            return FetchKind.WRONG_TOPIC_IDS
        self._kind = FetchKind.INCREMENTAL
        changed = (*request.partitions, *request.forgotten)
        if self._upstream_partitions is None:
            self._undo = {key: self.partitions.get(key) for key in changed}
        else:
            self._dirty.update(dict.fromkeys(changed))
        self.changed = request.partitions
        self.partitions.update(request.partitions)
        for key in request.forgotten:
            self.partitions.pop(key, None)
        return self._kind

    def repeats(self, session_id: int, epoch: int) -> bool:
        """True: the last request may come again, now with this `epoch`, and `on_request` would
        change nothing. It changed no partition, or was sessionless.
        """
        if self._upstream_partitions is not None or self._broker_offsets:
            return False
        if self._kind is FetchKind.SESSIONLESS:
            return epoch == SESSIONLESS_EPOCH
        return epoch == self._client_epoch and session_id == self._client_session_id

    def set_broker_offsets(self, broker_offsets: Mapping[PartitionKey, int]) -> None:
        """Ask the broker for these partitions from these offsets on, not from the client's."""
        if broker_offsets != self._broker_offsets:
            self._dirty.update(dict.fromkeys(sorted({*broker_offsets, *self._broker_offsets})))
            self._broker_offsets = broker_offsets

    def separate(self) -> None:
        """From this request on, the two sides have separate sessions."""
        if self._upstream_partitions is not None:
            return
        self._upstream_partitions = dict(self.partitions)
        self._dirty = dict.fromkeys((*self._undo, *self._broker_offsets))
        self._needs_full_fetch = self._kind is not FetchKind.INCREMENTAL
        if not self._needs_full_fetch:
            self._upstream_session_id, self._upstream_epoch = (
                self._client_session_id,
                self._client_epoch,
            )
            for key, before in self._undo.items():
                if before is None:
                    self._upstream_partitions.pop(key, None)
                else:
                    self._upstream_partitions[key] = before

    def split_off_broker_part(self, kept_from_broker: Set[PartitionKey]) -> UpstreamFetch | None:
        """Splits the request: the part for the broker, without `kept_from_broker`, which are all in
        `partitions`.

        None: nothing is left to ask. An empty request closes the broker's session, so it is sent
        only if the client has emptied its own.
        """
        self.separate()
        assert self._upstream_partitions is not None
        if not self.partitions:
            return self._end()
        self._dirty.update(dict.fromkeys(sorted(kept_from_broker ^ self._kept_from_broker)))
        self._kept_from_broker = frozenset(kept_from_broker)
        if len(kept_from_broker) >= len(self.partitions):
            return None
        sessionless = self._kind is FetchKind.SESSIONLESS
        self.sent_full = sessionless or self._needs_full_fetch or not self._upstream_session_id
        if self.sent_full:
            self._needs_full_fetch = False
            local = self._local(kept_from_broker)
            self._upstream_partitions = dict(local)
            self._dirty.clear()
            epoch = SESSIONLESS_EPOCH if sessionless else INITIAL_EPOCH
            return UpstreamFetch(self._upstream_session_id, epoch, local, ())
        return self._difference(kept_from_broker)

    def _end(self) -> UpstreamFetch | None:
        """The client's session has no partition left: it ends on both sides."""
        self._needs_full_fetch = True
        if not self._upstream_session_id:
            return None
        self.sent_full = True
        return UpstreamFetch(self._upstream_session_id, SESSIONLESS_EPOCH, {}, ())

    def take_up(self, kept_from_broker: Set[PartitionKey]) -> bool:
        """True: the last request to the broker asks for exactly the partitions wanted now."""
        if self._upstream_partitions is None or (self._kind.lists_all and not self.sent_full):
            return False  # the response to a full request must list all partitions
        if self._needs_full_fetch:
            same = self._local(kept_from_broker) == self._upstream_partitions
        else:
            keys = self._dirty.keys() | (kept_from_broker ^ self._kept_from_broker)
            same = all(
                self._upstream_partitions.get(key) == self._entry_for_broker(key, kept_from_broker)
                for key in keys
            )
        if same:
            self._kept_from_broker = frozenset(kept_from_broker)
            self._needs_full_fetch = False
            self._dirty.clear()
        return same

    def _entry_for_broker(
        self, key: PartitionKey, kept_from_broker: Set[PartitionKey]
    ) -> FetchEntry | None:
        entry = None if key in kept_from_broker else self.partitions.get(key)
        if entry is not None and key in self._broker_offsets:
            return from_offset(entry, self._broker_offsets[key])
        return entry

    def _local(self, kept_from_broker: Set[PartitionKey]) -> dict[PartitionKey, FetchEntry]:
        """All entries that the broker is asked for."""
        local = {
            key: entry for key, entry in self.partitions.items() if key not in kept_from_broker
        }
        for key in self._broker_offsets:
            if (entry := self._entry_for_broker(key, kept_from_broker)) is not None:
                local[key] = entry
        return local

    def listed_upstream(self) -> Counter[TopicRef]:
        """The partitions per topic in the broker's response; empty if it does not list all."""
        upstream = (
            self._upstream_partitions
            if self.sent_full and self._upstream_partitions is not None
            else ()
        )
        return Counter(topic for topic, _ in upstream)

    def pass_on(self, request: FetchRequest) -> tuple[int, int] | None:
        """The broker's (session id, epoch), if no other field of the request must change. None:
        more must change. Called when nothing comes from the archive.
        """
        if (
            self._upstream_partitions is None
            or self._kind is not FetchKind.INCREMENTAL
            or not self._upstream_session_id
        ):
            return None
        if (
            self._needs_full_fetch
            or self._kept_from_broker
            or self._broker_offsets
            or not self.partitions
        ):
            return None
        if self._dirty.keys() - {*request.partitions, *request.forgotten}:
            return None
        self._upstream_partitions.update(request.partitions)
        for key in request.forgotten:
            self._upstream_partitions.pop(key, None)
        self._dirty.clear()
        self.sent_full = False
        return self._upstream_session_id, self._upstream_epoch

    def _difference(self, kept_from_broker: Set[PartitionKey]) -> UpstreamFetch:
        assert self._upstream_partitions is not None
        changed: dict[PartitionKey, FetchEntry] = {}
        forgotten = []
        for key in self._dirty:
            entry = self._entry_for_broker(key, kept_from_broker)
            known = self._upstream_partitions.get(key)
            if entry is None:
                if known is not None:
                    forgotten.append(key)
                    del self._upstream_partitions[key]
            elif entry != known:
                changed[key] = self._upstream_partitions[key] = entry
        self._dirty.clear()
        return UpstreamFetch(
            self._upstream_session_id, self._upstream_epoch, changed, tuple(forgotten)
        )

    def on_response(self, error_code: int, session_id: int) -> int:
        """The broker answered this request. Returns the session id that the client gets."""
        before = _BeforeResponse(
            self._client_session_id,
            self._client_epoch,
            self._upstream_epoch,
            self._needs_full_fetch,
            self._upstream_partitions,
            self._dirty,
            self._kept_from_broker,
        )
        if error_code:
            self.forget()
            return session_id
        self._before = before
        if self._upstream_partitions is None:
            return self._lockstep_response(session_id)
        self._advance_upstream(session_id)
        session_id = self._advance_client(session_id)
        apart = self._kept_from_broker or self._broker_offsets
        if self.sent_full and self._kind is FetchKind.FULL and not apart and session_id:
            self._reset_lockstep()  # both sides begin the same session: they agree again
        return session_id

    def on_suppressed_response(self, session_id: int) -> None:
        """The response of the last `on_response` is not sent: the client still waits for a
        response.

        From here on, the two sides have separate sessions. The broker's session has advanced, with
        all changes of this request.
        """
        assert self._before is not None
        self._client_session_id, self._client_epoch, self._upstream_epoch, *_ = self._before
        self._needs_full_fetch, self._dirty = self._before.needs_full_fetch, self._before.dirty
        self._upstream_partitions = self._before.upstream_partitions
        self._kept_from_broker = self._before.kept_from_broker
        self._before = None
        if self._upstream_partitions is None:
            self._upstream_partitions = dict(self.partitions)
            self._undo, self._dirty = {}, {}
            self.sent_full = self._kind is not FetchKind.INCREMENTAL
            self._upstream_epoch = self._client_epoch
        self._advance_upstream(session_id)
        # If the client's response must list all partitions, the broker is asked for all again.
        self._needs_full_fetch = self._needs_full_fetch or self._kind.lists_all

    def on_ok_response(self, session_id: int) -> int:
        """As `on_response`, for a response without error."""
        if self._upstream_partitions is None:
            return self._lockstep_response(session_id)
        return self.on_response(0, session_id)

    def on_discarded_response(self, error_code: int, session_id: int) -> None:
        """The broker answered, but the client will not see it: only the broker's side advances."""
        self._advance_upstream(0 if error_code else session_id)

    def _advance_upstream(self, session_id: int) -> None:
        self._upstream_session_id = session_id
        self._upstream_epoch = 1 if self.sent_full else next_epoch(self._upstream_epoch)

    def on_proxy_response(self) -> int:
        """This request was answered without the broker. Returns the client's session id."""
        return self._advance_client(0)

    def _lockstep_response(self, session_id: int) -> int:
        if self._kind is FetchKind.INCREMENTAL:
            self._client_epoch = next_epoch(self._client_epoch)
        else:
            self._client_epoch = 1
        self._client_session_id = 0 if self._kind is FetchKind.SESSIONLESS else session_id
        if self._undo:
            self._undo = {}
        return session_id

    def _advance_client(self, session_id: int) -> int:
        if self._kind is FetchKind.SESSIONLESS or not self.partitions:
            self._client_session_id = 0
        elif self._kind is FetchKind.FULL:
            self._client_session_id = session_id or self._new_session_id()
            self._client_epoch = 1
        else:
            self._client_epoch = next_epoch(self._client_epoch)
        return self._client_session_id

    def rejoin(self) -> bool:
        """Go back to lockstep if both sides agree. True: the sides are in lockstep now.

        Called when nothing comes from the archive, between `on_request` and sending. In lockstep
        the request may pass unchanged. A full or sessionless request always can if no session with
        the broker is open.
        """
        if self._broker_offsets:
            return False
        if self._upstream_partitions is None:
            return True
        if self._kind is not FetchKind.INCREMENTAL:
            if self._upstream_session_id:
                return False  # a request of the proxy must close the broker's session
            self._reset_lockstep()
            return True
        return False

    def _reset_lockstep(self) -> None:
        self._upstream_partitions = None
        self._needs_full_fetch = False
        self._undo = {}
        self._dirty = {}
        self._kept_from_broker = frozenset()
