from __future__ import annotations

import io
from itertools import count

import pytest
import structlog

from fetchproxy.config.schema import LogConfig
from fetchproxy.observability.logs import (
    RECENT_EVENTS,
    RECENT_EVENTS_MAX,
    RecentEvents,
    configure_logging,
)


@pytest.fixture
def events() -> RecentEvents:
    times = count()
    return RecentEvents(clock=lambda: f"t{next(times)}")


def test_alike_events_in_a_row_are_counted(events: RecentEvents) -> None:
    events.note("catch", topic="a")
    events.note("catch", topic="a")
    events.note("catch", topic="b")
    events.note("catch", topic="a")
    events_shown = [(e.at, e.details["topic"], e.count) for e in events.newest_first()]
    assert events_shown == [("t3", "a", 1), ("t2", "b", 1), ("t1", "a", 2)]


def test_the_oldest_are_forgotten(events: RecentEvents) -> None:
    for n in range(RECENT_EVENTS_MAX + 5):
        events.note("segment_copied", base_offset=n)
    newest = events.newest_first()
    assert len(newest) == RECENT_EVENTS_MAX
    assert newest[0].details == {"base_offset": str(RECENT_EVENTS_MAX + 4)}
    assert newest[-1].details == {"base_offset": "5"}


def test_secrets_and_length(events: RecentEvents) -> None:
    events.note("x", password="hunter2", url="s3://me:hunter2@b", error="e" * 10_000)
    details = events.newest_first()[0].details
    assert "hunter2" not in str(details)
    assert len(details["error"]) < 1_000


def test_log_lines_from_info_on_come_by_themselves() -> None:
    configure_logging(LogConfig(level="debug"), io.StringIO())
    log = structlog.get_logger("somewhere")
    log.debug("too_small")
    log.warning("store_failing", error="refused")
    newest = RECENT_EVENTS.newest_first()[0]
    assert (newest.event, newest.level) == ("store_failing", "warning")
    assert newest.details == {"error": "refused"}
    assert all(event.event != "too_small" for event in RECENT_EVENTS.newest_first())
