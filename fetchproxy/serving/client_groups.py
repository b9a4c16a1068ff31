"""Which consumer groups the connections of a client name: one consumer has several connections."""

from __future__ import annotations


class GroupsOfClients:
    """Which groups the connections of a client name, while they are open.

    Consumers talk to their group's coordinator on a connection of its own, so its group belongs to
    all connections with the same address and client id. With several groups there it cannot be
    told which one reads.
    """

    SEVERAL = "(several)"

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], dict[str, int]] = {}
        self.changes = 0  # of what `of` returns

    def of(self, address: str, client_id: str) -> str:
        """ "" if no group is known."""
        groups = self._named.get((address, client_id))
        if groups is None:
            return ""
        return next(iter(groups)) if len(groups) == 1 else self.SEVERAL

    def begin(self, place: tuple[str, str], group: str) -> None:
        self.changes += 1
        groups = self._named.setdefault(place, {})
        groups[group] = groups.get(group, 0) + 1

    def end(self, place: tuple[str, str], group: str) -> None:
        self.changes += 1
        groups = self._named[place]
        groups[group] -= 1
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._named[place]

    def items(self) -> list[tuple[tuple[str, str], tuple[str, ...]]]:
        """The groups of each (address, client id)."""
        return [(place, tuple(groups)) for place, groups in self._named.items()]
