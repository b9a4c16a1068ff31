"""Who is given archived records now, how many, and how fast."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import NamedTuple, cast

from cachetools import LRUCache
from fetchproxy_protocol.fetch import FetchEntry, PartitionKey
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.config.schema import Config
from fetchproxy.observability.metrics import (
    ANSWERS_BYTES,
    CLIENT_THROTTLE_SECONDS,
    CLIENT_THROTTLES,
    LIMITS_REACHED,
    REMOTE_ANSWER_BYTES,
    REMOTE_ANSWERS_WAITING,
)
from fetchproxy.reading.fetcher_pool import COST_BYTES_MIN
from fetchproxy.runtime.fairness import FairQueue, TokenBucket
from fetchproxy.serving.appetite import SOFTWARE_SHOWN_MAX, Appetites, Reader, may_pause
from fetchproxy.serving.limits import ServingLimits

# Records leave as views of the chunks they were read in, and a view keeps its whole chunk in
# memory, cached or not. So the blocks behind an answer are counted, each once, however many
# clients read it. Answers are cut to the room that is left. The last quarter is kept for single
# batches: many slow readers make the answers of others small before anybody gets none. When that
# is full, too, the archive's part waits. A client that takes nothing is closed after
# `ServingLimits.client_stall_max_ms`.

_CUT_SHARE = 0.75
# From here on an answer that uses less than half of its blocks is copied out of them.
_PRESSED_SHARE = 0.5


class AnswerBudget:
    """Bytes; `answer_max` is for one answer, `total_max` for all that are on their way."""

    def __init__(self, answer_max: int, total_max: int) -> None:
        self._answer_max = answer_max
        self._total_max = total_max
        self._blocks: dict[int, list[int]] = {}  # id of a block -> [size, holders]
        self._waiting: deque[asyncio.Event] = deque()
        self.taken = 0
        for gauge in (REMOTE_ANSWER_BYTES, ANSWERS_BYTES):
            gauge.set_function(lambda: self.taken)

    @property
    def full(self) -> bool:
        return self.taken >= self._total_max

    def room(self) -> int:
        """For one more answer, now; 0: a single batch, unless it is `full`."""
        left = max(int(self._total_max * _CUT_SHARE) - self.taken, 0)
        if left < self._answer_max:
            LIMITS_REACHED.labels("remote_answers_bytes_max").inc()
            return left
        return self._answer_max

    async def wait_for_room(self, deadline: float) -> bool:
        """While it is full, until it is this one's turn; at most to `deadline` (loop time, s).

        True: it waited.
        """
        if not self.full:
            return False
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn.wait()
        except TimeoutError:
            pass
        finally:
            if not turn.is_set():
                self._waiting.remove(turn)
        return True

    @contextmanager
    def taking(self, pieces: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
        """Until the answer has left, or its client is gone: send what this gives, drop the rest."""
        pieces = self._light(pieces)
        blocks = self._hold(pieces)
        try:
            yield pieces
        finally:
            self._let_go(blocks)

    def _light(self, pieces: Sequence[Buffer]) -> Sequence[Buffer]:
        """Without blocks that are mostly not in the answer, when memory is short."""
        if self.taken < self._total_max * _PRESSED_SHARE:
            return pieces
        used: dict[int, int] = {}
        for piece in pieces:
            used[id(_block(piece))] = used.get(id(_block(piece)), 0) + len(piece)
        return [
            piece if 2 * used[id(_block(piece))] >= len(_block(piece)) else bytes(piece)
            for piece in pieces
        ]

    def _hold(self, pieces: Iterable[Buffer]) -> list[int]:
        blocks = {id(block): len(block) for block in map(_block, pieces)}
        for block, size in blocks.items():
            held = self._blocks.setdefault(block, [size, 0])
            held[1] += 1
            self.taken += size if held[1] == 1 else 0
        self._wake_next()
        return list(blocks)

    def _let_go(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            held = self._blocks[block]
            held[1] -= 1
            if not held[1]:
                del self._blocks[block]
                self.taken -= held[0]
        self._wake_next()

    def _wake_next(self) -> None:
        """One for each answer that comes or goes: all of them would find it full again."""
        if self._waiting and not self.full:
            self._waiting.popleft().set()


def _block(piece: Buffer) -> Sized:
    """What stays in memory for as long as `piece` does."""
    return cast(Sized, piece.obj) if isinstance(piece, memoryview) else piece


# Consumers that replay the same history share what is read from the store only while they stay
# within a cache of each other. Left to chance they part: who is faster by a little finds its next
# chunk just as ready, and after a while the others read all of it again. So only a few answers
# are made and written at once, and of those that wait the connection that was given the fewest
# bytes goes next (`fairness`). Nobody waits while a turn is free, and no turn is kept for what
# uses no CPU: it ends where the store must be waited for, and after a while for clients that take
# their time.
#
# By connection and not by client: many consumers of one host may share a client id.


class AnswerTurns:
    """At most `turns_max` at once, each for at most `turn_max_s` while others wait. A connection
    has one fetch at a time; any object stands for it.
    """

    def __init__(self, turns_max: int, turn_max_s: float) -> None:
        self._turns_max = turns_max
        self._turn_max_s = turn_max_s
        self._queue: FairQueue[Hashable] = FairQueue()
        self._begun: dict[Hashable, asyncio.Event] = {}  # of those in the queue
        self._taken: dict[Hashable, float] = {}  # since loop time, s; the oldest first
        self._timer: asyncio.TimerHandle | None = None  # for the oldest; only while others wait

    async def take(self, connection: Hashable, size_bytes: int, deadline: float) -> bool:
        """Wait for a turn; from `deadline` (loop time, s) on without one. `give_back` must follow.
        True: it waited.

        `size_bytes`: what the answer may take, which counts as given to the connection.
        """
        if len(self._taken) < self._turns_max:  # so nobody waits
            self._taken[connection] = asyncio.get_running_loop().time()
            return False
        LIMITS_REACHED.labels("remote_answer_turns_max").inc()
        begun = self._begun[connection] = asyncio.Event()
        self._queue.push(connection, connection, max(size_bytes, COST_BYTES_MIN))
        self._grant()
        try:
            async with asyncio.timeout_at(deadline):
                await begun.wait()
        except TimeoutError:
            self.give_back(connection)
        return True

    def give_back(self, connection: Hashable) -> None:
        """Its turn, or its place in the queue; also where it has neither."""
        if self._taken.pop(connection, None) is None and self._queue.remove(connection):
            del self._begun[connection]
        if self._timer is not None:
            self._grant()

    def _grant(self) -> None:
        now = asyncio.get_running_loop().time()
        while len(self._queue) and len(self._taken) < self._turns_max:
            connection = self._queue.pop()
            self._taken[connection] = now
            self._begun.pop(connection).set()
        REMOTE_ANSWERS_WAITING.set(len(self._queue))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._queue):
            oldest = next(iter(self._taken.values()))
            due_at = oldest + self._turn_max_s
            self._timer = asyncio.get_running_loop().call_at(due_at, self._end_oldest)

    def _end_oldest(self) -> None:
        del self._taken[next(iter(self._taken))]
        self._grant()


# As Kafka's consumer quota does (KIP-13, KIP-219): what went out is counted; a client that owes is
# answered at once, told for how long (`throttle_time_ms`), and its connection is not looked at
# before that. Whom it counts for, over all connections, is what the client cannot choose
# (`payer_of`): the subject of a certificate that was verified, else the address. Who it is to the
# broker passes unread, and a client id is whatever the client says.

# Whose turn it is to read the store: address, client id. It shares out, and limits nothing.
Client = tuple[str, str]

# Half of a Java consumer's request.timeout.ms: what is owed beyond is told in the next answer.
PAUSE_MAX_S = 15.0
# A host with IPv6 has so many bits of an address to itself (RFC 6177), and takes any of them.
_IPV6_HOST_BITS = 64
# Payers remembered; one that is forgotten owes nothing any more.
CLIENTS_MAX = 10_000


def payer_of(transport: asyncio.BaseTransport) -> str:
    """Whom archived bytes on this connection count for. Certificates count that were verified."""
    certificate = transport.get_extra_info("peercert") or {}
    names = certificate.get("subject") or certificate.get("subjectAltName")
    if names:
        return repr(names)
    peer = transport.get_extra_info("peername")
    return host_of(str(peer[0])) if peer else "unknown"


def host_of(address: str) -> str:
    """The address; of IPv6 what a host has to itself."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(IPv6Network((int(ip), _IPV6_HOST_BITS), strict=False))


