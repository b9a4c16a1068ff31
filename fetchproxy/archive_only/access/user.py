"""A user, and what may be read as this user. Values; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fetchproxy.archive_only.access.scram import ScramCredential

_ANY_ENDING = "*"


@dataclass(frozen=True, slots=True)
class Names:
    """Whole names, and beginnings of names."""

    whole: frozenset[str]
    beginnings: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        """`orders` is that name, `orders-*` all that begin so, `*` all. Raises ValueError."""
        whole, beginnings = set(), []
        for pattern in patterns:
            name = pattern.removesuffix(_ANY_ENDING)
            if _ANY_ENDING in name:
                raise ValueError(f"{pattern!r}: expected * at the end only")
            if not pattern:
                raise ValueError("an empty name: expected a name, or a beginning and *")
            if name != pattern:
                beginnings.append(name)
            else:
                whole.add(name)
        return cls(frozenset(whole), tuple(beginnings))

    def __contains__(self, name: str) -> bool:
        return name in self.whole or name.startswith(self.beginnings)


@dataclass(frozen=True, slots=True)
class User:
    """`credentials` by mechanism of SCRAM."""

    name: str
    topics: Names
    groups: Names
    credentials: Mapping[str, ScramCredential] = field(default_factory=dict, repr=False)


_EVERYTHING = Names.of("*")
# Everybody, where there is no file of users.
ANYBODY = User("", _EVERYTHING, _EVERYTHING)
# Who has not logged in.
NOBODY = User("", Names.of(()), Names.of(()))
