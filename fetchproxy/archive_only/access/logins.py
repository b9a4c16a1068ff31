"""Logins by SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512. Before one nothing else is answered.

A connection has one attempt, as with a broker: a failed one is answered, and the connection closes.
Attempts from one address are judged one after the other, and after failures not before a while:
clients that are let go unheard come again twenty times a second.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cachetools import LRUCache

from fetchproxy.archive_only.access.scram import (
    HASHES,
    Challenge,
    ScramError,
    challenge,
    has_password,
    read_first,
    server_final,
)
from fetchproxy.archive_only.access.user import User
from fetchproxy.archive_only.access.users import Users
from fetchproxy.archive_only.access.users_file import UsersFile
from fetchproxy.observability.metrics import LIMITS_REACHED
from fetchproxy.token_bucket import TokenBucket

PLAIN = "PLAIN"
# From one address, over time; two may follow at once.
FAILED_LOGINS_PER_S_MAX = 1
_ADDRESSES_MAX = 10_000


class LoginRefused(Exception):
    """The client is told, and the connection closed. `user` is what the client has said."""

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


class _Address:
    """Where attempts come from. `failures` allows one a second, and two at once."""

    __slots__ = ("failures", "turn")

    def __init__(self, now: float) -> None:
        self.turn = asyncio.Lock()
        self.failures = TokenBucket(FAILED_LOGINS_PER_S_MAX, now)


class Logins:
    """What all connections share: who there is, and which addresses have failed. `clock` in s."""

    def __init__(self, file: UsersFile, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._addresses: LRUCache[str, _Address] = LRUCache(_ADDRESSES_MAX)
        # One password at a time: each costs a core some milliseconds.
        self.checking = asyncio.Semaphore(1)
        self.secret = secrets.token_bytes(32)

    @property
    def users(self) -> Users:
        return self._file.users

    def still(self, user: User) -> User | None:
        """The same user by the file of now, with the same passwords."""
        now = self.users.by_name.get(user.name)
        return None if now is None or now.credentials != user.credentials else now

    @asynccontextmanager
    async def attempt(self, name: str) -> AsyncIterator[None]:
        """Of address `name`: its only one now, and late enough after its last failures."""
        address = self._addresses.get(name)
        if address is None:
            address = self._addresses[name] = _Address(self._clock())
        async with address.turn:
            while owed_s := address.failures.owed_s(self._clock()):
                LIMITS_REACHED.labels("failed_logins_per_s_max").inc()
                await asyncio.sleep(owed_s)
            try:
                yield
            except LoginRefused:
                address.failures.spend(1, self._clock())
                raise


@dataclass(slots=True)
class _Scram:
    asked: Challenge
    is_true: bool


class Login:
    """Of one connection. `secret_path`: nobody can listen, so PLAIN may be used.

    Once `step` has raised LoginRefused it is over.
    """

    def __init__(self, logins: Logins, address: str, secret_path: bool) -> None:
        self._logins = logins
        self._address = address
        self._secret_path = secret_path
        self.mechanism: str | None = None
        self._scram: _Scram | None = None
        self.user: User | None = None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        scram = self._logins.users.mechanisms
        return (PLAIN, *scram) if self._secret_path else scram

    def choose(self, mechanism: str) -> bool:
        """Whether it may be used."""
        known = mechanism in self.mechanisms
        self.mechanism = mechanism if known else None
        return known

    async def step(self, token: bytes) -> bytes:
        """The client's next token. Returns the answer's; `user` is set when it was the last one."""
        if self.mechanism is None:
            raise LoginRefused("no mechanism was agreed on")
        try:
            if self.mechanism != PLAIN and self._scram is None:
                return self._scram_challenge(self.mechanism, token)
            async with self._logins.attempt(self._address):
                if self._scram is None:
                    return await self._plain(token)
                return self._scram_proof(self._scram, token)
        except ScramError as error:
            raise LoginRefused(f"malformed SCRAM: {error}") from None

    async def _plain(self, token: bytes) -> bytes:
        """RFC 4616: authzid NUL authcid NUL passwd."""
        try:
            authzid, name, password = token.decode().split("\0")
        except ValueError:  # a UnicodeDecodeError is one
            raise LoginRefused("malformed PLAIN") from None
        if authzid not in ("", name):
            raise LoginRefused("another user to act as", name)
        user = self._logins.users.by_name.get(name)
        has = user.credentials if user else {}
        mechanism = next((m for m in HASHES if m in has), next(iter(self._logins.users.mechanisms)))
        credential, is_true = self._logins.users.credential(name, mechanism, self._logins.secret)
        async with self._logins.checking:
            fits = await asyncio.to_thread(has_password, credential, mechanism, password.encode())
        self._end(name, user if fits and is_true else None)
        return b""

    def _scram_challenge(self, mechanism: str, token: bytes) -> bytes:
        first = read_first(token)
        credential, is_true = self._logins.users.credential(
            first.name, mechanism, self._logins.secret
        )
        asked = challenge(mechanism, first, credential, secrets.token_urlsafe(24))
        self._scram = _Scram(asked, is_true)
        return asked.message.encode()

    def _scram_proof(self, scram: _Scram, token: bytes) -> bytes:
        asked = scram.asked
        try:
            final = server_final(asked, token)
        except ScramError as error:
            raise LoginRefused(f"malformed SCRAM: {error}", asked.first.name) from None
        is_known = final is not None and scram.is_true
        user = self._logins.users.by_name.get(asked.first.name) if is_known else None
        if user is not None and user.credentials.get(asked.mechanism) != asked.credential:
            user = None  # changed between the two messages
        self._end(asked.first.name, user)
        return final or b""

    def _end(self, name: str, user: User | None) -> None:
        if user is None:
            raise LoginRefused("wrong user or password", name)
        self.user = user
