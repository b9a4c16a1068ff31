"""A topic that the broker tiers itself, archived as well: its first records are on no disk of it.

The broker is the oracle: what it serves from its own tier, fetchproxy has to serve when the broker
has deleted it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from archive_only_process import ArchiveOnlyProcess
from confluent_kafka import Producer
from fetchproxy_command import archive_once
from oracle_sides import (
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    SEGMENT_MS,
    TieredKafka,
    until,
)
from oracle_world import World
from proxy_process import ProxyProcess
from raw_fetch import RawConnection

pytestmark = pytest.mark.kafka

EARLIEST, MAX_TIMESTAMP, PENDING_UPLOAD = -2, -3, -6
TOPIC = "in-the-brokers-tier"
SMALL = {"archive.segment_bytes_max": 1024}
LIST_VERSION, FETCH_VERSION = 11, 17
READ_COMMITTED = 1


@dataclass(frozen=True)
class WholeLog:
    """All batches in the order of their offsets, and what Fetch says of aborted transactions."""

    batches: list[bytes]
    aborted: set[tuple[int, int]]


def read_all(bootstrap: str) -> WholeLog:
    batches_read, aborted = list[bytes](), set[tuple[int, int]]()
    with RawConnection(bootstrap) as raw:
        topic_id = raw.topic_id(TOPIC)
        offset, end = 0, raw.list_offset(LIST_VERSION, TOPIC, LATEST)[2]
        while offset < end:
            fetched = raw.fetch_until_data(
                FETCH_VERSION, TOPIC, topic_id, offset, isolation=READ_COMMITTED
            )
            assert fetched.error == 0, (offset, fetched)
            batches_read += fetched.batches
            aborted |= set(fetched.aborted or ())
            last = batches_read[-1]
            offset = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1
    return WholeLog(batches_read, aborted)


def offsets_at(bootstrap: str, *times: int) -> dict[int, int]:
    with RawConnection(bootstrap) as raw:
        offsets_by_time = {time: raw.list_offset(LIST_VERSION, TOPIC, time) for time in times}
    assert {error for error, *_ in offsets_by_time.values()} == {0}, offsets_by_time
    return {time: offset for time, (_, _, offset) in offsets_by_time.items()}


def write_segment(world: World, number: int) -> None:
    """A segment of its own by its records' time: an aborted transaction between plain batches."""
    at = world.first_ms + 2 * number * SEGMENT_MS
    where = {"bootstrap.servers": world.tiered.kafka.bootstrap, "linger.ms": 0}
    plain = Producer(where)
    aborting = Producer({**where, "transactional.id": f"{TOPIC}-{number}"})
    aborting.init_transactions(30)
    aborting.begin_transaction()
    for producer, key in ((plain, b"a"), (aborting, b"gone"), (plain, b"b")):
        for record in range(5):
            producer.produce(TOPIC, b"%d/%d" % (number, record) * 40, key, 0, timestamp=at + record)
        assert producer.flush(60) == 0
    aborting.abort_transaction(60)


def tier_all_but_the_newest(tiered: TieredKafka) -> int:
    """The first offset that is on the broker's disk afterwards."""
    bases = tiered.bases(TOPIC, 0)
    tiered.archive(TOPIC, {0: bases[1:]})
    tiered.forget(TOPIC, {0: bases[-1]})
    assert tiered.bases(TOPIC, 0) == bases[-1:]
    return bases[-1]


@pytest.mark.slow
def test_what_only_the_brokers_tier_has_is_archived_and_outlives_it(
    newest_world: World, tmp_path: Path
) -> None:
    tiered, store = newest_world.tiered, (tmp_path / "archive").as_uri()
    broker = tiered.kafka.bootstrap
    tiered.create_topic(TOPIC)
    for number in range(3):
        write_segment(newest_world, number)
    local_start = tier_all_but_the_newest(tiered)
    assert offsets_at(broker, EARLIEST, EARLIEST_LOCAL) == {
        EARLIEST: 0,
        EARLIEST_LOCAL: local_start,
    }

    refused = archive_once(broker, store, TOPIC, {"archive.log_dirs": tiered.kafka.data_dir})
    assert refused.returncode == 2, refused
    assert "without archive.log_dirs" in refused.stderr
    result = archive_once(broker, store, TOPIC, SMALL)
    assert result.returncode == 0, result
    with ProxyProcess(broker, store, tmp_path) as proxy:
        _check_while_the_broker_is_ahead(newest_world, proxy)
        result = archive_once(broker, store, TOPIC, SMALL)
        assert result.returncode == 0, result
        whole = read_all(broker)
        assert len(whole.aborted) == 5
        assert read_all(proxy.bootstrap) == whole
        times = [EARLIEST, EARLIEST_LOCAL, MAX_TIMESTAMP, LATEST, newest_world.first_ms]
        before = offsets_at(broker, *times)

        tiered._alter(TOPIC, {"retention.bytes": "1"})
        until(
            "the broker has deleted what its tier had",
            lambda: offsets_at(broker, EARLIEST)[EARLIEST] >= local_start,
        )
        assert read_all(proxy.bootstrap) == whole
        both = offsets_at(proxy.bootstrap, *times, LATEST_TIERED)
        assert both == {
            **before,
            EARLIEST_LOCAL: offsets_at(broker, EARLIEST_LOCAL)[EARLIEST_LOCAL],
            LATEST_TIERED: before[LATEST] - 1,
        }
        assert not proxy.logged("session_crashed")
    with ArchiveOnlyProcess(store, tmp_path) as node:
        assert read_all(node.bootstrap) == whole
        end = before[LATEST]
        assert offsets_at(node.bootstrap, *times, LATEST_TIERED, PENDING_UPLOAD) == {
            **before,
            EARLIEST_LOCAL: end,
            LATEST_TIERED: end - 1,
            PENDING_UPLOAD: end,
        }
        node.assert_sound()


def _check_while_the_broker_is_ahead(world: World, proxy: ProxyProcess) -> None:
    """The broker has moved records to its tier that are not archived yet."""
    tiered = world.tiered
    for number in range(3, 5):
        write_segment(world, number)
    tier_all_but_the_newest(tiered)
    times = (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD, LATEST, world.first_ms)
    assert offsets_at(proxy.bootstrap, *times) == offsets_at(tiered.kafka.bootstrap, *times)
