"""Pacing by pace, against a model of librdkafka's queue, without a real clock."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from fetchproxy_protocol.fetch import with_bytes_max
from librdkafka_queue import StockConsumer

from fetchproxy.serving.consumer_pacing import (
    CLIENT_ID_SHOWN_MAX,
    DELAY_MAX_S,
    FULL_RESPONSE_BYTES,
    PARTITIONS_COUNTED_MAX,
    PARTITIONS_PACED_MAX,
    QUEUE_RECORDS,
    ConsumerPace,
    ConsumerPaces,
    Lately,
    Reader,
    may_pause,
)

_MILLION = 1_000_000
_SEEDS = range(12)


def _seconds(
    partitions: int, taken_per_s: float, records: int, *, paced: bool, sleeps: bool = False
) -> float:
    def once(seed: int) -> float:
        consumer = StockConsumer(partitions, taken_per_s, seed, sleeps=sleeps)
        outcome = consumer.read(records, ConsumerPace(0.0) if paced else None)
        assert outcome.longest_delay_s <= DELAY_MAX_S
        return outcome.seconds

    return median(map(once, _SEEDS))


def _gain(partitions: int, taken_per_s: float, records: int, *, sleeps: bool = False) -> float:
    without = _seconds(partitions, taken_per_s, records, paced=False, sleeps=sleeps)
    return without / _seconds(partitions, taken_per_s, records, paced=True, sleeps=sleeps)


@pytest.mark.parametrize(
    ("partitions", "taken_per_s", "gain"),
    [
        (1, 600_000, 3.0),
        (8, 600_000, 3.0),
        (1, 1_300_000, 3.0),
        (8, 1_300_000, 4.0),
        # A response holds four times the records that fill the queue.
        (50, 900_000, 1.4),
    ],
)
def test_fast_application_is_read_several_times_as_fast(
    partitions: int, taken_per_s: float, gain: float
) -> None:
    assert _gain(partitions, taken_per_s, 10 * _MILLION) >= gain


@pytest.mark.parametrize("partitions", [1, 8, 50])
@pytest.mark.parametrize("taken_per_s", [20_000, 90_000, 150_000])
def test_slow_application_loses_nothing(partitions: int, taken_per_s: float) -> None:
    assert _gain(partitions, taken_per_s, 4 * _MILLION) >= 0.95


@pytest.mark.parametrize("partitions", [1, 8])
@pytest.mark.parametrize("taken_per_s", [100_000, 600_000])
def test_application_that_sleeps_at_random_loses_nothing(
    partitions: int, taken_per_s: float
) -> None:
    assert _gain(partitions, taken_per_s, 6 * _MILLION, sleeps=True) >= 0.95


# Recorded from confluent-kafka 2.16.1 without pacing (Kafka 4.1.1, records of 100 bytes), up to the
# first pause, by call, partitions and path. For each fetch: when it came and when the response
# before it had left, in ms, and that response's records.
_TRACES = json.loads((Path(__file__).parent / "appetite_traces.json").read_text())
# Records per second that the same applications took when paced.
_TAKEN_PER_S = {"poll": 950_000, "consume": 2_000_000}


@pytest.mark.parametrize("name", _TRACES)
def test_recorded_client_is_paced_after_its_first_pause_at_what_it_could_take(name: str) -> None:
    consumer_pace = ConsumerPace(0.0)
    for asked_ms, responded_ms, records in _TRACES[name]:
        assert not consumer_pace.pauses, "only the last silence is a pause"
        wait_s = consumer_pace.fetch_wait_s(asked_ms / 1000, responded_ms / 1000, records)
        assert consumer_pace.pauses or not wait_s
    taken = _TAKEN_PER_S[name.partition("-")[0]]
    assert 0.25 * taken < consumer_pace.pace < 1.1 * taken


def test_nothing_is_held_back_before_a_pause() -> None:
    consumer_pace, now = ConsumerPace(0.0), 0.0
    for _ in range(1_000):
        now += 0.01
        assert consumer_pace.fetch_wait_s(now, now - 0.005, 10_000) == 0.0
    assert consumer_pace.pauses == 0


@pytest.mark.parametrize("silence", [0.45, 1.7, 30.0])
def test_another_silence_is_no_pause(silence: float) -> None:
    consumer_pace, now = ConsumerPace(0.0), 0.0
    for _ in range(20):
        now += silence
        assert consumer_pace.fetch_wait_s(now, now - silence, 2 * QUEUE_RECORDS) == 0.0
    assert consumer_pace.pauses == 0


def test_silence_behind_fewer_records_than_fill_the_queue_is_no_pause() -> None:
    consumer_pace, now = ConsumerPace(0.0), 0.0
    for _ in range(20):
        now += 1.0
        assert consumer_pace.fetch_wait_s(now, now - 1.0, QUEUE_RECORDS - 1) == 0.0
    assert consumer_pace.pauses == 0


def test_moment_in_which_the_machine_stood_still_fills_no_queue() -> None:
    consumer_pace = ConsumerPace(0.0, 1_800_000)
    now, came_at_once = 0.0, 0
    for number in range(40):
        if number == 30:
            now += 0.3
        records = consumer_pace.response_records
        responded_at = now + consumer_pace.fetch_wait_s(now, now - 0.001, records)
        if number >= 30 and responded_at < now + 0.01:
            came_at_once += records
        now = responded_at + 0.001
    assert 0 < came_at_once <= QUEUE_RECORDS / 2
    assert consumer_pace.pauses == 0


def test_pause_of_three_connections_is_one() -> None:
    consumer_pace, responded = ConsumerPace(0.0), [0.0] * 3
    for number in range(6):
        for connection in range(3):
            now = 0.1 * number + 0.01 * connection + 0.01
            assert consumer_pace.fetch_wait_s(now, responded[connection], 20_000) == 0.0
            responded[connection] = now + 0.05
    for connection in range(3):
        consumer_pace.fetch_wait_s(1.6 + 0.05 * connection, responded[connection], 20_000)
    assert consumer_pace.pauses == 1
    assert 300_000 < consumer_pace.pace < 600_000


def test_pauses_that_come_too_early_to_tell_halve_the_pace() -> None:
    """But not the first pause: the machine may have stood still."""
    consumer_pace, paces = ConsumerPace(0.0, 1_000_000), []
    for number in range(3):
        begun = 1.04 * number
        consumer_pace.fetch_wait_s(begun + 0.02, begun + 0.01, 80_000)
        consumer_pace.fetch_wait_s(begun + 1.04, begun + 0.03, 80_000)
        paces.append(consumer_pace.pace)
    assert consumer_pace.pauses == 3
    assert paces[0] > 900_000
    assert 400_000 < paces[2] < 500_000


@pytest.mark.parametrize(("partitions", "gain"), [(1, 2.2), (8, 2.5)])
def test_machine_that_stands_still_at_times_does_not_slow_the_next_runs(
    partitions: int, gain: float
) -> None:
    """A stall fills the queue at any pace. The next run begins at the pace this run ended with."""

    def last_of_six(seed: int, *, paced: bool) -> float:
        pace, seconds = 0.0, 0.0
        for run in range(6):
            consumer = StockConsumer(partitions, 1.2e6, 100 * seed + run, stalls_per_s=0.3)
            consumer_pace = ConsumerPace(0.0, pace) if paced else None
            seconds = consumer.read(4 * _MILLION, consumer_pace).seconds
            pace = consumer_pace.pace if consumer_pace else 0.0
        return seconds

    without = median(last_of_six(seed, paced=False) for seed in _SEEDS)
    assert without / median(last_of_six(seed, paced=True) for seed in _SEEDS) >= gain


def test_answers_before_a_pause_that_another_connection_told_of_are_not_of_the_next_cycle() -> None:
    """Else they lengthen the cycle by the pause, and three connections pass for a slow reader."""
    consumer_pace, responded = ConsumerPace(0.0), [0.0] * 3
    paces = []
    for cycle in range(3):
        begun = 1.2 * cycle
        for number in range(3):
            for connection in range(3):
                now = begun + 0.05 * number + 0.01 * connection + 0.01
                others = [(at, 27_000) for at in responded if at != responded[connection]]
                silent = now - responded[connection] > 0.5
                consumer_pace.fetch_wait_s(
                    now, responded[connection], 27_000, others if silent else ()
                )
                responded[connection] = now + 0.005
        paces.append(consumer_pace.pace)
    assert consumer_pace.pauses == 2
    assert min(paces[1:]) > 400_000


def test_pauses_grow_rarer() -> None:
    consumer, consumer_pace = StockConsumer(8, 600_000, 1), ConsumerPace(0.0)
    first = consumer.read(6 * _MILLION, consumer_pace).pauses
    later = consumer.read(30 * _MILLION, consumer_pace).pauses
    assert later / 5 <= first / 2


# --- clients that are paced, and their connections ---
@pytest.mark.parametrize(
    "software", ["librdkafka", "confluent-kafka-python", "confluent-kafka-go", "rdkafka-ruby"]
)
def test_librdkafka_may_pause(software: str) -> None:
    assert may_pause(software)


@pytest.mark.parametrize(
    "software", ["", "apache-kafka-java", "kgo", "kafkajs", "sarama", "kafka-python", "aiokafka"]
)
def test_others_never_pause_by_a_clock(software: str) -> None:
    assert not may_pause(software)


LIBRDKAFKA, JAVA = "librdkafka 2.5.0", "apache-kafka-java 4.1.0"


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _fetch_partitions(offset: int) -> dict[tuple[bytes, int], bytes]:
    entry = (0).to_bytes(4, "big") + (-1).to_bytes(4, "big", signed=True)
    entry += offset.to_bytes(8, "big") + (-1).to_bytes(4, "big", signed=True)
    entry += (-1).to_bytes(8, "big", signed=True) + (1 << 20).to_bytes(4, "big")
    return {(b"topic", 0): entry}


def _reader(consumer_paces: ConsumerPaces, client: tuple[str, str], node_id: int) -> Reader:
    return consumer_paces.reader(client, node_id, _fetch_partitions(0), LIBRDKAFKA, paced=True)


def _read_with_pauses(reader: Reader, clock: _Clock, size_bytes: int = 10 * 300_000) -> float:
    """Read three answers, then pause, again and again; return the total time held back, in s."""
    held_back_s, offset = 0.0, 0
    for number in range(40):
        held_back_s += reader.fetch_wait_s(_fetch_partitions(offset))
        offset += 300_000 // 3
        clock.now += 0.05
        reader.responded(size_bytes)
        clock.now += 1.0 if number % 3 == 2 else 0.001
    return held_back_s


def test_reader_that_pauses_is_paced() -> None:
    clock = _Clock()
    reader = _reader(ConsumerPaces(clock), ("host", "id"), 1)
    assert _read_with_pauses(reader, clock) > 0
    assert reader.budget_bytes(1 << 30) < 1 << 30


def test_queue_of_large_records_is_full_by_their_bytes() -> None:
    clock = _Clock()
    reader = _reader(ConsumerPaces(clock), ("host", "id"), 1)
    offset, held_back_s = 0, 0.0
    for number in range(40):  # 10 KiB each: three answers of 40 MB and then a pause
        held_back_s += reader.fetch_wait_s(_fetch_partitions(offset))
        offset += 4_000
        clock.now += 0.05
        reader.responded(4_000 * 10 * 1024)
        clock.now += 1.0 if number % 3 == 2 else 0.001
    assert held_back_s > 0
    assert reader.budget_bytes(1 << 30) < 64 * 1024 * 1024


def test_switched_off_nobody_is_paced() -> None:
    clock = _Clock()
    reader = _reader(ConsumerPaces(clock, enabled=False), ("host", "id"), 1)
    assert _read_with_pauses(reader, clock) == 0
    assert reader.budget_bytes(1 << 30) == 1 << 30


def test_at_the_end_of_the_log_nobody_is_paced() -> None:
    clock = _Clock()
    reader = _reader(ConsumerPaces(clock), ("host", "id"), 1)
    assert _read_with_pauses(reader, clock, FULL_RESPONSE_BYTES - 1) == 0


def test_pace_is_known_when_the_client_comes_back() -> None:
    clock = _Clock()
    consumer_paces = ConsumerPaces(clock)
    reader = _reader(consumer_paces, ("host", "id"), 1)
    _read_with_pauses(reader, clock)
    reader.close()
    clock.now += 24 * 3600
    again = _reader(consumer_paces, ("host", "id"), 1)
    again.responded(3_000_000)
    again.fetch_wait_s(_fetch_partitions(0))
    again.responded(3_000_000)
    assert again.fetch_wait_s(_fetch_partitions(400_000)) > 0
    again.close()
    third = _reader(consumer_paces, ("host", "id"), 1)
    assert third.budget_bytes(50_000_000) < 10_000_000, "from its first answer on"
    other = _reader(consumer_paces, ("another host", "id"), 1)
    other.fetch_wait_s(_fetch_partitions(0))
    other.responded(3_000_000)
    assert other.fetch_wait_s(_fetch_partitions(400_000)) == 0


def test_connections_to_different_brokers_are_one_consumer() -> None:
    clock = _Clock()
    consumer_paces = ConsumerPaces(clock)
    first = _reader(consumer_paces, ("host", "id"), 1)
    _read_with_pauses(first, clock)
    second = _reader(consumer_paces, ("host", "id"), 2)
    stranger = _reader(consumer_paces, ("host", "id"), 1)
    for reader in (second, stranger):
        reader.fetch_wait_s(_fetch_partitions(0))
        reader.responded(3_000_000)
    assert second.fetch_wait_s(_fetch_partitions(400_000)) > 0
    assert stranger.fetch_wait_s(_fetch_partitions(400_000)) == 0
    for reader in (first, second, stranger):
        reader.close()


# --- clients in the console and the API ---
def test_what_is_said_of_a_client() -> None:
    clock = _Clock()
    consumer_paces = ConsumerPaces(clock)
    readers = [_reader(consumer_paces, ("10.0.0.7", "r" * 200), node) for node in (1, 2)]
    held_back_s = _read_with_pauses(readers[0], clock)
    (consumer,) = consumer_paces.consumers()
    status = consumer.status(clock.now)
    assert (status.client_id, status.address) == ("r" * CLIENT_ID_SHOWN_MAX, "10.0.0.7")
    assert status.software == LIBRDKAFKA
    assert (status.connections, status.partitions) == (2, 1)
    assert status.pauses == consumer.consumer_pace.pauses > 1
    assert status.held_back_s == round(held_back_s, 2) > 0
    assert status.pace_records_per_s == round(consumer.consumer_pace.pace) > QUEUE_RECORDS
    assert status.records_per_s is not None
    assert status.bytes_per_s == pytest.approx(30 * status.records_per_s, rel=1e-3)
    for reader in readers:
        reader.close()
    assert consumer_paces.consumers() == []


def test_client_that_does_not_pause_has_no_pace() -> None:
    clock = _Clock()
    consumer_paces = ConsumerPaces(clock)
    reader = _reader(consumer_paces, ("host", "id"), 1)
    for number in range(200):  # 100,000 records/s, 1 MB/s, in small answers
        reader.fetch_wait_s(_fetch_partitions(number * 5_000))
        clock.now += 0.05
        reader.responded(50_000)
    (consumer,) = consumer_paces.consumers()
    status = consumer.status(clock.now)
    assert status.records_per_s == pytest.approx(100_000, rel=0.02)
    assert status.bytes_per_s == pytest.approx(1_000_000, rel=0.02)
    assert (status.pauses, status.pace_records_per_s, status.held_back_s) == (0, None, 0.0)


def test_lately_forgets_what_was_long_ago() -> None:
    lately = Lately(100.0)
    lately.add(100.0, 1_000, 10_000, 3)
    assert lately.totals(100.0) == (1_000, 10_000, 3)  # over one second at least
    assert lately.totals(102.0) == (500, 5_000, 3)
    lately.add(106.0, 2_000, 20_000, 1)
    assert lately.totals(110.0) == (300, 3_000, 3)  # over ten seconds
    assert lately.totals(112.0) == (pytest.approx(2_000 / 6), pytest.approx(20_000 / 6), 1)
    assert lately.totals(122.0) == (0, 0, 0)
    lately.add(1_000.0, 5_000, 50_000, 2)
    assert lately.totals(1_000.0) == (1_000, 10_000, 2)


def test_of_very_many_partitions_only_the_bytes_are_known() -> None:
    clock = _Clock()
    consumer_paces = ConsumerPaces(clock)
    reader = _reader(consumer_paces, ("host", "id"), 1)
    (entry,) = _fetch_partitions(0).values()
    fetch_wait_s = {(b"topic", number): entry for number in range(PARTITIONS_PACED_MAX + 1)}
    reader.fetch_wait_s(fetch_wait_s)
    reader.responded(3_000)
    reader.fetch_wait_s(fetch_wait_s)
    status = consumer_paces.consumers()[0].status(clock.now)
    assert (status.partitions, status.records_per_s, status.bytes_per_s) == (1_001, None, 3_000)


@pytest.mark.parametrize("enabled", [True, False])
def test_client_that_is_never_paced_is_counted(enabled: bool) -> None:
    """Its reads are counted whatever it does, even with pacing turned off."""
    clock = _Clock()
    consumer_paces = ConsumerPaces(clock, enabled=enabled)
    java = consumer_paces.reader(("host", "id"), 1, _fetch_partitions(0), JAVA, paced=not enabled)
    assert _read_with_pauses(java, clock) == 0
    assert java.budget_bytes(1 << 30) == 1 << 30
    (consumer,) = consumer_paces.consumers()
    status = consumer.status(clock.now)
    assert status.software == JAVA
    assert status.records_per_s is not None
    assert status.records_per_s > QUEUE_RECORDS
    assert status.bytes_per_s == pytest.approx(30 * status.records_per_s, rel=1e-3)
    assert (status.pauses, status.pace_records_per_s, status.held_back_s) == (0, None, 0.0)
    java.close()
    assert consumer_paces.consumers() == []


def test_two_libraries_of_one_name_are_two_clients() -> None:
    clock = _Clock()
    consumer_paces = ConsumerPaces(clock)
    _read_with_pauses(_reader(consumer_paces, ("host", "id"), 1), clock)
    java = consumer_paces.reader(("host", "id"), 2, _fetch_partitions(0), JAVA, paced=False)
    java.fetch_wait_s(_fetch_partitions(0))
    java.responded(3_000_000)
    assert java.fetch_wait_s(_fetch_partitions(400_000)) == 0
    status_by_software = {one.software: one.status(clock.now) for one in consumer_paces.consumers()}
    assert status_by_software[LIBRDKAFKA].pauses > status_by_software[JAVA].pauses == 0


def test_fetch_that_names_some_of_its_session() -> None:
    clock = _Clock()
    consumer_paces = ConsumerPaces(clock)
    reader = consumer_paces.reader(("host", "id"), 1, {}, JAVA, paced=False)
    (entry,) = _fetch_partitions(0).values()
    (further,) = _fetch_partitions(5_000).values()
    reader.fetch_wait_s({(b"topic", number): entry for number in range(90)})
    for number in range(90):  # one at a time; the others are remembered
        reader.responded(50_000)
        reader.fetch_wait_s({(b"topic", number): further}, 90)
    status = consumer_paces.consumers()[0].status(clock.now)
    assert (status.partitions, status.records_per_s) == (90, 90 * 5_000)
    reader.fetch_wait_s({(b"topic", 0): further}, PARTITIONS_COUNTED_MAX + 1)
    assert consumer_paces.consumers()[0].status(clock.now).records_per_s is None
    assert reader.kept_bytes == 0


def test_fetch_of_very_many_partitions_is_not_looked_at() -> None:
    reader = _reader(ConsumerPaces(_Clock()), ("host", "id"), 1)
    (entry,) = _fetch_partitions(0).values()
    most = {(b"topic", number): entry for number in range(PARTITIONS_PACED_MAX)}
    reader.fetch_wait_s(most)
    assert reader.kept_bytes > 0
    reader.fetch_wait_s({**most, (b"topic", PARTITIONS_PACED_MAX): entry})
    assert reader.kept_bytes == 0


def test_offset_that_jumps_counts_as_nothing_read() -> None:
    clock = _Clock()
    reader = _reader(ConsumerPaces(clock), ("host", "id"), 1)
    for offset in (0, 10**12, 5, 10**15, 7):
        clock.now += 1.0
        assert reader.fetch_wait_s(_fetch_partitions(offset)) == 0.0
        reader.responded(3_000_000)


def test_request_asks_for_fewer_bytes_and_else_as_it_came() -> None:
    for version, at in ((11, 12), (15, 8)):
        frame = bytes(range(60))
        out = with_bytes_max(frame, 10, version, 0x7A7B7C7D)
        begin = 4 + 10 + at
        assert out[begin : begin + 4] == bytes([0x7A, 0x7B, 0x7C, 0x7D])
        assert out[:begin] + frame[begin : begin + 4] + out[begin + 4 :] == frame
