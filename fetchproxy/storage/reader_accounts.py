"""Who reads history, and what it costs: requests to the store, bytes and throttle time by client.

A client is known by its address, client id, user and group, as far as the proxy knows them. Each
try of a request to the store is counted once, where it is sent (`WatchedObjectStore`). It is paid
by the client for which the work was begun (`paid_by`): the first that asked. Others that wait for
the same read, or find its chunk in memory or on the local disk, pay nothing for it, but their
archived bytes count as served to them. What the process does for nobody in particular (its own
looks at the archive, copies, deletions) is on its own account. So all accounts together have what
the store has.

Both tables are bounded. A client that is not heard of for FORGOTTEN_AFTER_S is forgotten, and its
figures join those of the `others`. Up to SERIES_MAX clients have series of metrics of their own;
what the rest does meanwhile counts as `other`, so that no counter ever falls.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fetchproxy.observability.metrics import (
    READER_SERVED_BYTES,
    READER_STORE_BYTES,
    READER_STORE_REQUESTS,
    READER_THROTTLE_SECONDS,
)
from fetchproxy.runtime.cooperative import collected, cooperative

# Clients may choose their names, so there may be any number of them. Each takes about 1 KiB.
ACCOUNTS_MAX = 10_000
# As many as people can read, and six lines of `/metrics` each.
SERIES_MAX = 25
# A nightly job is forgotten before its next run; a consumer that waits for records is not.
FORGOTTEN_AFTER_S = 900.0
LOOK_INTERVAL_S = 60.0
_SETTLED_A_LOOK = 12  # every 5 s
# A client gets the series of another one if it has had so many times the bytes since the last look.
_PUSHES_OUT = 2
# Of each name in an account: a client may choose them.
NAME_CHARS_MAX = 100


class Client(NamedTuple):
    """`user`: who has logged in, or the subject of its certificate. `group`: what its connections
    name; several groups are one word. Both are empty if the proxy does not know them.
    """

    address: str
    client_id: str
    user: str = ""
    group: str = ""


# Addresses that no client has.
THIS_PROCESS = Client("this process", "")
OTHER = Client("other", "")


class StoreRequest(StrEnum):
    """Stores have one price for reads, and one for writes and listings. Deletions are free."""

    GET = "get"
    LIST = "list"
    PUT = "put"


_payer: ContextVar[Client] = ContextVar("payer", default=THIS_PROCESS)


@contextmanager
def paid_by(client: Hashable) -> Iterator[None]:
    """The requests to the store within are `client`'s; anything but a Client: the process' own."""
    token = _payer.set(client if isinstance(client, Client) else THIS_PROCESS)
    try:
        yield
    finally:
        _payer.reset(token)


class _Series:
    """A client's own series of metrics."""

    def __init__(self, client: Client) -> None:
        self._labels = tuple(client)
        self.requests = {
            kind: READER_STORE_REQUESTS.labels(*self._labels, kind.value) for kind in StoreRequest
        }
        self.store_bytes = READER_STORE_BYTES.labels(*self._labels)
        self.served_bytes = READER_SERVED_BYTES.labels(*self._labels)
        self.throttle_seconds = READER_THROTTLE_SECONDS.labels(*self._labels)

    def withdraw(self) -> None:
        for kind in StoreRequest:
            READER_STORE_REQUESTS.remove(*self._labels, kind.value)
        for metric in (READER_STORE_BYTES, READER_SERVED_BYTES, READER_THROTTLE_SECONDS):
            metric.remove(*self._labels)


@dataclass(slots=True)
class ReaderAccount:
    """Counts since the client came. `served_bytes`: archived bytes of its responses. Who serves the
    client adds to `served_bytes` and `throttle_s` without a call.
    """

    client: Client
    gets: int = 0
    lists: int = 0
    puts: int = 0
    store_bytes: int = 0
    served_bytes: int = 0
    throttle_s: float = 0.0
    seen_at: float = 0.0  # loop time, s
    series: _Series | None = None
    bytes_before: int = 0  # at the last look
    settled_bytes: int = 0  # the parts of `served_bytes` and `throttle_s` that the metrics have
    settled_s: float = 0.0
    is_gone: bool = False  # forgotten: whoever holds it asks for the client's account anew

    @property
    def bytes_lately(self) -> int:
        return self.store_bytes + self.served_bytes - self.bytes_before

    def add(self, other: ReaderAccount) -> None:
        self.gets += other.gets
        self.lists += other.lists
        self.puts += other.puts
        self.store_bytes += other.store_bytes
        self.served_bytes += other.served_bytes
        self.throttle_s += other.throttle_s


