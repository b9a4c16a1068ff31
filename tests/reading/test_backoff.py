from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.runtime.retrying import Backoff


def test_doubles_up_to_the_maximum() -> None:
    backoff = Backoff(initial_ms=100, max_ms=5_000, jitter=0.0)
    pauses = [backoff.pause_ms(n, 0.5) for n in range(1, 9)]
    assert pauses == [100, 200, 400, 800, 1600, 3200, 5000, 5000]


def test_jitter_spreads_to_both_sides() -> None:
    backoff = Backoff(initial_ms=100, max_ms=5_000, jitter=0.2)
    assert backoff.pause_ms(1, 0.0) == pytest.approx(80)
    assert backoff.pause_ms(1, 1.0) == pytest.approx(120)
    assert backoff.pause_ms(20, 0.0) == pytest.approx(4_000)


def test_no_failure_has_no_pause() -> None:
    with pytest.raises(ValueError, match="0 failures"):
        Backoff(1, 1, 0).pause_ms(0, 0.5)


@given(
    st.integers(1, 10_000),
    st.integers(1, 100_000),
    st.floats(0, 1),
    st.integers(1, 10**6),
    st.floats(0, 1),
)
def test_never_negative_never_above_the_maximum(
    initial: int, longest: int, jitter: float, failures: int, unit: float
) -> None:
    assert 0 <= Backoff(initial, longest, jitter).pause_ms(failures, unit) <= longest
