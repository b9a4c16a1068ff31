"""One line a minute, for each thing that is warned about."""

from __future__ import annotations

from structlog.testing import capture_logs

from fetchproxy.observability.logs import EVENT_LINES_MAX, WARNING_INTERVAL_S, SparingWarnings


def test_the_same_warning_comes_once_a_minute() -> None:
    now = 0.0
    warnings = SparingWarnings(lambda: now)
    with capture_logs() as lines:
        for _ in range(3):
            warnings.warn("held", ("t", 0), partition=0)
            warnings.warn("held", ("t", 1), partition=1)
        assert [line["partition"] for line in lines] == [0, 1]
        now = WARNING_INTERVAL_S + 1
        warnings.warn("held", ("t", 0), partition=0)
    assert [line["partition"] for line in lines] == [0, 1, 0]


def test_one_request_cannot_fill_the_log() -> None:
    """An OffsetForLeaderEpoch of 8,000 topics held the loop for 1.6 s, mostly to log each."""
    now = 0.0
    warnings = SparingWarnings(lambda: now)
    with capture_logs() as lines:
        for number in range(8_000):
            warnings.warn("unknown", number, topic=number)
        warnings.warn("another", None)
        assert len(lines) == EVENT_LINES_MAX + 1
        now = WARNING_INTERVAL_S + 1
        warnings.warn("unknown", 8_000, topic=8_000)
    assert lines[-1]["suppressed_of_others"] == 8_000 - EVENT_LINES_MAX
