"""While all is well, no alert fires."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alert_play import OF_THE_MACHINE, Watched, assert_fires, run_promtool, timeline
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, archived_ends, produce

from lab.dashboards import OVERVIEW, Panel, expanded
from lab.kafka import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("promtool")]

SETTINGS: dict[str, object] = {"archive.segment_age_max_ms": 1_000}


@contextmanager
def lateness() -> Iterator[list[float]]:
    """By how much this test's own timers are late: then the machine is busy, not the process."""
    late, ended = [], threading.Event()

    def watch() -> None:
        due_at = time.monotonic() + 0.2
        while not ended.wait(max(due_at - time.monotonic(), 0.0)):
            late.append(time.monotonic() - due_at)
            due_at = time.monotonic() + 0.2

    thread = threading.Thread(target=watch)
    thread.start()
    yield late
    ended.set()
    thread.join()


def test_nothing_fires_in_a_quiet_hour(kafka_server: KafkaServer, tmp_path: Path) -> None:
    name, store = "quiet", (tmp_path / "store").as_uri()
    kafka_server.create_topic(name, 6)
    data = TopicData(name)
    produce(kafka_server.bootstrap, data, 200, partition_count=6)
    with ProxyProcess(
        kafka_server.bootstrap, store, tmp_path, archive=name, settings=SETTINGS
    ) as proxy:
        ends = data.ends(kafka_server.bootstrap)
        wait_for("the archive", lambda: archived_ends(store, name) == ends)
        watched = Watched(proxy.console_port)
        wait_for("no lag", lambda: watched.value("fetchproxy_archive_lag_offsets") == 0)
        with lateness() as late:
            watched.look_twice(10.0)
        busy = sorted(late)[len(late) * 9 // 10] > 0.05
        assert_fires(watched.scrapes, after_min=60, besides=OF_THE_MACHINE if busy else ())
        first_row, *_ = OVERVIEW.rows.values()
        run_promtool(timeline(watched.scrapes, 60), [is_green(panel) for panel in first_row])


def test_the_age_of_the_last_copy_survives_a_restart(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name, store = "restarted", (tmp_path / "store").as_uri()
    kafka_server.create_topic(name, 1)
    produce(kafka_server.bootstrap, TopicData(name), 200)
    with ProxyProcess(
        kafka_server.bootstrap, store, tmp_path, archive=name, settings=SETTINGS
    ) as proxy:
        watched, age = Watched(proxy.console_port), "fetchproxy_last_success_age_seconds"
        for restarted in (False, True):
            if restarted:
                proxy.stop()
                proxy.start()
            for activity in ('"copy"', '"metadata_write"'):
                wait_for(f"an age of {activity}", watched.above(age, 3 + 2 * restarted, activity))
        assert watched.value(age, '"trim"') == 0, "local retention is not asked for"


def is_green(panel: Panel) -> dict[str, object]:
    """The dashboard's figure is one number, and below the one from which it is orange."""
    [query] = panel.queries.values()
    assert panel.alarms is not None
    everywhere = expanded(query).replace('"$job"', '".*"').replace('"$instance"', '".*"')
    calm = [{"labels": "{}", "value": 0}]
    return {
        "expr": f"({everywhere}) >= bool {panel.alarms[0]}",
        "eval_time": "80m",
        "exp_samples": calm,
    }
