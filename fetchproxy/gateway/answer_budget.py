"""How many bytes of the archive may wait for clients to take them, for one and for all together.

Nobody waits for room: an answer is cut to it. One batch goes out in any case, or a client that
reads nothing could starve the others for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fetchproxy.observability.metrics import LIMITS_REACHED, REMOTE_ANSWER_BYTES


class AnswerBudget:
    """Bytes; `answer_max` is for one answer, `total_max` for all that are on their way."""

    def __init__(self, answer_max: int, total_max: int) -> None:
        self._answer_max = answer_max
        self._total_max = total_max
        self.taken = 0

    def room(self) -> int:
        """For one more answer, now."""
        left = max(self._total_max - self.taken, 0)
        if left < self._answer_max:
            LIMITS_REACHED.labels("remote_answers_bytes_max").inc()
            return left
        return self._answer_max

    @contextmanager
    def taking(self, size_bytes: int) -> Iterator[None]:
        """Until the answer has left, or its client is gone."""
        self.taken += size_bytes
        REMOTE_ANSWER_BYTES.set(self.taken)
        try:
            yield
        finally:
            self.taken -= size_bytes
            REMOTE_ANSWER_BYTES.set(self.taken)
