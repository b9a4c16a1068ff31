"""The groups of this node: gives each request to its group, and time to the groups.

Decides nothing about membership (`classic_group`) and keeps no offsets (`committed_offsets`). Has
no tasks: whoever asks waits on a future, and one timer per group brings the next deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import cast

from fetchproxy.archive_only.groups.classic_group import ClassicGroup
from fetchproxy.archive_only.groups.group_memory import (
    GROUP_BYTES,
    GroupMemory,
    group_bytes,
    join_bytes,
    member_bytes,
    texts_bytes,
)
from fetchproxy.archive_only.groups.group_values import (
    GroupLimits,
    GroupState,
    JoinReply,
    JoinRequest,
    Membership,
    Reply,
    SyncReply,
    SyncRequest,
    Ticket,
)
from fetchproxy.config.archive_only import ArchiveOnlyConfig
from fetchproxy.observability.metrics import ARCHIVE_ONLY_GROUPS, LIMITS_REACHED
from protocol.error_codes import ErrorCode


class GroupCoordinator:
    """`new_member_id(prefix)` makes an id that was never used before."""

    def __init__(
        self,
        config: ArchiveOnlyConfig,
        memory: GroupMemory,
        new_member_id: Callable[[str], str],
    ) -> None:
        self._groups_max = config.groups_max
        self._memory = memory
        delay_s = config.group_initial_rebalance_delay_ms / 1000
        self._limits = GroupLimits(config.group_members_max, delay_s)
        self._new_member_id = new_member_id
        self._groups: dict[str, ClassicGroup] = {}
        self._sizes: dict[str, int] = {}  # bytes, by group
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tickets = count(1)
        self._waiting: dict[Ticket, asyncio.Future[Reply]] = {}

    def close(self) -> None:
        """No timer outlives its owner; whoever waits is told to look for a coordinator."""
        for group in list(self._groups.values()):
            group.kill()
            self._settle(group)

    def groups(self) -> Iterable[ClassicGroup]:
        return self._groups.values()

    def group(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    async def join(self, group_id: str, request: JoinRequest) -> JoinReply:
        """When all members have joined, or the request's rebalance timeout is over."""
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id:
                return JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            if len(self._groups) >= self._groups_max:
                LIMITS_REACHED.labels("groups_max").inc()
                return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
            group = ClassicGroup(group_id, self._limits, self._new_member_id)
        if self._is_full(self._more_bytes(group, request)):
            return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
        self._groups[group_id] = group
        ticket, reply = self._expect()
        group.join(self._now(), ticket, request)
        self._note_size(group)
        return cast(JoinReply, await self._answered(group, ticket, reply))

    async def sync(self, group_id: str, request: SyncRequest) -> SyncReply:
        """When the leader has sent everybody's assignment."""
        group = self._groups.get(group_id)
        if group is None:
            return SyncReply(ErrorCode.UNKNOWN_MEMBER_ID)
        given = sum(len(data) for _, data in request.assignments)
        had = sum(len(member.assignment) for member in group.members.values())
        if self._is_full(given - had):
            return SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)
        ticket, reply = self._expect()
        group.sync(self._now(), ticket, request)
        del request  # what the group has not taken of it is not kept while it waits
        self._note_size(group)
        return cast(SyncReply, await self._answered(group, ticket, reply))

    def heartbeat(self, group_id: str, member: Membership) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.heartbeat(self._now(), member)
        self._settle(group)
        return error

    def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]]
    ) -> list[ErrorCode] | None:
        """For each (member id, instance id); None where there is no such group."""
        group = self._groups.get(group_id)
        if group is None:
            return None
        errors = [group.leave(self._now(), *member) for member in members]
        self._note_size(group)
        self._settle(group)
        return errors

    def check_commit(self, group_id: str, member: Membership) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            # Readers that assign themselves their partitions belong to no generation.
            return ErrorCode.NONE if member.generation < 0 else ErrorCode.ILLEGAL_GENERATION
        error = group.check_commit(self._now(), member)
        self._settle(group)
        return error

    # ----------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _note_size(self, group: ClassicGroup) -> None:
        size = group_bytes(group)
        self._memory.take(size - self._sizes.get(group.group_id, 0))
        self._sizes[group.group_id] = size

    def _more_bytes(self, group: ClassicGroup, request: JoinRequest) -> int:
        """What the group holds after the join beyond what it holds now, at the most."""
        more = join_bytes(request)
        if group.group_id not in self._sizes:
            more += GROUP_BYTES + texts_bytes([group.group_id])
        before = group.members.get(request.member_id)
        return more if before is None else more - member_bytes(before)

    def _is_full(self, more_bytes: int) -> bool:
        if self._memory.has_room(more_bytes):
            return False
        LIMITS_REACHED.labels("groups_bytes_max").inc()
        return True

    def _expect(self) -> tuple[Ticket, asyncio.Future[Reply]]:
        ticket = next(self._tickets)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = reply
        return ticket, reply

    async def _answered(
        self, group: ClassicGroup, ticket: Ticket, reply: asyncio.Future[Reply]
    ) -> Reply:
        self._settle(group)
        try:
            return await reply
        finally:
            self._waiting.pop(ticket, None)  # where the client has gone meanwhile

    def _settle(self, group: ClassicGroup) -> None:
        """Hand out what the group has answered, and set its timer."""
        for ticket, reply in group.take_replies():
            future = self._waiting.pop(ticket, None)
            if future is not None and not future.done():
                future.set_result(reply)
        timer = self._timers.pop(group.group_id, None)
        if timer is not None:
            timer.cancel()
        if group.unused or group.state is GroupState.DEAD:
            self._groups.pop(group.group_id, None)
            self._memory.take(-self._sizes.pop(group.group_id, 0))
        else:
            at = group.next_deadline()
            if at is not None:
                loop = asyncio.get_running_loop()
                self._timers[group.group_id] = loop.call_at(at, self._advance, group)
        ARCHIVE_ONLY_GROUPS.set(len(self._groups))

    def _advance(self, group: ClassicGroup) -> None:
        # The loop may call a timer earlier than its time, by its clock's resolution.
        at = group.next_deadline()
        now = self._now()
        group.advance(now if at is None else max(now, at))
        self._note_size(group)
        self._settle(group)