class ClientRates:
    """`bytes_per_s_max`: `remote_fetch.client_bytes_per_s_max`, 0: no limit. `clock` in s."""

    def __init__(self, bytes_per_s_max: int, clock: Callable[[], float]) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._clock = clock
        self._buckets: LRUCache[str, TokenBucket] = LRUCache(CLIENTS_MAX)

    def room(self, bytes_max: int) -> int:
        """For one answer: no more than a second's worth, so that none owes for long."""
        return min(bytes_max, self._bytes_per_s_max) if self._bytes_per_s_max else bytes_max

    def owed_s(self, payer: str) -> float:
        """For so long it may have nothing of the archive; 0: it may."""
        bucket = self._buckets.get(payer)
        return 0.0 if bucket is None else min(bucket.owed_s(self._clock()), PAUSE_MAX_S)

    def spend(self, payer: str, size_bytes: int) -> float:
        """Archived bytes that go out to it now. Returns `owed_s`."""
        if not self._bytes_per_s_max or not size_bytes:
            return self.owed_s(payer)
        now = self._clock()
        bucket = self._buckets.get(payer)
        if bucket is None:
            bucket = self._buckets[payer] = TokenBucket(self._bytes_per_s_max, now)
        return min(bucket.spend(size_bytes, now), PAUSE_MAX_S)


