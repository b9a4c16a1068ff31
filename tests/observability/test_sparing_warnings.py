"""One line a minute, for each thing that is warned about."""

from __future__ import annotations

from structlog.testing import capture_logs

from fetchproxy.observability.logs import WARNING_INTERVAL_S, SparingWarnings


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
