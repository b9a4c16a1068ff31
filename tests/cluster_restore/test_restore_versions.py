"""A restore into brokers of other versions than the default: the messages differ, by
metadata.version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_restore import LocalRestore
from lost_history import lose_history
from restore_process import group, order_of, topic
from test_cluster_restore import assert_no_phantom, consumed, ends, produced, restored
from test_local_history import assert_producers_go_on, assert_same_records

from lab.kafka import KafkaServer
from lab.kafka_versions import KAFKA_3_9, KAFKA_NEWEST

pytestmark = pytest.mark.kafka

NAME, STARTS = "other-version", [5_000_000_000, 77, 1 << 40]


@pytest.fixture(
    params=[
        pytest.param(("kafka-3.9", KAFKA_3_9), marks=pytest.mark.slow),
        ("kafka-newest", KAFKA_NEWEST),
    ],
    ids=[KAFKA_3_9, KAFKA_NEWEST],
)
def other_kafka(
    request: pytest.FixtureRequest, serve_part: Callable[..., Iterator[KafkaServer]]
) -> Iterator[KafkaServer]:
    part, version = request.param
    yield from serve_part(part, KafkaServer(version=version))


async def test_new_and_empty_topics_begin_at_their_offsets(
    other_kafka: KafkaServer, tmp_path: Path
) -> None:
    bootstrap = other_kafka.bootstrap
    other_kafka.create_topic("is-empty", 1)
    topics = [topic(NAME, STARTS, epoch=6), topic("is-empty", [1_234], epoch=3)]
    groups = [group("readers", {(NAME, n): start for n, start in enumerate(STARTS)}, epoch=6)]

    report = await restored(bootstrap, order_of(tmp_path / "job", topics, groups))

    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, NAME, 3) == [(start, start) for start in STARTS]
    assert ends(bootstrap, "is-empty", 1) == [(1_234, 1_234)]
    assert produced(bootstrap, NAME, 2, b"next") == STARTS[2]
    records = consumed(bootstrap, NAME, "readers")
    assert next(records) == (2, STARTS[2], b"next")
    records.close()
    assert_no_phantom(bootstrap, {1})


@pytest.mark.slow
def test_local_history_is_as_before(
    own_kafka_server: KafkaServer, other_kafka: KafkaServer, tmp_path: Path
) -> None:
    lost = lose_history(own_kafka_server, "history", tmp_path)
    bootstrap, servers = other_kafka.bootstrap, {1: other_kafka}

    report = LocalRestore(bootstrap, lost.store, tmp_path / "job", "300KiB", 1).report()

    starts = assert_same_records(bootstrap, servers, lost)
    assert [one["first_offset"] for one in report["local"]] == list(starts.values())
    assert_producers_go_on(bootstrap, servers, lost)
    assert_no_phantom(bootstrap, {1})