class ReaderAccounts:
    """One per archive that is open. `others`: the sums of all clients that are forgotten."""

    def __init__(self, accounts_max: int = ACCOUNTS_MAX, series_max: int = SERIES_MAX) -> None:
        self._accounts_max = accounts_max
        self._series_max = series_max
        # The one that was not heard of for longest comes first.
        self._accounts: dict[Client, ReaderAccount] = {}
        self._series_count = 0
        self.others = ReaderAccount(OTHER)
        self.this_process = ReaderAccount(THIS_PROCESS)
        self._of_others: _Series | None = None

    def __len__(self) -> int:
        return len(self._accounts)

    def clients(self) -> list[ReaderAccount]:
        """All clients that are known now."""
        return list(self._accounts.values())

    # -- counts ------------------------------------------------------------------------------------
    def requested(self, kind: StoreRequest, requests: int = 1) -> None:
        """Requests are about to be sent to the store for the present payer."""
        account, series = self._of(_payer.get())
        if kind is StoreRequest.GET:
            account.gets += requests
        elif kind is StoreRequest.LIST:
            account.lists += requests
        else:
            account.puts += requests
        series.requests[kind].inc(requests)

    def received(self, size_bytes: int) -> None:
        """Bytes came from the store for the present payer."""
        account, series = self._of(_payer.get())
        account.store_bytes += size_bytes
        series.store_bytes.inc(size_bytes)

    def account_of(self, client: Client) -> ReaderAccount:
        return self._of(client)[0]

    async def settle(self) -> None:
        """Bring the metrics up to date."""
        async for account in cooperative(self.clients()):
            if not account.is_gone:
                self._settle(account)

    def _settle(self, account: ReaderAccount) -> None:
        served = account.served_bytes - account.settled_bytes
        throttle_s = account.throttle_s - account.settled_s
        if served or throttle_s:
            _, series = self._of(account.client)
            series.served_bytes.inc(served)
            series.throttle_seconds.inc(throttle_s)
            account.settled_bytes, account.settled_s = account.served_bytes, account.throttle_s

    def _of(self, client: Client) -> tuple[ReaderAccount, _Series]:
        if client is THIS_PROCESS:
            account = self.this_process
        else:
            known = self._accounts.pop(client, None)
            account = self._accounts[client] = self._begun(client) if known is None else known
            account.seen_at = asyncio.get_running_loop().time()
        if account.series is None and (
            account is self.this_process or self._series_count < self._series_max
        ):
            self._publish_account(account)
        if account.series is not None:
            return account, account.series
        if self._of_others is None:
            self._of_others = _Series(OTHER)
        return account, self._of_others

    def _begun(self, client: Client) -> ReaderAccount:
        if len(self._accounts) >= self._accounts_max:
            self._forget(next(iter(self._accounts.values())))
        return ReaderAccount(client)

    # -- looks -------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Settles and looks at intervals, for ever."""
        while True:
            for _ in range(_SETTLED_A_LOOK):
                await asyncio.sleep(LOOK_INTERVAL_S / _SETTLED_A_LOOK)
                await self.settle()
            await self.look()

    async def look(self) -> None:
        """Forget who is gone, and give the series to those who read most."""
        await self.settle()
        gone_before = asyncio.get_running_loop().time() - FORGOTTEN_AFTER_S
        async for account in cooperative(self.clients()):
            if account.seen_at < gone_before:
                self._forget(account)
        await self._choose_clients_with_series()
        async for account in cooperative(self.clients()):
            account.bytes_before = account.store_bytes + account.served_bytes

    async def _choose_clients_with_series(self) -> None:
        accounts = await collected(self.clients())
        with_series = [account for account in accounts if account.series is not None]
        smallest = sorted(with_series, key=lambda one: one.bytes_lately)
        hidden = (one for one in accounts if one.series is None)
        largest = heapq.nlargest(self._series_max, hidden, key=lambda one: one.bytes_lately)
        for coming, going in zip(largest, smallest, strict=False):
            if coming.bytes_lately <= _PUSHES_OUT * going.bytes_lately:
                break
            self._hide(going)
            self._publish_account(coming)

    def _forget(self, account: ReaderAccount) -> None:
        if account.is_gone:
            return
        self._settle(account)
        self._hide(account)
        del self._accounts[account.client]
        account.is_gone = True
        self.others.add(account)

    def _publish_account(self, account: ReaderAccount) -> None:
        account.series = _Series(account.client)
        self._series_count += account is not self.this_process

    def _hide(self, account: ReaderAccount) -> None:
        if account.series is not None:
            account.series.withdraw()
            account.series = None
            self._series_count -= 1
