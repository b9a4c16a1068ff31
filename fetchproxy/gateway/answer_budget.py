"""How much memory archived records may hold while clients take them, for one and for all together.

Records leave as views of the chunks they were read in, and a view keeps its whole chunk in memory,
cached or not. So what counts is the blocks behind an answer, each once, however many clients it
goes to. Answers are cut to what is left; the last quarter is kept for single batches, so that many
slow readers make the others' answers small before anybody gets none. When that is full, too, the
archive's part waits: a client that takes nothing is closed after `gateway.client_stall_max_ms`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import cast

from fetchproxy.observability.budget_metrics import ANSWERS_BYTES
from fetchproxy.observability.metrics import LIMITS_REACHED, REMOTE_ANSWER_BYTES
from protocol.primitives import Buffer

_CUT_SHARE = 0.75
# From here on an answer that uses less than half of its blocks is copied out of them.
_PRESSED_SHARE = 0.5


class AnswerBudget:
    """Bytes; `answer_max` is for one answer, `total_max` for all that are on their way."""

    def __init__(self, answer_max: int, total_max: int) -> None:
        self._answer_max = answer_max
        self._total_max = total_max
        self._blocks: dict[int, list[int]] = {}  # id of a block -> [size, holders]
        self._waiting: deque[asyncio.Event] = deque()
        self.taken = 0
        for gauge in (REMOTE_ANSWER_BYTES, ANSWERS_BYTES):
            gauge.set_function(lambda: self.taken)

    @property
    def full(self) -> bool:
        return self.taken >= self._total_max

    def room(self) -> int:
        """For one more answer, now; 0: a single batch, unless it is `full`."""
        left = max(int(self._total_max * _CUT_SHARE) - self.taken, 0)
        if left < self._answer_max:
            LIMITS_REACHED.labels("remote_answers_bytes_max").inc()
            return left
        return self._answer_max

    async def wait_for_room(self, deadline: float) -> None:
        """While it is full, until it is this one's turn; at most to `deadline` (loop time, s)."""
        if not self.full:
            return
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn.wait()
        except TimeoutError:
            return
        finally:
            if not turn.is_set():
                self._waiting.remove(turn)

    @contextmanager
    def taking(self, pieces: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
        """Until the answer has left, or its client is gone: send what this gives, drop the rest."""
        pieces = self._light(pieces)
        blocks = self._hold(pieces)
        try:
            yield pieces
        finally:
            self._let_go(blocks)

    def _light(self, pieces: Sequence[Buffer]) -> Sequence[Buffer]:
        """Without blocks that are mostly not in the answer, when memory is short."""
        if self.taken < self._total_max * _PRESSED_SHARE:
            return pieces
        used: dict[int, int] = {}
        for piece in pieces:
            used[id(_block(piece))] = used.get(id(_block(piece)), 0) + len(piece)
        return [
            piece if 2 * used[id(_block(piece))] >= len(_block(piece)) else bytes(piece)
            for piece in pieces
        ]

    def _hold(self, pieces: Iterable[Buffer]) -> list[int]:
        blocks = {id(block): len(block) for block in map(_block, pieces)}
        for block, size in blocks.items():
            held = self._blocks.setdefault(block, [size, 0])
            held[1] += 1
            self.taken += size if held[1] == 1 else 0
        self._wake_next()
        return list(blocks)

    def _let_go(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            held = self._blocks[block]
            held[1] -= 1
            if not held[1]:
                del self._blocks[block]
                self.taken -= held[0]
        self._wake_next()

    def _wake_next(self) -> None:
        """One for each answer that comes or goes: all of them would find it full again."""
        if self._waiting and not self.full:
            self._waiting.popleft().set()


def _block(piece: Buffer) -> Sized:
    """What stays in memory for as long as `piece` does."""
    return cast(Sized, piece.obj) if isinstance(piece, memoryview) else piece
