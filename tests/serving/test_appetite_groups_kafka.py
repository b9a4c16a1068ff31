"""Applications that nap, rebalance or are killed, behind a proxy with and without pacing.

Behind both they read every record, and about as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from proxy_process import ProxyProcess, wait_for
from topic_data import archived_ends, trim

from benchmarks.group_reads import APPLICATIONS, fill_numbered, read_as
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

TOPIC, PARTITIONS, RECORDS, RECORD_BYTES = "ap-groups", 4, 600_000, 20
SETTINGS = {"archive.segment_age_max_ms": 300, "limits.writing.rlm_process_interval_ms": 100}
# On a busy machine an application may be slower than any pace.
READS_MAX = 5
# A busy machine blurs these times; `python -m benchmarks.applications` gives real figures.
SLOWER_MAX, SLOWER_MAX_S = 1.5, 5.0


@dataclass(frozen=True)
class Two:
    paced: ProxyProcess
    unpaced: ProxyProcess
    ends: dict[int, int]


@pytest.fixture(scope="module")
def two(kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Two proxies of one archive: it has all offsets, and the broker keeps only the second half."""
    folder = tmp_path_factory.mktemp("groups")
    store = (folder / "store").as_uri()
    (folder / "store").mkdir()
    bootstrap = kafka_server.bootstrap
    kafka_server.create_topic(TOPIC, PARTITIONS)
    ends = fill_numbered(bootstrap, TOPIC, PARTITIONS, RECORDS, RECORD_BYTES)
    off = {"gateway.pace_by_appetite": "false"}
    with ProxyProcess(bootstrap, store, folder, archive=TOPIC, settings=SETTINGS) as paced:
        wait_for("the archive", lambda: archived_ends(store, TOPIC) == ends)
        trim(bootstrap, TOPIC, {partition: end // 2 for partition, end in ends.items()})
        with ProxyProcess(bootstrap, store, folder, settings=off) as unpaced:
            yield Two(paced, unpaced, ends)


@pytest.mark.parametrize("application", APPLICATIONS)
def test_application_reads_every_record_as_without_pacing(application: str, two: Two) -> None:
    unpaced = read_as(application, two.unpaced.bootstrap, TOPIC, two.ends)
    before = two.paced.metric("fetchproxy_paced_answers_total")
    for _ in range(READS_MAX):
        paced = read_as(application, two.paced.bootstrap, TOPIC, two.ends)
        print(f"{application}: {paced} paced, {unpaced} not paced")
        if application != "is killed and comes back":  # its uncommitted records come again
            assert paced.repeated == unpaced.repeated == 0
        assert paced.seconds < unpaced.seconds * SLOWER_MAX + SLOWER_MAX_S
        if two.paced.metric("fetchproxy_paced_answers_total") > before:
            break
    else:
        raise AssertionError("no answer was paced")
    assert two.unpaced.metric("fetchproxy_paced_answers_total") == 0
