"""Decides which clients get archived records now, how many, and how fast.

*How many*: records leave as views of the chunks they were read in, and a view keeps its whole chunk
(block) in memory, cached or not. So the blocks behind all responses are counted, each once, however
many clients read it (`ResponseBudget`). Responses are cut to the room that is left. The last
quarter is kept for single batches: with many slow readers, responses first become small before any
client gets none. When the last quarter is full too, the archive's part waits. A client that takes
nothing is closed after `ServingLimits.client_stall_max_ms`.

*When*: consumers that replay the same history share the reads from the store only while all their
positions are within one cache. Without turns they drift apart: a slightly faster consumer always
finds its next chunk ready, and after a while the others read everything again. So only a few
responses are made and written at once (`ResponseTurns`). The waiting connection that was given the
fewest bytes goes next (`fairness`). No connection waits while a turn is free. A turn is only for
work that uses CPU: it ends when the response must wait for the store, and after a while if the
client is slow. Turns are by connection and not by client: many consumers of one host may share a
client id.

*How fast*: a client's byte rate is limited like Kafka's consumer quota (KIP-13, KIP-219). Bytes are
counted as they are sent (`ClientRates`). A client that owes gets its response at once, with
`throttle_time_ms`, and its next request is not read before that time is over. Bytes count over all
connections of a payer, which the client cannot choose (`payer_of`): the subject of a verified
certificate, else the address. The proxy does not read the client's name at the broker, and a client
id can be anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import NamedTuple, cast

from cachetools import LRUCache
from fetchproxy_protocol.fetch import FetchEntry, PartitionKey
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.config.schema import Config
from fetchproxy.observability.metrics import (
    CLIENT_THROTTLE_SECONDS,
    CLIENT_THROTTLES,
    LIMITS_REACHED,
    REMOTE_RESPONSE_BYTES,
    REMOTE_RESPONSES_WAITING,
    RESPONSES_BYTES,
)
from fetchproxy.reading.read_budget import COST_BYTES_MIN
from fetchproxy.runtime.fairness import FairQueue, TokenBucket
from fetchproxy.serving.client_groups import GroupsOfClients
from fetchproxy.serving.consumer_pacing import SOFTWARE_SHOWN_MAX, ConsumerPaces, Reader, may_pause
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.storage.reader_accounts import NAME_CHARS_MAX, Client, ReaderAccount, ReaderAccounts

_CUT_SHARE = 0.75
# Above this share, a response's piece of a block is copied if it uses less than half of the block.
_PRESSED_SHARE = 0.5
# Half of a Java consumer's request.timeout.ms. The next response tells the rest of a longer debt.
PAUSE_MAX_S = 15.0
# Leading bits of an IPv6 address that stand for one host (RFC 6177): it may use all others freely.
_IPV6_HOST_BITS = 64
# RFC 4514's short names, as in Kafka's principals of certificates.
_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
}
# Payers remembered. A forgotten payer owes nothing any more.
PAYERS_MAX = 10_000


class ResponseBudget:
    """Both limits in bytes: `response_max` for one response, `total_max` for all being sent."""

    def __init__(self, response_max: int, total_max: int) -> None:
        self._response_max = response_max
        self._total_max = total_max
        self._blocks: dict[int, list[int]] = {}  # id of a block -> [size, holders]
        self._waiting: deque[asyncio.Event] = deque()
        self.bytes_in_use = 0
        for gauge in (REMOTE_RESPONSE_BYTES, RESPONSES_BYTES):
            gauge.set_function(lambda: self.bytes_in_use)

    @property
    def full(self) -> bool:
        return self.bytes_in_use >= self._total_max

    def room(self) -> int:
        """Bytes for one more response now; 0: one batch may go, unless the budget is `full`."""
        bytes_left = max(int(self._total_max * _CUT_SHARE) - self.bytes_in_use, 0)
        if bytes_left < self._response_max:
            LIMITS_REACHED.labels("remote_answers_bytes_max").inc()
            return bytes_left
        return self._response_max

    async def wait_for_room(self, deadline: float) -> bool:
        """While the budget is full, wait for a turn, at most until `deadline` (loop time, s).

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
        """Count a response until it has left or its client is gone. The caller must send the pieces
        that this yields, and drop its own.
        """
        pieces = self._light(pieces)
        blocks = self._hold(pieces)
        try:
            yield pieces
        finally:
            self._let_go(blocks)

    def _light(self, pieces: Sequence[Buffer]) -> Sequence[Buffer]:
        """When memory is short, copy pieces out of blocks that the response uses less than half."""
        if self.bytes_in_use < self._total_max * _PRESSED_SHARE:
            return pieces
        bytes_by_block: dict[int, int] = {}
        for piece in pieces:
            block = id(_block(piece))
            bytes_by_block[block] = bytes_by_block.get(block, 0) + len(piece)
        return [
            piece if 2 * bytes_by_block[id(_block(piece))] >= len(_block(piece)) else bytes(piece)
            for piece in pieces
        ]

    def _hold(self, pieces: Iterable[Buffer]) -> list[int]:
        blocks = {id(block): len(block) for block in map(_block, pieces)}
        for block, size in blocks.items():
            entry = self._blocks.setdefault(block, [size, 0])
            entry[1] += 1
            self.bytes_in_use += size if entry[1] == 1 else 0
        self._wake_next()
        return list(blocks)

    def _let_go(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            entry = self._blocks[block]
            entry[1] -= 1
            if not entry[1]:
                del self._blocks[block]
                self.bytes_in_use -= entry[0]
        self._wake_next()

    def _wake_next(self) -> None:
        """Wake one waiter per response that comes or goes: if all woke, most would find it full."""
        if self._waiting and not self.full:
            self._waiting.popleft().set()


def _block(piece: Buffer) -> Sized:
    """The block that stays in memory as long as `piece`."""
    return cast(Sized, piece.obj) if isinstance(piece, memoryview) else piece


class ResponseTurns:
    """At most `turns_max` turns at once, each at most `turn_max_s` long while others wait. A
    connection has one fetch at a time; any object may stand for it.
    """

    def __init__(self, turns_max: int, turn_max_s: float) -> None:
        self._turns_max = turns_max
        self._turn_max_s = turn_max_s
        self._queue: FairQueue[Hashable] = FairQueue()
        self._begun: dict[Hashable, asyncio.Event] = {}  # for the connections in the queue
        # Of each turn (loop time, s), oldest first.
        self._turn_begun_at: dict[Hashable, float] = {}
        self._timer: asyncio.TimerHandle | None = None  # ends the oldest; only while others wait

    async def take(self, connection: Hashable, size_bytes: int, deadline: float) -> bool:
        """Wait for a turn; after `deadline` (loop time, s), go on without one. `give_back` must
        follow. True: it waited.

        `size_bytes`: most bytes of the response; they count as given to the connection.
        """
        if len(self._turn_begun_at) < self._turns_max:  # then the queue is empty
            self._turn_begun_at[connection] = asyncio.get_running_loop().time()
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
        """Give back its turn or its place in the queue; does nothing if it has neither."""
        if self._turn_begun_at.pop(connection, None) is None and self._queue.remove(connection):
            del self._begun[connection]
        if self._timer is not None:
            self._grant()

    def _grant(self) -> None:
        now = asyncio.get_running_loop().time()
        while len(self._queue) and len(self._turn_begun_at) < self._turns_max:
            connection = self._queue.pop()
            self._turn_begun_at[connection] = now
            self._begun.pop(connection).set()
        REMOTE_RESPONSES_WAITING.set(len(self._queue))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._queue):
            oldest = next(iter(self._turn_begun_at.values()))
            due_at = oldest + self._turn_max_s
            self._timer = asyncio.get_running_loop().call_at(due_at, self._end_oldest)

    def _end_oldest(self) -> None:
        del self._turn_begun_at[next(iter(self._turn_begun_at))]
        self._grant()


