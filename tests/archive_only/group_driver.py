"""Drives one classic group with a clock of its own, as clients would."""

from __future__ import annotations

from functools import partial
from itertools import count

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.serving.archive_only.groups import (
    ClassicGroup,
    JoinReply,
    JoinRequest,
    Membership,
    SyncReply,
    SyncRequest,
)
from fetchproxy.serving.limits import ArchiveOnlyLimits

SESSION_S, REBALANCE_S = 10.0, 30.0


class GroupDriver:
    def __init__(self, initial_delay_s: float = 0.0, members_max: int = 10) -> None:
        ids = count(1)
        self.now = 0.0
        limits = ArchiveOnlyLimits(
            group_members_max=members_max,
            group_initial_rebalance_delay_ms=round(initial_delay_s * 1000),
        )
        self.group = ClassicGroup("g", limits, lambda prefix: f"{prefix}-{next(ids)}")
        self._tickets = count(1)
        self.responses: dict[int, JoinReply | SyncReply] = {}

    def _response(self, ticket: int, reply: JoinReply | SyncReply) -> None:
        assert ticket not in self.responses, "answered twice"
        self.responses[ticket] = reply

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"meta"),),
        kind: str = "consumer",
        two_step: bool = False,
        skips: bool = True,
        client: str = "c",
    ) -> int:
        ticket = next(self._tickets)
        request = JoinRequest(
            member_id, instance, client, "host", SESSION_S, REBALANCE_S, kind, protocols,
            two_step, skips,
        )  # fmt: skip
        self.group.join(self.now, request, partial(self._response, ticket))
        return ticket

    def sync(
        self,
        reply: JoinReply,
        assignments: dict[str, bytes] | None = None,
        instance: str | None = None,
        **more: object,
    ) -> int:
        ticket = next(self._tickets)
        member = Membership(reply.member_id, instance, reply.generation_id)
        pairs = tuple((assignments or {}).items())
        request = SyncRequest(member, pairs, **more)  # type: ignore[arg-type]
        self.group.sync(self.now, request, partial(self._response, ticket))
        return ticket

    def heartbeat(self, reply: JoinReply, instance: str | None = None) -> ErrorCode:
        member = Membership(reply.member_id, instance, reply.generation_id)
        return self.group.heartbeat(self.now, member)

    def leave(self, member_id: str, instance: str | None = None) -> ErrorCode:
        return self.group.leave(self.now, member_id, instance)

    def advance_to(self, now: float) -> None:
        """As its owner would: at each deadline on the way."""
        while (at := self.group.next_deadline()) is not None and at <= now:
            self.now = max(self.now, at)
            self.group.advance(self.now)
        self.now = now

    def joined(self, ticket: int) -> JoinReply:
        reply = self.responses[ticket]
        assert isinstance(reply, JoinReply)
        return reply

    def synced(self, ticket: int) -> SyncReply:
        reply = self.responses[ticket]
        assert isinstance(reply, SyncReply)
        return reply
