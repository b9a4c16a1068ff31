"""The archive serves the same bytes as the broker did, for every offset and version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_process import ProxyProcess, wait_for
from raw_fetch import Fetched, RawConnection
from topic_data import TopicData, archived_ends, produce, produce_transactions, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

TOPIC = "identity"
SETTINGS: dict[str, object] = {
    "archive.segment_bytes_max": 30_000,
    "archive.segment_age_max_ms": 300,
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.discovery_interval_ms": 200,
    "limits.reading.chunk_bytes": 9_000,
}


@dataclass
class Archived:
    """The broker's responses before its log was trimmed; `trimmed_to` is its log start now."""

    proxy: ProxyProcess
    broker: str
    topic_id: UUID
    end: int
    trimmed_to: int
    captured: dict[tuple[int, int], Fetched]  # by (offset, isolation): at version 12, 1 MiB

    def batches(self, offset: int, isolation: int) -> list[bytes]:
        return self.captured[offset, isolation].batches


@pytest.fixture(scope="module")
def archived(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Archived]:
    folder: Path = tmp_path_factory.mktemp("identity")
    store = (folder / "store").as_uri()
    kafka_server.create_topic(TOPIC, 1)
    data = TopicData(TOPIC)
    for codec in ("none", "lz4", "zstd"):
        produce(kafka_server.bootstrap, data, 300, compression=codec, batch_records=17)
    produce_transactions(kafka_server.bootstrap, data, 20, 15)
    end = data.ends(kafka_server.bootstrap)[0]
    captured = {}
    with RawConnection(kafka_server.bootstrap) as direct:
        topic_id = direct.topic_id(TOPIC)
        for offset in range(end):
            for isolation in (0, 1):
                captured[offset, isolation] = direct.fetch(
                    12, TOPIC, None, offset, isolation=isolation
                )
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive=TOPIC, settings=SETTINGS
    ) as proxy:
        wait_for("the archive", lambda: archived_ends(store, TOPIC) == {0: end})
        trim(kafka_server.bootstrap, TOPIC, {0: end - 40})
        yield Archived(proxy, kafka_server.bootstrap, topic_id, end, end - 40, captured)


def test_every_offset_of_every_segment(archived: Archived) -> None:
    with RawConnection(archived.proxy.bootstrap) as through:
        for offset in range(archived.trimmed_to):
            fetched = through.fetch_until_data(12, TOPIC, None, offset)
            want = archived.batches(offset, 0)
            assert fetched.error == 0
            assert fetched.batches == want[: len(fetched.batches)], offset
            assert fetched.records == b"".join(fetched.batches), "the archive serves whole batches"


@settings(max_examples=150)
@given(data=st.data())
def test_any_version_limit_and_isolation(archived: Archived, data: st.DataObject) -> None:
    version = data.draw(st.integers(4, 18), "version")
    offset = data.draw(st.integers(0, archived.trimmed_to - 1), "offset")
    isolation = data.draw(st.integers(0, 1), "isolation")
    bytes_max = data.draw(st.sampled_from([1, 700, 5_000, 20_000, 1 << 20]), "bytes_max")
    topic_id = archived.topic_id if version >= 13 else None
    with RawConnection(archived.proxy.bootstrap) as through:
        fetched = through.fetch_until_data(
            version, TOPIC, topic_id, offset, isolation=isolation, bytes_max=bytes_max
        )
    want = archived.batches(offset, isolation)
    assert fetched.error == 0
    assert fetched.batches == want[: len(fetched.batches)]
    assert len(fetched.records) <= max(bytes_max, len(want[0]))
    if isolation == 1:
        _check_aborted(archived, offset, fetched)
    else:
        assert fetched.aborted is None


def _check_aborted(archived: Archived, offset: int, fetched: Fetched) -> None:
    """The list has every aborted transaction the broker listed, up to the last returned offset."""
    assert fetched.aborted is not None
    listed = archived.captured[offset, 1].aborted or []
    assert set(fetched.aborted) <= set(listed)
    last = _last_offset(fetched)
    assert {a for a in listed if a[1] <= last} <= set(fetched.aborted)


def _last_offset(fetched: Fetched) -> int:
    from fetchproxy_protocol.record_batch import walk

    return max(batch.last_offset for batch in walk(fetched.records))


def test_a_walk_over_both_tiers_gives_every_batch_once(archived: Archived) -> None:
    with RawConnection(archived.proxy.bootstrap) as through:
        offset, batches_read = 0, []
        while offset < archived.end:
            fetched = through.fetch_until_data(12, TOPIC, None, offset)
            fresh = [b for b in fetched.batches if b not in batches_read[-50:]]
            batches_read += fresh
            offset = _last_offset(fetched) + 1
    assert b"".join(batches_read) == b"".join(_all_batches(archived))


def _all_batches(archived: Archived) -> list[bytes]:
    offset, batches_read = 0, []
    while offset < archived.end:
        fetched = archived.captured[offset, 0]
        batches_read += fetched.batches
        offset = _last_offset(fetched) + 1
    return batches_read


def test_watermarks_are_the_live_logs_and_the_archives(archived: Archived) -> None:
    with RawConnection(archived.proxy.bootstrap) as through:
        for _ in range(2):  # the proxy knows the log's edges at the second answer
            fetched = through.fetch_until_data(12, TOPIC, None, 5)
        assert (fetched.high_watermark, fetched.last_stable_offset) == (archived.end, archived.end)
        assert fetched.log_start_offset == 0


@pytest.mark.parametrize("version", range(1, 11))
def test_list_offsets_sees_both_tiers(archived: Archived, version: int) -> None:
    with RawConnection(archived.proxy.bootstrap) as through:
        assert through.list_offset(version, TOPIC, -2) == (0, -1, 0)
        assert through.list_offset(version, TOPIC, -1) == (0, -1, archived.end)
        error, timestamp, offset = through.list_offset(version, TOPIC, 0)
        assert (error, offset) == (0, 0)
        assert timestamp > 0
        again = through.list_offset(version, TOPIC, timestamp)
        assert again == (0, timestamp, 0)
        if version >= 8:
            assert through.list_offset(version, TOPIC, -4)[2] == archived.trimmed_to
        if version >= 9:
            assert through.list_offset(version, TOPIC, -5)[2] == archived.end - 1


def test_an_offset_above_the_end_stays_out_of_range(archived: Archived) -> None:
    with RawConnection(archived.proxy.bootstrap) as through:
        assert through.fetch_until_data(12, TOPIC, None, archived.end + 100).error == 1


def test_a_session_crosses_from_the_archive_to_the_live_log(archived: Archived) -> None:
    """KIP-227 by hand: one full fetch, then incremental ones with only the changed offsets."""
    with RawConnection(archived.proxy.bootstrap) as through:
        response = through.fetch_response(12, TOPIC, None, {0: 0}, session=(0, 0))
        session, epoch, offset, batches_read = response.session_id, 1, 0, []
        assert session > 0
        moved = {}
        while offset < archived.end:
            response = through.fetch_response(12, TOPIC, None, moved, session=(session, epoch))
            assert (response.error_code, response.session_id) == (0, session)
            epoch += 1
            moved = {}
            for topic in response.responses:
                for p in topic.partitions:
                    assert p.error_code == 0
                    if p.records:
                        fetched = Fetched(0, 0, 0, 0, None, bytes(p.records))
                        batches_read += [b for b in fetched.batches if b not in batches_read[-50:]]
                        offset = _last_offset(fetched) + 1
                        moved = {0: offset}
    assert b"".join(batches_read) == b"".join(_all_batches(archived))