def payer_of(transport: asyncio.BaseTransport, host: str | None = None) -> str:
    """The payer for archived bytes on this connection. Only a verified certificate counts.

    `host`: the client's address if it is not the socket's.
    """
    certificate = transport.get_extra_info("peercert") or {}
    names = certificate.get("subject") or certificate.get("subjectAltName")
    if names:
        return repr(names)
    peer = (host,) if host is not None else transport.get_extra_info("peername")
    return host_of(str(peer[0])) if peer else "unknown"


def certificate_user(transport: asyncio.BaseTransport) -> str:
    """The subject of a verified certificate, as text; "" if there is none."""
    certificate = transport.get_extra_info("peercert") or {}
    parts = [part for together in certificate.get("subject", ()) for part in together]
    return ",".join(f"{_SHORT.get(name, name)}={value}" for name, value in reversed(parts))


def host_of(address: str) -> str:
    """The address; of an IPv6 address, the network of its host."""
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
    """`bytes_per_s_max`: `remote_fetch.client_bytes_per_s_max`, asked at each response; 0: no
    limit. `clock`: the time in s.
    """

    def __init__(self, bytes_per_s_max: Callable[[], int], clock: Callable[[], float]) -> None:
        self._rate_now = bytes_per_s_max
        self._rate = 0
        self._clock = clock
        self._buckets: LRUCache[str, TokenBucket] = LRUCache(PAYERS_MAX)

    @property
    def _bytes_per_s_max(self) -> int:
        """With a changed rate, all payers begin without a debt."""
        if (rate := self._rate_now()) != self._rate:
            self._rate = rate
            self._buckets.clear()
        return self._rate

    def room(self, bytes_max: int) -> int:
        """Bytes for one response: at most one second's worth, so that no client owes for long."""
        return min(bytes_max, self._bytes_per_s_max or bytes_max)

    def owed_s(self, payer: str) -> float:
        """For how long the payer may get no archived records; 0: it may have them now."""
        if not self._bytes_per_s_max:
            return 0.0
        bucket = self._buckets.get(payer)
        return 0.0 if bucket is None else min(bucket.owed_s(self._clock()), PAUSE_MAX_S)

    def spend(self, payer: str, size_bytes: int) -> float:
        """Count archived bytes that are sent to the payer now. Returns `owed_s`."""
        rate = self._bytes_per_s_max
        if not rate or not size_bytes:
            return self.owed_s(payer)
        now = self._clock()
        bucket = self._buckets.get(payer)
        if bucket is None:
            bucket = self._buckets[payer] = TokenBucket(rate, now)
        return min(bucket.spend(size_bytes, now), PAUSE_MAX_S)


