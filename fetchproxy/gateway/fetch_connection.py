"""What the fetches of one connection share: its sessions, its judgements, and the parked poll."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fetchproxy.gateway.answer_turns import ConnectionTurn
from fetchproxy.gateway.answers import FetchAnswer
from fetchproxy.gateway.archived_topics import TopicsOfConnection
from fetchproxy.gateway.client_rates import ConnectionPace
from fetchproxy.gateway.fetch_answer import EncodedTopics
from fetchproxy.gateway.fetch_judging import FetchJudging
from fetchproxy.gateway.fetch_marks import NOTHING_WITHHELD, Split
from fetchproxy.gateway.fetch_session import FetchSessionMirror
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.tail_marks import TailMarks
from fetchproxy.gateway.upstream_poll import UpstreamPoll
from fetchproxy.many_items import at_once, in_steps
from protocol.error_codes import ErrorCode
from protocol.fetch_request import FetchRequest, TopicRef
from protocol.fetch_response import FetchResponseHead, HeadPatch, PartitionPatch

if TYPE_CHECKING:
    from fetchproxy.gateway.client_session import ClientSession

NOTHING_INJECTED = EncodedTopics(0, ())


# Each partition costs the loop a microsecond or two, and what comes at once is walked in one turn.
WALKED_AT_ONCE = 1_000


class FetchConnection:
    """`parked` is a poll upstream that no fetch of the client has taken up yet.

    `cut_short`: the tail left the archive no room, so it is the archive's turn.
    `throttle_time_ms`: of answers that the client did not see.
    """

    def __init__(self, session: ClientSession, parts: GatewayParts) -> None:
        self.session = session
        self.parts = parts
        self.mirror = FetchSessionMirror(parts.new_session_id)
        self.judging = FetchJudging(parts, session.spawn, session.node_id)
        self.tail = TailMarks(parts, self.judging)
        self.pace = ConnectionPace(parts.rates, lambda: session.payer)
        self.turn = ConnectionTurn(parts.turns)
        self.topics = TopicsOfConnection(parts.archived)
        self.cut_short = False
        self.throttle_time_ms = 0
        self.head: FetchResponseHead | None = None  # of the broker's answer under way
        self.parked: UpstreamPoll | None = None

    def close(self) -> None:
        """The client is gone."""
        self.topics.close()
        self.judging.close()

    def drop(self) -> None:
        """Nor is anything under way any more."""
        if self.parked is not None:
            self.parked.answer.let_go()
        self.mirror.forget()
        self.judging.drop()
        self.topics.drop()
        self.head = self.parked = None

    def split_at_once(self) -> Split | None:
        """None: there is too much to look at for one step."""
        asked, changed = self.mirror.asked, self.mirror.changed
        if self.judging.marks.is_wide(asked, changed):
            return None
        return self._led(at_once(self.judging.split_in_steps(asked, changed)))

    async def split(self) -> Split:
        steps = self.judging.split_in_steps(self.mirror.asked, self.mirror.changed)
        return self._led(await in_steps(steps, self.parts.purgatory.steps.go_on))

    def _led(self, split: Split) -> Split:
        if split is not NOTHING_WITHHELD or not self.mirror.in_lockstep:
            self.mirror.lead(split.ahead)
        return split

    def expect(self, request: FetchRequest) -> FetchAnswer:
        if self.tail.is_read:
            self.parts.purgatory.steps.tail_is_read(request.max_wait_ms / 1000)
        splice = self.parts.addresses.splice_fetch_tags
        log_starts = self.topics.log_starts()
        answer = FetchAnswer(request.correlation_id, request.version, splice, log_starts)
        answer.walked_slowly = len(self.mirror.asked) > WALKED_AT_ONCE
        return answer

    def drop_answer(self) -> None:
        """The broker's answer under way does not leave: it has nothing, and there will be more."""
        assert self.head is not None
        self.mirror.on_withheld_answer(self.head.session_id)
        self.throttle_time_ms = max(self.throttle_time_ms, self.head.throttle_time_ms)

    def on_head(
        self, request: FetchRequest, head: FetchResponseHead, injected: EncodedTopics
    ) -> HeadPatch:
        self.head = head
        session_id = self.mirror.on_answer(head.error_code, head.session_id)
        if head.error_code:  # the client drops everything else
            injected = NOTHING_INJECTED
        throttle_time_ms, self.throttle_time_ms = self.throttle_time_ms, 0
        return HeadPatch(
            request.correlation_id, session_id, injected.topics, injected.pieces, throttle_time_ms
        )

    def on_error(self, topic: TopicRef, partition: int, code: int) -> PartitionPatch | None:
        """The catch: out of range becomes empty, and is judged."""
        key = (topic, partition)
        asked = self.mirror.asked.get(key)
        if code != ErrorCode.OFFSET_OUT_OF_RANGE or asked is None:
            self.tail.refuse(topic)
            return None
        self.tail.caught()
        return self.judging.catch(key, asked, self.session.client)

    async def discard_parked(self) -> None:
        """Get a parked poll out of the way; the broker will send its data again when asked."""
        poll = self.parked
        if poll is None:
            return

        def on_head(head: FetchResponseHead) -> HeadPatch:
            self.mirror.on_discarded_answer(head.error_code, head.session_id)
            self.throttle_time_ms = max(self.throttle_time_ms, head.throttle_time_ms)
            return HeadPatch(head.correlation_id, head.session_id)

        poll.answer.discarded = True
        poll.answer.attach(on_head, lambda topic, partition, code: None, poll.done.set)
        self.session.link_go_on()
        await poll.done.wait()
        self.parked = None
