"""How long the brokers keep what nobody archives, from the archive's newest timestamp."""

from __future__ import annotations

from test_console_partitions import TP, segment
from test_timeline import view

from fetchproxy.console.time_left import TimeLeft
from fetchproxy.metadata.catalogue import build_view

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS


def test_the_newest_archived_record_and_the_retention_tell() -> None:
    time_left = TimeLeft({"orders": (0.0, 10 * HOUR_MS)})
    archived = view((0, 99, NOW_MS - 8 * HOUR_MS), (100, 199, NOW_MS - 4 * HOUR_MS))
    assert time_left.seconds("orders", archived, NOW_MS) == 6 * 3600
    assert time_left.seconds("orders", archived, NOW_MS + 9 * HOUR_MS) == 0, "it has passed"


def test_what_is_not_known_is_not_told() -> None:
    archived = view((0, 99, NOW_MS - HOUR_MS))
    assert TimeLeft().seconds("orders", archived, NOW_MS) is None
    unlimited = TimeLeft({"orders": (0.0, None)})
    assert unlimited.seconds("orders", archived, NOW_MS) is None
    time_left = TimeLeft({"orders": (0.0, HOUR_MS)})
    assert time_left.seconds("orders", None, NOW_MS) is None
    assert time_left.seconds("orders", build_view(TP, [], 0.0), NOW_MS) is None
    assert time_left.seconds("orders", build_view(TP, [segment(0, 9)], 0.0), NOW_MS) is None
    assert time_left.seconds("orders", view((0, 9, 2 * NOW_MS)), NOW_MS) is None, "the future"
