"""The readers of an archive without brokers: users, their file, and their logins by SASL."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import tomllib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import structlog
from cachetools import LRUCache

from fetchproxy.errors import ConfigError
from fetchproxy.observability.health import Condition, Kind
from fetchproxy.observability.metrics import ARCHIVE_ONLY_LOGINS_WAITING, LIMITS_REACHED
from fetchproxy.runtime.fairness import FairTurns, TokenBucket
from fetchproxy.runtime.folders import Stamp, stamp_of

# The server's side of SCRAM (RFC 5802, RFC 7677). As in Kafka, passwords are the client's raw bytes
# (no SASLprep), and there is no channel binding.

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# Kafka's minimum (RFC 7677 too), and its own tools' maximum. Each iteration is work for clients.
ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 1_000_000
ITERATIONS_MADE = 16_384
_SALT_BYTES_MIN = 8

_KEYS = {"salt", "stored_key", "server_key", "iterations"}
_FIRST = re.compile(r"(?P<header>[ny],(?:a=(?P<authzid>[^,]*))?,)(?P<bare>n=(?P<name>[^,]*),r=.+)")
_FINAL = re.compile(r"(?P<bare>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*).*),p=(?P<proof>[^,]*)")
_NONCE = re.compile(r"[!-+\--~]+")  # printable ASCII except the comma
_ANY_ENDING = "*"
_TOPICS, _GROUPS = "topics", "groups"
PLAIN = "PLAIN"
# With one name from one address, over time; two may follow at once.
FAILED_LOGINS_PER_S_MAX = 1
# From one address. A check of PLAIN takes some 10 ms, so one address takes a fifth of a core.
ADDRESS_FAILED_LOGINS_PER_S_MAX = 20
# Some 1 KB each.
_LINES_MAX = 10_000
# What waits longer is shown.
_WAIT_SHOWN_S = 5.0
_NAME_SHOWN_MAX = 64
# A user who is removed from the file can read on for this long.
_LOOK_INTERVAL_S = 2.0

log = structlog.get_logger(__name__)


class LoginRefused(Exception):
    """The client gets a response, and the connection closes."""


def _malformed(message: str) -> LoginRefused:
    """The client's bytes are not SCRAM, or not the message that is due."""
    return LoginRefused(f"malformed SCRAM: {message}")


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What the server keeps of one password. Who reads it cannot log in with it, but can test
    guesses.
    """

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def text(self) -> str:
        """In the form of Kafka's own (ScramCredentialUtils)."""
        salt, stored, server = (
            b64encode(value).decode() for value in (self.salt, self.stored_key, self.server_key)
        )
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"


