"""The users of an archive, as their file says: TOML, a table for each user. Pure.

[alice]
topics = ["orders", "payments-*"]
groups = ["alice-*"]
SCRAM-SHA-256 = "salt=…,stored_key=…,server_key=…,iterations=16384"
"""

from __future__ import annotations

import hmac
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fetchproxy.archive_only.access.scram import (
    HASHES,
    ITERATIONS_MADE,
    ScramCredential,
    parse_credential,
)
from fetchproxy.archive_only.access.user import Names, User

_TOPICS, _GROUPS = "topics", "groups"


@dataclass(frozen=True, slots=True)
class Users:
    by_name: Mapping[str, User]

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Of SCRAM, that somebody has a password for."""
        return tuple(
            mechanism
            for mechanism in HASHES
            if any(mechanism in user.credentials for user in self.by_name.values())
        )

    def credential(self, name: str, mechanism: str, secret: bytes) -> tuple[ScramCredential, bool]:
        """The user's, and that it is true; else one that no password fits.

        Who asks cannot tell which: that would say whom there is to guess for. `secret` is this
        process's, so that the same name is answered with the same salt.
        """
        user = self.by_name.get(name)
        if user is not None and mechanism in user.credentials:
            return user.credentials[mechanism], True
        digest = HASHES[mechanism]
        made = hmac.digest(secret, f"{mechanism} {name}".encode(), "sha512")
        others = (u.credentials.get(mechanism) for u in self.by_name.values())
        like = next((other for other in others if other is not None), None)
        salt_bytes = len(like.salt) if like else 16
        keys = hmac.digest(secret, made, digest)
        return (
            ScramCredential(
                made[:salt_bytes], keys, keys, like.iterations if like else ITERATIONS_MADE
            ),
            False,
        )


def parse_users(text: str) -> Users:
    """Raises ValueError, which names the user and the key and no credential."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"no TOML: {error}") from None
    users = {name: _user(name, table) for name, table in document.items()}
    if not users:
        raise ValueError("no user in it, so that nobody could read anything")
    return Users(users)


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
    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
        raise ValueError(f'{name}, {key}: expected a list such as ["orders", "payments-*"]')
    try:
        return Names.of(patterns)
    except ValueError as error:
        raise ValueError(f"{name}, {key}: {error}") from None
