"""Records leave as views of the chunks they were read in, and a view keeps its whole chunk (block)
in memory, cached or not. So the blocks behind all responses are counted, each once, however many
clients read it. Answers are cut to the room that is left. The last quarter is kept for single
batches: with many slow readers, answers first become small before any client gets none. When the
last quarter is full too, the archive's part waits. A client that takes nothing is closed after
`ServingLimits.client_stall_max_ms`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import cast

from fetchproxy_protocol.primitives import Buffer

from fetchproxy.observability.metrics import (
    LIMITS_REACHED,
    REMOTE_RESPONSE_BYTES,
    RESPONSES_BYTES,
)

_CUT_SHARE = 0.75
# Above this share, a response's piece of a block is copied if it uses less than half of the block.
_PRESSED_SHARE = 0.5


class ResponseBudget:
    """Both limits in bytes: `response_max` for one response, `total_max` for all being sent."""

    def __init__(self, response_max: int, total_max: int) -> None:
        self._response_max = response_max
        self._total_max = total_max
        self._blocks: dict[int, list[int]] = {}  # id of a block -> [size, holders]
        self._waiting: deque[asyncio.Event] = deque()
        self.taken = 0
        for gauge in (REMOTE_RESPONSE_BYTES, RESPONSES_BYTES):
            gauge.set_function(lambda: self.taken)

    @property
    def full(self) -> bool:
        return self.taken >= self._total_max

    def room(self) -> int:
        """Bytes for one more answer now; 0: one batch may go, unless the budget is `full`."""
        left = max(int(self._total_max * _CUT_SHARE) - self.taken, 0)
        if left < self._response_max:
            LIMITS_REACHED.labels("remote_answers_bytes_max").inc()
            return left
        return self._response_max

    async def wait_for_room(self, deadline: float) -> bool:
        """While the budget is full, wait for a turn, at most until `deadline` (loop time, s).

        True: it waited.
        """
        if not self.full:
            return False
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn.wait()
        except TimeoutError:
            pass
        finally:
            if not turn.is_set():
                self._waiting.remove(turn)
        return True

    @contextmanager
    def taking(self, pieces: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
        """Count a response until it has left or its client is gone. The caller must send the pieces
        that this yields, and drop its own.
        """
        pieces = self._light(pieces)
        blocks = self._hold(pieces)
        try:
            yield pieces
        finally:
            self._let_go(blocks)

    def _light(self, pieces: Sequence[Buffer]) -> Sequence[Buffer]:
        """When memory is short, copy pieces out of blocks that the response uses less than half."""
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
        """Wake one waiter per answer that comes or goes: if all woke, most would find it full."""
        if self._waiting and not self.full:
            self._waiting.popleft().set()


def _block(piece: Buffer) -> Sized:
    """The block that stays in memory as long as `piece`."""
    return cast(Sized, piece.obj) if isinstance(piece, memoryview) else piece
