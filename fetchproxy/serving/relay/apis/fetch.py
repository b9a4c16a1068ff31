"""Where a fetch is caught, split and merged: one handler per connection.

A fetch of the tail passes as it came; its answer is only scanned. When the scan meets
OffsetOutOfRange the partition is judged, and from then on it is *withheld* from the broker and read
from the archive, while the rest of the fetch goes upstream. An answer without records is dropped
for that, and the very fetch is answered with what the archive has; one that carries records leaves
at once, with that partition empty, and the next fetch has it.
What is ready first is answered first: tail data never waits for the archive, and data of the
archive does not wait for the broker's long poll, which is then *parked* until the next fetch.

An answer that is empty although there is more to read leaves at the client's own deadline.

Both tiers together stay within the fetch's max_bytes. Where one answer cannot take what both have,
they take turns. Remote data does not wait for min_bytes (as with Kafka's DelayedRemoteFetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fetchproxy_protocol.apis import MalformedMessage
from fetchproxy_protocol.fetch import (
    PARTITIONS_MAX,
    TOPIC_IDS_FROM,
    FetchRequest,
    encode_error_response,
    parse_fetch_request,
    request_in_steps,
    with_bytes_max,
    with_session,
)
from fetchproxy_protocol.headers import client_id, peek_request_header

from fetchproxy.runtime.loop import READ_AT_ONCE_BYTES_MAX, in_steps
from fetchproxy.serving.admission import Client
from fetchproxy.serving.relay.answers import Answer
from fetchproxy.serving.relay.broker_link import encode_poll
from fetchproxy.serving.relay.fetch_session import FetchKind
from fetchproxy.serving.relay.handling import Session
from fetchproxy.serving.relay.served_fetch import NOTHING_INJECTED, FetchConnection, ServedFetch
from fetchproxy.serving.relay.withheld import FetchMarks, SharedByFetches


class FetchHandler(FetchConnection):
    def __init__(self, session: Session, shared: SharedByFetches) -> None:
        super().__init__(session, shared)
        self._busy = False  # a fetch that passed is not answered yet
        self._read: FetchRequest | None = None  # a large one, that was read in steps
        self._paced = False  # the fetch at hand has waited for the client's appetite
        self._idle = asyncio.Event()

    @property
    def kept_bytes(self) -> int:
        """Of its fetch session, and of its appetite."""
        return self.mirror.kept_bytes + self.share.kept_bytes

    # -- requests --------------------------------------------------------------------------------
    def on_request(self, frame: bytes, body_at: int) -> bool:
        if self._busy:
            self.session.mute_while(self._until_idle(), "fetch-behind-fetch")
            return False
        if self._read is None and len(frame) > READ_AT_ONCE_BYTES_MAX:
            self.session.mute_while(self._read_in_steps(frame, body_at), "read-large-fetch")
            return False
        request, self._read = self._read or parse_fetch_request(frame[4:], body_at), None
        if request.replica_id >= 0:  # a follower must get its leader's own answer (KIP-405)
            self.session.send_upstream(frame, Answer(request.correlation_id))
            return True
        if not self._paced and (due_in := self._due_in(frame, request)):
            self._read, self._paced = request, True
            self.session.mute_while(asyncio.sleep(due_in), "pace-by-appetite")
            return False
        self._paced = False
        bytes_max = self.share.bytes_wanted(request.bytes_max)
        if bytes_max < request.bytes_max:
            frame = with_bytes_max(frame, body_at, request.version, bytes_max)
            request = request._replace(bytes_max=bytes_max)
        kind = self.mirror.on_request(request)
        if kind.error_code:
            refusal = self._refuse(request, kind.error_code)
            self.session.mute_while(refusal, "fetch-session-error")
            return True
        if len(self.mirror.asked) > PARTITIONS_MAX:
            raise MalformedMessage(f"a fetch session of more than {PARTITIONS_MAX} partitions")
        by_id = request.version >= TOPIC_IDS_FROM
        if by_id is not self.judging.by_id:
            # What is known under the former names is forgotten.
            self.judging.by_id = by_id
            self.judging.marks = FetchMarks(self.shared.permit_ttl_s)
        self.topics.asked(request.partitions.keys(), by_id, only_these=kind.lists_all)
        split = self.split_at_once()
        ended = not self.mirror.asked and not self.mirror.in_lockstep
        if split is None or split.withheld or self.parked is not None or ended:
            fetch = ServedFetch(self, request, kind, self._client(frame), self.clock())
            self.session.mute_while(fetch.run(split), "serve-fetch")
        else:
            self._pass(frame, body_at, request, kind)
        return True

    def _due_in(self, frame: bytes, request: FetchRequest) -> float:
        return self.share.due_in(
            lambda: self._client(frame),
            self.session.node_id,
            request.partitions,
            len(self.mirror.asked),
        )

    async def _read_in_steps(self, frame: bytes, body_at: int) -> None:
        """So that one client's ten thousand partitions do not keep the others waiting."""
        steps = request_in_steps(memoryview(frame)[4:], body_at)
        self._read = await in_steps(steps, self.steps.go_on)

    def _client(self, frame: bytes) -> Client:
        return self.session.client_host, client_id(frame, peek_request_header(frame, 4))

    def only_parked(self, expected: Iterable[Answer]) -> bool:
        return self.parked is not None and list(expected) == [self.parked.answer]

    async def _until_idle(self) -> None:
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def _refuse(self, request: FetchRequest, code: int) -> None:
        await self.session.drained()
        self.session.write_to_client(
            encode_error_response(request.version, request.correlation_id, code)
        )

    def _pass(self, frame: bytes, body_at: int, request: FetchRequest, kind: FetchKind) -> None:
        """Nothing is withheld: the request goes as it came, unless the sessions have parted."""
        if not self.mirror.rejoin():
            brokers_own = self.mirror.pass_on(request)
            if brokers_own is not None:
                frame = with_session(frame, body_at, request.version, *brokers_own)
            elif (upstream := self.mirror.upstream_request(frozenset())) is not None:
                frame = encode_poll(request, upstream, request.max_wait_ms)
        # The answer cannot come before the loop's next turn: nobody waits for what follows.
        self.session.send_upstream(frame, None)
        answer = self.expect(request)
        asked_at = self.clock()

        def withhold(patched: bool, errors_left: bool) -> bool:
            if not self.session.nothing_overtaken:
                return False
            self.drop_answer()
            # From here on, as the next request may be taken before this answer is done with.
            fetch = ServedFetch(self, request, kind, self._client(frame), asked_at)
            self.session.mute_while(fetch.run(self.split_at_once()), "serve-caught-fetch")
            return True

        def passed() -> None:
            self.share.answered(answer.frame_bytes)
            self.tail.answered(kind.lists_all, self.mirror.asked.keys())
            self._busy = False
            self._idle.set()

        answer.attach(
            lambda head: self.on_head(request, head, NOTHING_INJECTED),
            self.on_error,
            passed,
            withhold,
        )
        if not self.throttle_time_ms:  # else the answer's head is another
            answer.on_plain = self.mirror.on_fine_answer
            answer.own_session = not self.mirror.in_lockstep
        self._busy = True
        self.session.expect(answer)