class Admission(NamedTuple):
    """What one process has of all four, for all its connections."""

    answers: AnswerBudget
    turns: AnswerTurns
    rates: ClientRates
    appetites: Appetites


@dataclass(slots=True, eq=False, repr=False)
class Share:
    """One connection's, which has one fetch at a time. `payer`: `payer_of` its transport, from the
    moment on that this is there, or the user who has logged in.

    A fetch asks how long it owes (`owed_s`). If it owes nothing it may `enter`: its turn has come,
    and there is memory for its answer. Before it waits for the store it lets others go on
    (`to_store`). It is charged for its records (`charge`), they count while it is `sending` them,
    and it waits for what it owes (`pay`). Any fetch, of the tail too, waits until its client has
    appetite for it (`due_in`).

    Who has waited as long as it was told is served, whatever other connections of the same client
    have had meanwhile: they would be first for ever.
    """

    _admission: Admission
    payer: str = ""
    _pause_s: float = 0.0  # that it was told to wait
    _waited: bool = False
    _charged: int = 0
    _reader: Reader | None = None
    _may_pause: bool = False
    _software: str = ""

    def software_is(self, name: str, version: str) -> None:
        """What the client's library calls itself: before its first fetch, if at all."""
        self._may_pause = may_pause(name)
        self._software = f"{name} {version}".strip()[:SOFTWARE_SHOWN_MAX]

    def due_in(
        self,
        client: Callable[[], Client],
        node_id: int | None,
        partitions: Mapping[PartitionKey, FetchEntry],
        session_partitions: int = 0,
    ) -> float:
        """When a fetch has come: for so long it is to wait, in s. As Reader.asked."""
        if self._reader is None:
            self._reader = self._admission.appetites.reader(
                client(), node_id, partitions, self._software, paced=self._may_pause
            )
        return self._reader.asked(partitions, session_partitions)

    def bytes_wanted(self, bytes_max: int) -> int:
        """Of the `bytes_max` that a fetch asks for, at most what its client takes at once."""
        return bytes_max if self._reader is None else self._reader.bytes_wanted(bytes_max)

    def answered(self, size_bytes: int) -> None:
        if self._reader is not None:
            self._reader.answered(size_bytes)

    @property
    def kept_bytes(self) -> int:
        return 0 if self._reader is None else self._reader.kept_bytes

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def owed_s(self) -> float:
        """At the begin of a fetch: for so long it may have nothing of the archive."""
        waited, self._waited = self._waited, False
        return 0.0 if waited else self._admission.rates.owed_s(self.payer)

    def reads_max(self, bytes_max: int) -> int:
        """Of `bytes_max` wanted bytes, what is to be read for one answer."""
        return self._admission.rates.room(bytes_max)

    async def enter(self, bytes_max: int, deadline: float) -> bool:
        """Waits for a turn, and for memory; from `deadline` (loop time, s) on it goes without.

        True: it waited.
        """
        waited = await self._admission.turns.take(self, bytes_max, deadline)
        return await self._admission.answers.wait_for_room(deadline) or waited

    def to_store(self) -> None:
        """The store is waited for, so others may go on; also where nothing was entered."""
        self._admission.turns.give_back(self)

    def room(self, bytes_max: int) -> tuple[int, bool]:
        """For records of an answer, and whether the first batch may be larger."""
        answers = self._admission.answers
        return self._admission.rates.room(min(bytes_max, answers.room())), not answers.full

    def charge(self, size_bytes: int, *, told: bool) -> int:
        """Archived bytes that go out. Returns the answer's throttle_time_ms; then comes `pay`.

        `told`: the client is made to wait. Where it is not, it has nothing more until it has paid.
        """
        self._charged += size_bytes
        owed_s = self._admission.rates.spend(self.payer, size_bytes)
        self._pause_s = owed_s if told else 0.0
        if not self._pause_s:
            return 0
        CLIENT_THROTTLES.inc()
        CLIENT_THROTTLE_SECONDS.inc(self._pause_s)
        return int(self._pause_s * 1000) + 1

    @contextmanager
    def sending(self, pieces: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
        """As AnswerBudget.taking."""
        with self._admission.answers.taking(pieces) as pieces:
            yield pieces
        if self._charged:
            self.answered(self._charged)
            self._charged = 0

    async def pay(self) -> None:
        """After the answer has left: a client that owes waits here."""
        pause_s, self._pause_s = self._pause_s, 0.0
        if pause_s:
            await asyncio.sleep(pause_s)
            self._waited = pause_s < PAUSE_MAX_S


def admission_of(config: Config, limits: ServingLimits, clock: Callable[[], float]) -> Admission:
    gateway = config.gateway
    return Admission(
        AnswerBudget(limits.remote_answer_bytes_max, gateway.remote_answers_bytes_max),
        AnswerTurns(limits.remote_answer_turns_max, limits.remote_answer_turn_max_ms / 1000),
        ClientRates(config.remote_fetch.client_bytes_per_s_max, clock),
        Appetites(clock, enabled=gateway.pace_by_appetite),
    )
