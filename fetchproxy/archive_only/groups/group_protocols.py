"""Which assignment protocol a group uses: one that all its members know. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Protocols = tuple[tuple[str, bytes], ...]  # (name, metadata), the preferred one first


def common_names(protocols: Iterable[Protocols]) -> set[str]:
    """Names that every member has."""
    names = [{name for name, _ in member} for member in protocols]
    return set.intersection(*names) if names else set()


def select_protocol(protocols: Sequence[Protocols]) -> str | None:
    """Each member votes for the first of its protocols that all have; None without members."""
    common = common_names(protocols)
    votes = Counter(next(name for name, _ in member if name in common) for member in protocols)
    return votes.most_common(1)[0][0] if votes else None