class Admission(NamedTuple):
    """The parts of admission, one of each per process, for all its connections."""

    responses: ResponseBudget
    turns: ResponseTurns
    rates: ClientRates
    consumer_paces: ConsumerPaces
    accounts: ReaderAccounts
    groups: GroupsOfClients


@dataclass(slots=True, eq=False, repr=False)
class ClientQuota:
    """The admission of one connection, which has one fetch at a time. `payer`: `payer_of` its
    transport once it is connected, or the user who has logged in. `user`: see `Client`.

    A fetch asks how long its payer still owes (`owed_s`). If it owes nothing, the fetch may
    `enter`: it waits for its turn and for memory. Before it waits for the store, it lets others go
    on (`to_store`). It is charged for its records (`charge`), which count as memory while it is
    `sending` them. Finally it waits for the time that it owes (`pay`). Every fetch, also of the
    tail, waits until its client has pace for it (`due_in`).

    A connection that has waited as long as it was told is served, whatever other connections of the
    same payer were given meanwhile. Otherwise the others could always come first.
    """

    _admission: Admission
    payer: str = ""
    user: str = ""
    _client: Client | None = None  # that asked last
    _account: ReaderAccount | None = None  # of that client
    _of_group: tuple[tuple[str, str], str] | None = None  # (address, client id), group
    _pause_s: float = 0.0  # the client was told to wait for so long
    _waited: bool = False
    _charged: int = 0
    _reader: Reader | None = None
    _may_pause: bool = False
    _software: str = ""
    groups: GroupsOfClients = field(init=False)

    def __post_init__(self) -> None:
        self.groups = self._admission.groups

    def client(self, address: str, client_id: str) -> Client:
        """The client of this connection, as it is known now. Clients take turns by it."""
        name, user = client_id[:NAME_CHARS_MAX], self.user[:NAME_CHARS_MAX]
        client = Client(address, name, user, self.groups.of(address, client_id))
        if client != self._client:
            self._client, self._account = client, None
        return client

    def asked_last(self) -> Client | None:
        """The client of the last request that was made for somebody; None: there was none."""
        return self._client

    def group_is(self, address: str, client_id: str, group: str) -> None:
        """This connection names the client's group."""
        named = (address, client_id), group[:NAME_CHARS_MAX]
        if named != self._of_group:
            self._leave_group()
            self._of_group = named
            self.groups.begin(*named)

    def _leave_group(self) -> None:
        if self._of_group is not None:
            self.groups.end(*self._of_group)
            self._of_group = None

    def software_is(self, name: str, version: str) -> None:
        """Set the client library's name and version; called before its first fetch, if at all."""
        self._may_pause = may_pause(name)
        self._software = f"{name} {version}".strip()[:SOFTWARE_SHOWN_MAX]

    def due_in(
        self,
        client: Callable[[], Client],
        node_id: int | None,
        partitions: Mapping[PartitionKey, FetchEntry],
        session_partitions: int = 0,
    ) -> float:
        """A fetch has come. Returns how long it must wait, in s: see `Reader.fetch_wait_s`."""
        if self._reader is None:
            self._reader = self._admission.consumer_paces.reader(
                client()[:2], node_id, partitions, self._software, paced=self._may_pause
            )
        return self._reader.fetch_wait_s(partitions, session_partitions)

    def fetch_repeats(self, named: int, session_partitions: int) -> bool:
        """A fetch has come that equals the one before: see `Reader.fetch_repeats`."""
        return self._reader is not None and self._reader.fetch_repeats(named, session_partitions)

    def budget_bytes(self, bytes_max: int) -> int:
        """`bytes_max` of a fetch, or less if its client takes less at once."""
        return bytes_max if self._reader is None else self._reader.budget_bytes(bytes_max)

    def responded(self, size_bytes: int) -> None:
        if self._reader is not None:
            self._reader.responded(size_bytes)

    @property
    def kept_bytes(self) -> int:
        return 0 if self._reader is None else self._reader.kept_bytes

    def close(self) -> None:
        self._leave_group()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def owed_s(self) -> float:
        """At the begin of a fetch: for how long it may get no archived records."""
        waited, self._waited = self._waited, False
        return 0.0 if waited else self._admission.rates.owed_s(self.payer)

    def reads_max(self, bytes_max: int) -> int:
        """The bytes to read for one response if `bytes_max` are wanted."""
        return self._admission.rates.room(bytes_max)

    async def enter(self, bytes_max: int, deadline: float) -> bool:
        """Wait for a turn, and for memory; after `deadline` (loop time, s), go on without them.

        True: it waited.
        """
        waited = await self._admission.turns.take(self, bytes_max, deadline)
        return await self._admission.responses.wait_for_room(deadline) or waited

    def to_store(self) -> None:
        """The fetch waits for the store, so others may go on; also if it has not entered."""
        self._admission.turns.give_back(self)

    def room(self, bytes_max: int) -> tuple[int, bool]:
        """Bytes for the records of a response, and whether the first batch may be larger."""
        responses = self._admission.responses
        return self._admission.rates.room(min(bytes_max, responses.room())), not responses.full

    def charge(self, size_bytes: int, *, must_wait: bool) -> int:
        """Count archived bytes that are sent. Returns the response's throttle_time_ms; `pay`
        follows.

        `must_wait`: the client must wait. If False, it gets no archived records while it owes.
        """
        self._charged += size_bytes
        owed_s = self._admission.rates.spend(self.payer, size_bytes)
        self._pause_s = owed_s if must_wait else 0.0
        self._note_served(size_bytes)
        if not self._pause_s:
            return 0
        CLIENT_THROTTLES.inc()
        CLIENT_THROTTLE_SECONDS.inc(self._pause_s)
        return int(self._pause_s * 1000) + 1

    def _note_served(self, size_bytes: int) -> None:
        if self._client is None or not (size_bytes or self._pause_s):
            return
        account = self._account
        if account is None or account.is_gone:
            account = self._account = self._admission.accounts.account_of(self._client)
        account.served_bytes += size_bytes
        account.throttle_s += self._pause_s

    @contextmanager
    def sending(self, pieces: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
        """As `ResponseBudget.taking`."""
        with self._admission.responses.taking(pieces) as pieces:
            yield pieces
        if self._charged:
            self.responded(self._charged)
            self._charged = 0

    async def pay(self) -> None:
        """After the response has left: a client that owes waits here."""
        pause_s, self._pause_s = self._pause_s, 0.0
        if pause_s:
            await asyncio.sleep(pause_s)
            self._waited = pause_s < PAUSE_MAX_S


def admission_of(
    config: Config, limits: ServingLimits, clock: Callable[[], float], accounts: ReaderAccounts
) -> Admission:
    gateway = config.gateway
    return Admission(
        ResponseBudget(limits.remote_answer_bytes_max, gateway.remote_answers_bytes_max),
        ResponseTurns(limits.remote_answer_turns_max, limits.remote_answer_turn_max_ms / 1000),
        ClientRates(lambda: config.remote_fetch.client_bytes_per_s_max, clock),
        ConsumerPaces(clock, enabled=gateway.pace_by_appetite),
        accounts,
        GroupsOfClients(),
    )
