"""Decides which clients get archived records now, how many, and how fast."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from fetchproxy_protocol.fetch import FetchEntry, PartitionKey
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.config.schema import Config
from fetchproxy.observability.metrics import (
    CLIENT_THROTTLE_SECONDS,
    CLIENT_THROTTLES,
)
from fetchproxy.serving.client_rates import PAUSE_MAX_S, Client, ClientRates
from fetchproxy.serving.consumer_pacing import SOFTWARE_SHOWN_MAX, ConsumerPaces, Reader, may_pause
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.response_budget import ResponseBudget
from fetchproxy.serving.response_turns import ResponseTurns


class Admission(NamedTuple):
    """The four parts of admission, one of each per process, for all its connections."""

    responses: ResponseBudget
    turns: ResponseTurns
    rates: ClientRates
    consumer_paces: ConsumerPaces


@dataclass(slots=True, eq=False, repr=False)
class ClientQuota:
    """The admission of one connection, which has one fetch at a time. `payer`: `payer_of` its
    transport once it is connected, or the user who has logged in.

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
    _pause_s: float = 0.0  # the client was told to wait for so long
    _waited: bool = False
    _charged: int = 0
    _reader: Reader | None = None
    _may_pause: bool = False
    _software: str = ""

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
        """A fetch has come. Returns how long it must wait, in s. See Reader.asked."""
        if self._reader is None:
            self._reader = self._admission.consumer_paces.reader(
                client(), node_id, partitions, self._software, paced=self._may_pause
            )
        return self._reader.asked(partitions, session_partitions)

    def bytes_wanted(self, bytes_max: int) -> int:
        """`bytes_max` of a fetch, or less if its client takes less at once."""
        return bytes_max if self._reader is None else self._reader.bytes_wanted(bytes_max)

    def responded(self, size_bytes: int) -> None:
        if self._reader is not None:
            self._reader.responded(size_bytes)

    @property
    def kept_bytes(self) -> int:
        return 0 if self._reader is None else self._reader.kept_bytes

    def close(self) -> None:
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

    def charge(self, size_bytes: int, *, told: bool) -> int:
        """Count archived bytes that are sent. Returns the response's throttle_time_ms; `pay`
        follows.

        `told`: the client must wait. If False, it gets no archived records while it owes.
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


def admission_of(config: Config, limits: ServingLimits, clock: Callable[[], float]) -> Admission:
    gateway = config.gateway
    return Admission(
        ResponseBudget(limits.remote_answer_bytes_max, gateway.remote_answers_bytes_max),
        ResponseTurns(limits.remote_answer_turns_max, limits.remote_answer_turn_max_ms / 1000),
        ClientRates(config.remote_fetch.client_bytes_per_s_max, clock),
        ConsumerPaces(clock, enabled=gateway.pace_by_appetite),
    )
