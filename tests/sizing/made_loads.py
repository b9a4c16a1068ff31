"""Generated loads, from a trickle to a large cluster."""

from __future__ import annotations

from hypothesis import strategies as st

from fetchproxy.sizing.estimate import Workload


def loads() -> st.SearchStrategy[Workload]:
    return st.builds(
        Workload,
        mb_per_s=st.floats(0, 10_000),
        partitions=st.integers(1, 100_000),
        retention_days=st.floats(0, 5_000),
        readers=st.floats(0, 20),
        replay_mb_per_s=st.floats(0, 10_000),
        segment_bytes=st.integers(1024, 8 * 1024**3),
        segment_age_s=st.floats(0.001, 100_000),
        ratio=st.floats(0.01, 1),
        manager=st.sampled_from(["store", "topic"]),
        recovery_point_s=st.just(0.0) | st.floats(0.05, 3600),
        state_interval_s=st.just(0.0) | st.floats(0.05, 86_400),
    )
