"""What groups and their commits hold in memory: one limit, `archive_only.groups_bytes_max`.

All that clients send and that stays is counted, names as much as what they name: Kafka lets an id
have 32 KiB. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof

from fetchproxy.archive_only.groups.classic_group import ClassicGroup
from fetchproxy.archive_only.groups.group_values import JoinRequest, Member

# What comes with each, however short its names are, measured on 64-bit Python 3.11 and rounded up.
GROUP_BYTES = 2_048
MEMBER_BYTES = 1_024
PROTOCOL_BYTES = 64
OFFSET_BYTES = 512


class GroupMemory:
    """`held_bytes` of `bytes_max`. Whoever takes gives back."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held_bytes = 0

    def has_room(self, more_bytes: int) -> bool:
        return more_bytes <= 0 or self.held_bytes + more_bytes <= self._bytes_max

    def take(self, size_bytes: int) -> None:
        """Negative: what is given back."""
        self.held_bytes += size_bytes


def group_bytes(group: ClassicGroup) -> int:
    names = [group.group_id, group.protocol_type or "", *group.pending]
    members = sum(member_bytes(member) for member in group.members.values())
    return GROUP_BYTES + texts_bytes(names) + members


def member_bytes(member: Member) -> int:
    names = [member.member_id, member.client_id, member.client_host, member.group_instance_id or ""]
    brought = protocols_bytes(member.protocols)
    return MEMBER_BYTES + texts_bytes(names) + brought + getsizeof(member.assignment)


def join_bytes(request: JoinRequest) -> int:
    """What a member holds that joins with it; its id is made of its instance's or client's."""
    instance = request.group_instance_id or ""
    names = [request.client_id, request.client_host, instance, instance or request.client_id]
    names.append(request.protocol_type)
    return MEMBER_BYTES + texts_bytes(names) + protocols_bytes(request.protocols)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    return sum(PROTOCOL_BYTES + getsizeof(name) + getsizeof(data) for name, data in protocols)


def texts_bytes(texts: Iterable[str]) -> int:
    return sum(getsizeof(text) for text in texts)
