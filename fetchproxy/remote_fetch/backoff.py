"""How long to pause after the n-th failure. Pure: the random part is an argument."""

from __future__ import annotations

from dataclasses import dataclass

# 2^n overflows nothing, but there is no point in computing more than any `max_ms` can use.
_DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """Kafka's ExponentialBackoff: doubles from `initial_ms` to `max_ms`, spread by `jitter`."""

    initial_ms: int
    max_ms: int
    jitter: float  # 0 … 1: the pause lies within ± this share of its nominal length

    def pause_ms(self, failures: int, unit: float) -> float:
        """The pause after `failures` (1, 2, …) failures; `unit` is random in 0 … 1.

        Never above `max_ms`, so that what an outage costs after its end stays bounded.
        """
        if failures < 1:
            raise ValueError(f"{failures} failures need no pause")
        nominal = self.initial_ms << min(failures - 1, _DOUBLINGS_MAX)
        spread = 1 + self.jitter * (2 * unit - 1)
        return min(min(nominal, self.max_ms) * spread, self.max_ms)