def credential_of(mechanism: str, password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Takes milliseconds, during which other threads run."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password, salt, iterations)
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", name), iterations)


def parse_credential(mechanism: str, text: str) -> ScramCredential:
    """`salt=…,stored_key=…,server_key=…,iterations=…`. Raises ValueError, without the text."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if fields.keys() != _KEYS:
        raise ValueError("expected salt=…,stored_key=…,server_key=…,iterations=…")
    try:
        salt, stored, server = (
            b64decode(fields[key], validate=True) for key in ("salt", "stored_key", "server_key")
        )
        iterations = int(fields["iterations"])
    except ValueError:
        raise ValueError("expected keys in base64 and iterations as a number") from None
    size = hashlib.new(HASHES[mechanism]).digest_size
    if (len(stored), len(server)) != (size, size) or len(salt) < _SALT_BYTES_MIN:
        raise ValueError(
            f"expected keys of {size} bytes and a salt of at least {_SALT_BYTES_MIN} bytes"
        )
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations")
    return ScramCredential(salt, stored, server, iterations)


def has_password(credential: ScramCredential, mechanism: str, password: bytes) -> bool:
    """For PLAIN, whose client sends the password itself. Takes milliseconds, as `credential_of`."""
    made = credential_of(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """A client's first message: its user name, and its half of the nonce."""

    header: str
    bare: str
    name: str
    nonce: str


def read_first(token: bytes) -> ClientFirst:
    """Raises LoginRefused."""
    text = _text(token)
    match = _FIRST.fullmatch(text)
    if match is None:
        raise _malformed("no client-first message without channel binding")
    nonce, _, extensions = match["bare"].partition(",r=")[2].partition(",")
    name = _name(match["name"])
    if extensions:
        # For example Kafka's `tokenauth`: there are no delegation tokens here.
        raise _malformed("extensions are not supported")
    if not _NONCE.fullmatch(nonce):
        raise _malformed("no nonce")
    if match["authzid"] and _name(match["authzid"]) != name:
        raise _malformed("acting as another user is not supported")
    return ClientFirst(match["header"], match["bare"], name, nonce)


@dataclass(frozen=True, slots=True)
class Challenge:
    """The server's response, with the data to judge the next message. `nonce`: the client's,
    followed by an unguessable part. `is_true`: the credential is a user's (see `credential_for`).
    """

    mechanism: str
    first: ClientFirst
    credential: ScramCredential
    nonce: str
    is_true: bool = True

    @property
    def message(self) -> str:
        salt = b64encode(self.credential.salt).decode()
        return f"r={self.nonce},s={salt},i={self.credential.iterations}"


def _read_plain(token: bytes) -> tuple[str, str, str] | None:
    """RFC 4616: authzid NUL authcid NUL passwd. None: malformed."""
    try:
        authzid, name, password = token.decode().split("\0")
    except ValueError:  # also a UnicodeDecodeError
        return None
    return authzid, name, password


def server_final(challenge: Challenge, token: bytes) -> bytes | None:
    """The server's proof for the client; None: a wrong password. Raises LoginRefused."""
    match = _FINAL.fullmatch(_text(token))
    if match is None:
        raise _malformed("no client-final message")
    if (
        _decoded(match["binding"]) != challenge.first.header.encode()
        or match["nonce"] != challenge.nonce
    ):
        raise _malformed("a client-final message of another exchange")
    name = HASHES[challenge.mechanism]
    auth_message = ",".join((challenge.first.bare, challenge.message, match["bare"])).encode()
    signature = hmac.digest(challenge.credential.stored_key, auth_message, name)
    proof = _decoded(match["proof"])
    if len(proof) != len(signature):
        raise _malformed(f"a proof of {len(proof)} bytes")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    stored_key = hashlib.new(name, client_key).digest()
    if not hmac.compare_digest(stored_key, challenge.credential.stored_key):
        return None
    return b"v=" + b64encode(hmac.digest(challenge.credential.server_key, auth_message, name))


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise _malformed("it is not UTF-8") from None


def _name(text: str) -> str:
    """RFC 5802 writes a comma as =2C and = as =3D."""
    if re.search("=(?!2C|3D)", text):
        raise _malformed("the user name has a bare =")
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise _malformed("it is not base64") from None


@dataclass(frozen=True, slots=True)
class Names:
    """Whole names, and beginnings of names."""

    whole: frozenset[str]
    beginnings: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        """`orders` is that name, `orders-*` all with that beginning, `*` all. Raises ValueError."""
        whole_names, beginnings = set(), []
        for pattern in patterns:
            name = pattern.removesuffix(_ANY_ENDING)
            if _ANY_ENDING in name:
                raise ValueError(f"{pattern!r}: expected * at the end only")
            if not pattern:
                raise ValueError("an empty name: expected a name, or a beginning and *")
            if name != pattern:
                beginnings.append(name)
            else:
                whole_names.add(name)
        return cls(frozenset(whole_names), tuple(beginnings))

    def __contains__(self, name: str) -> bool:
        return name in self.whole or name.startswith(self.beginnings)


@dataclass(frozen=True, slots=True)
class User:
    """`credentials` by SCRAM mechanism."""

    name: str
    topics: Names
    groups: Names
    credentials: Mapping[str, ScramCredential] = field(default_factory=dict, repr=False)

    @property
    def sees_everything(self) -> bool:
        """Whether the user may read all topics, and so may know all names."""
        return "" in self.topics.beginnings


_EVERYTHING = Names.of("*")
# Every client, if there is no file of users.
ANYBODY = User("", _EVERYTHING, _EVERYTHING)
# A client that has not logged in.
NOBODY = User("", Names.of(()), Names.of(()))


# The users' file: TOML, with a table for each user.
#
#     [alice]
#     topics = ["orders", "payments-*"]
#     groups = ["alice-*"]
#     SCRAM-SHA-256 = "salt=…,stored_key=…,server_key=…,iterations=16384"


Users = Mapping[str, User]  # by name


def mechanisms_of(users: Users) -> list[str]:
    """The SCRAM mechanisms for which some user has a password."""
    return [m for m in HASHES if any(m in user.credentials for user in users.values())]


def credential_for(
    users: Users, name: str, mechanism: str, secret: bytes
) -> tuple[ScramCredential, bool]:
    """The user's credential and True; else a credential that no password fits, and False.

    The client cannot tell which: that would reveal the users to guess for. `secret` belongs to this
    process, so that the same name always gets the same salt.
    """
    user = users.get(name)
    if user is not None and mechanism in user.credentials:
        return user.credentials[mechanism], True
    made = hmac.digest(secret, f"{mechanism} {name}".encode(), "sha512")
    keys = hmac.digest(secret, made, HASHES[mechanism])
    others = (u.credentials.get(mechanism) for u in users.values())
    like = next((other for other in others if other is not None), None)
    salt, iterations = made[: len(like.salt) if like else 16], ITERATIONS_MADE
    return ScramCredential(salt, keys, keys, like.iterations if like else iterations), False


def parse_users(text: str) -> Users:
    """Raises ValueError, which names the user and the key and no credential."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML: {error}") from None
    users = {name: _user(name, table) for name, table in document.items()}
    if not users:
        raise ValueError("it has no user, so no client could read")
    return users


def _user(name: str, table: object) -> User:
    if not name or "\0" in name:
        raise ValueError("expected a name in the head of each table")
    if not isinstance(table, dict):
        raise ValueError(f"{name}: expected a table for each user, [{name}]")
    unknown = table.keys() - {_TOPICS, _GROUPS, *HASHES}
    if unknown:
        raise ValueError(
            f"{name}: {', '.join(sorted(unknown))}: expected {_TOPICS}, {_GROUPS}, "
            + ", ".join(HASHES)
        )
    credentials = {m: _credential(name, m, table[m]) for m in HASHES if m in table}
    if not credentials:
        raise ValueError(f"{name}: expected {' or '.join(HASHES)}")
    return User(name, _names(name, _TOPICS, table), _names(name, _GROUPS, table), credentials)


def _credential(name: str, mechanism: str, value: object) -> ScramCredential:
    try:
        return parse_credential(mechanism, value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueError(f"{name}, {mechanism}: {error}") from None


def _names(name: str, key: str, table: Mapping[str, Any]) -> Names:
    """Without the key: none."""
    patterns = table.get(key, [])
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f'{name}, {key}: expected a list such as ["orders", "payments-*"]')
    try:
        return Names.of(patterns)
    except ValueError as error:
        raise ValueError(f"{name}, {key}: {error}") from None


class _Line:
    """Those who log in from one address, or with one name from there."""

    def __init__(self, failures_per_s_max: int, limit: str, now: float) -> None:
        self._turns = FairTurns(1)
        self._failures = TokenBucket(failures_per_s_max, now)
        self._limit = limit

    @asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[None]:
        """A turn after the pause for failures. A LoginRefused within it is one more."""
        clock = asyncio.get_running_loop().time
        async with self._turns.turn(client):
            while owed_s := self._failures.owed_s(clock()):
                LIMITS_REACHED.labels(self._limit).inc()
                await asyncio.sleep(max(owed_s, 0.001))  # a smaller rest may move no clock
            try:
                yield
            except LoginRefused:
                self._failures.spend(1, clock())
                raise


class Logins:
    """Shared by all connections: the users, and the addresses with failed logins. `load` first.

    If the file cannot be used later, its last users stay in force, and this is logged.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: Stamp = None
        self._fault: str | None = None
        self.users: Users = {}
        self._clock = asyncio.get_running_loop().time
        self._addresses: LRUCache[str, _Line] = LRUCache(_LINES_MAX)
        # By address and hash of the name, because names of strangers may be long.
        self._names: LRUCache[tuple[str, int], _Line] = LRUCache(_LINES_MAX)
        # Address and name of each attempt that waits, with the loop time of its beginning.
        self._waiting: dict[object, tuple[float, str, str]] = {}
        ARCHIVE_ONLY_LOGINS_WAITING.set_function(lambda: len(self._waiting))
        # One password at a time, because each costs a core some milliseconds. No address has more
        # than one here. The thread is for nothing else, so no hanging disk holds up a login.
        self._checker = ThreadPoolExecutor(1, "password check")
        self._secret = secrets.token_bytes(32)

    def close(self) -> None:
        self._checker.shutdown(wait=False, cancel_futures=True)

    async def has_password(
        self, credential: ScramCredential, mechanism: str, password: bytes
    ) -> bool:
        """As the function `has_password`, on a thread."""
        check = partial(has_password, credential, mechanism, password)
        return await asyncio.get_running_loop().run_in_executor(self._checker, check)

    async def load(self) -> None:
        """Raises ConfigError."""
        self._stamp, self.users = await asyncio.to_thread(self._read)

    async def run(self) -> NoReturn:
        """Follows the file."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            await self._look()

    async def _look(self) -> None:
        if self._fault is None and await asyncio.to_thread(stamp_of, self._file) == self._stamp:
            return
        try:
            await self.load()
        except ConfigError as error:
            if str(error) != self._fault:
                log.error(
                    "users_file_unusable",
                    error=str(error),
                    hint="correct the file; it is read again without a restart, and until then "
                    "the previous users stay in force",
                )
            self._fault = str(error)
            return
        self._fault = None
        log.info("users_file_read_again", users=len(self.users))

    def _read(self) -> tuple[Stamp, Users]:
        # The stamp from before reading: the next look sees later changes.
        stamp = stamp_of(self._file)
        place = f"archive_only.users_file = {self._file}"
        try:
            return stamp, parse_users(self._file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{place}: cannot be read: {error.strerror}") from None
        except ValueError as error:  # also a UnicodeDecodeError
            raise ConfigError(f"{place}: {error}") from None

    def credential(self, name: str, mechanism: str) -> tuple[ScramCredential, bool]:
        """See `credential_for`."""
        return credential_for(self.users, name, mechanism, self._secret)

    def still(self, user: User) -> User | None:
        """The same user in the present file, if the passwords are the same."""
        now = self.users.get(user.name)
        return None if now is None or now.credentials != user.credentials else now

    @asynccontextmanager
    async def attempt(self, address: str, name: str, client_id: str) -> AsyncIterator[None]:
        """Waits for its turn to be judged. Raise LoginRefused in it if it fails."""
        now, waits = self._clock(), object()
        limit = "failed_logins_per_s_max"
        of_name = _Line(FAILED_LOGINS_PER_S_MAX, limit, now)
        of_name = self._names.setdefault((address, hash(name)), of_name)
        of_address = _Line(ADDRESS_FAILED_LOGINS_PER_S_MAX, f"address_{limit}", now)
        of_address = self._addresses.setdefault(address, of_address)
        self._waiting[waits] = now, address, name
        try:
            async with of_name.turn(client_id), of_address.turn(hash(name)):
                del self._waiting[waits]
                yield
        finally:
            self._waiting.pop(waits, None)

    def conditions(self, now: float) -> Iterator[Condition]:
        """`Health` calls it."""
        since = next((began_at for began_at, _, _ in self._waiting.values()), now)
        if now - since < _WAIT_SHOWN_S:
            return
        waiting = Counter((address, name) for _, address, name in self._waiting.values())
        (address, name), count = waiting.most_common(1)[0]
        message = (
            f"{len(self._waiting)} logins wait, {count} of them from {address} as "
            f"{name[:_NAME_SHOWN_MAX]!r}: passwords from there are wrong"
        )
        yield Condition(Kind.CLIENTS_WAIT, message, "logins", since=since)


@dataclass(eq=False, repr=False)
class Login:
    """The login of one connection, until `step` raises LoginRefused. `_secret_path`: no one can
    listen, so PLAIN may be used. `name`: the name that the client gives.

    Logins by SASL: a connection has one attempt, as with a broker. Attempts with one user's name
    from one address are judged one after the other, and after failures only after a pause.
    Otherwise a rejected client tries again twenty times a second. Many clients may share the
    address of a load balancer, so wrong passwords for one name delay no other name there; and
    clients with the same name take turns by their ids. The names of an address share a second,
    higher rate, in turn, because a guesser may use many names. Names of users and other names are
    treated alike.
    """

    _logins: Logins
    _address: str
    _secret_path: bool
    mechanism: str | None = None
    name: str = ""
    user: User | None = None
    _challenge: Challenge | None = None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        scram = mechanisms_of(self._logins.users)
        return (PLAIN, *scram) if self._secret_path else tuple(scram)

    def choose(self, mechanism: str) -> bool:
        """Whether the mechanism may be used."""
        is_known = mechanism in self.mechanisms
        self.mechanism = mechanism if is_known else None
        return is_known

    async def step(self, token: bytes, client_id: str) -> bytes:
        """Takes the client's next token, returns the response's. Sets `user` after the last one."""
        if self.mechanism is None:
            raise LoginRefused("no mechanism was agreed on")
        if self.mechanism != PLAIN and self._challenge is None:
            return self._scram_challenge(self.mechanism, token)
        plain = None if self._challenge is not None else _read_plain(token)
        if plain is not None:
            self.name = plain[1]
        async with self._logins.attempt(self._address, self.name, client_id):
            if self._challenge is None:
                return await self._plain(plain)
            return self._scram_proof(self._challenge, token)

    async def _plain(self, parts: tuple[str, str, str] | None) -> bytes:
        if parts is None:
            raise LoginRefused("malformed PLAIN")
        authzid, _, password = parts
        if authzid not in ("", self.name):
            raise LoginRefused("acting as another user is not supported")
        users = self._logins.users
        user = users.get(self.name)
        has = user.credentials if user else {}
        mechanism = next((m for m in HASHES if m in has), mechanisms_of(users)[0])
        credential, is_true = self._logins.credential(self.name, mechanism)
        fits = await self._logins.has_password(credential, mechanism, password.encode())
        self._end(user if fits and is_true else None)
        return b""

    def _scram_challenge(self, mechanism: str, token: bytes) -> bytes:
        first = read_first(token)
        self.name = first.name
        credential, is_true = self._logins.credential(first.name, mechanism)
        nonce = first.nonce + secrets.token_urlsafe(24)
        challenge = self._challenge = Challenge(mechanism, first, credential, nonce, is_true)
        return challenge.message.encode()

    def _scram_proof(self, challenge: Challenge, token: bytes) -> bytes:
        final = server_final(challenge, token)
        is_known = final is not None and challenge.is_true
        user = self._logins.users.get(self.name) if is_known else None
        if user is not None and user.credentials.get(challenge.mechanism) != challenge.credential:
            user = None  # changed between the two messages
        self._end(user)
        return final or b""

    def _end(self, user: User | None) -> None:
        if user is None:
            raise LoginRefused("wrong user or password")
        self.user = user
